package container

import "testing"

// One image has one sum, however an engine writes the moment of its build; another build of the same layers, or other
// layers, have another one.
func TestBuilt(t *testing.T) {
	layers := []string{"sha256:a", "sha256:b"}
	one := built("2026-11-24T10:00:00.5Z", layers)
	if one == "" || built("2026-11-24T11:00:00.500+01:00", layers) != one {
		t.Error("one image has two sums")
	}
	for name, other := range map[string]string{
		"built again":  built("2026-11-24T10:00:01Z", layers),
		"another base": built("2026-11-24T10:00:00.5Z", []string{"sha256:c", "sha256:b"}),
	} {
		if other == one || other == "" {
			t.Errorf("%s: %q", name, other)
		}
	}
	if built("", layers) != "" || built("2026-11-24T10:00:00Z", nil) != "" {
		t.Error("what is not told is the same everywhere")
	}
}
