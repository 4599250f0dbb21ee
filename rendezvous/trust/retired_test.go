package trust

import (
	"errors"
	"path/filepath"
	"testing"
)

// What was sealed before a rotation opens afterwards where a job needs it, on a node that joined later, too; who was
// removed cannot open what is sealed with the new key; and no key is kept that nothing needs, but for the latest.
func TestRetiredKeys(t *testing.T) {
	k0, k1, k2, k3 := NewGossipKey(0), NewGossipKey(1), NewGossipKey(2), NewGossipKey(3)
	seal := func(k GossipKey, job string) Sealed {
		t.Helper()
		s, err := NewSealer(Keyring{k}, nil)
		if err != nil {
			t.Fatal(err)
		}
		words := []string{job, "ada", "HF_TOKEN"}
		box, err := s.Seal(NewSecret([]byte("hf_planted")), words...)
		if err != nil {
			t.Fatal(err)
		}
		return Sealed{box, words}
	}
	old, middle, latest := seal(k0, "job0"), seal(k1, "job1"), seal(k3, "job3")
	foreign := seal(NewGossipKey(1), "job9")
	opens := func(keyring Keyring, retired Retired, b Sealed) bool {
		t.Helper()
		s, err := NewSealer(keyring, retired)
		if err != nil {
			t.Fatal(err)
		}
		return s.opens(b)
	}
	retired := Retired{}.Add(Keyring{k0}).Add(Keyring{k2, k1}).Add(Keyring{k1})
	if got := numbers(Keyring(retired)); got != "2 1 0" {
		t.Fatalf("retired are %s, want the latest first and each once", got)
	}
	for name, got := range map[string]bool{
		"a job of before":                         opens(Keyring{k3}, retired, old),
		"a job of now":                            opens(Keyring{k3}, retired, latest),
		"a job of now, by a removed node's keys":  !opens(Keyring{k2}, Retired{k1, k0}, latest),
		"a job of before, without its key":        !opens(Keyring{k3}, Retired{k2, k1}, old),
		"sealed by a node that has retired ones":  opens(Keyring{k3}, nil, sealedBy(t, Keyring{k3}, retired)),
		"not by a retired one, though it has one": !opens(Keyring{k2}, Retired{k1, k0}, sealedBy(t, Keyring{k3}, retired)),
	} {
		if !got {
			t.Errorf("%s: it is otherwise", name)
		}
	}
	for _, c := range []struct {
		name  string
		boxes []Sealed
		want  string
		all   bool
	}{
		{"both jobs go on", []Sealed{old, middle, latest}, "2 1 0", true},
		{"the older one goes on", []Sealed{old, latest}, "2 0", true},
		{"none needs an old key", []Sealed{latest}, "2", true},
		{"no job has secrets", nil, "2", true},
		{"one that nobody here can open", []Sealed{old, foreign}, "2 0", false},
	} {
		kept, all, err := retired.Keep(Keyring{k3}, c.boxes)
		if err != nil || all != c.all || numbers(Keyring(kept)) != c.want {
			t.Errorf("%s: kept %s, all %v, %v; want %s, %v", c.name, numbers(Keyring(kept)), all, err, c.want, c.all)
		}
	}

	dir := filepath.Join(t.TempDir(), "trust")
	if got, err := LoadRetired(dir); got != nil || err != nil {
		t.Errorf("without a file: %s, %v", numbers(Keyring(got)), err)
	}
	for _, want := range []Retired{retired, nil} {
		err := SaveRetired(dir, want)
		got, err2 := LoadRetired(dir)
		if err := errors.Join(err, err2); err != nil || !got.Equal(want) {
			t.Errorf("came back as %s, %v; want %s", numbers(Keyring(got)), err, numbers(Keyring(want)))
		}
	}
}

func sealedBy(t *testing.T, keyring Keyring, retired Retired) Sealed {
	t.Helper()
	s, err := NewSealer(keyring, retired)
	if err != nil {
		t.Fatal(err)
	}
	words := []string{"job", "ada", "NAME"}
	box, err := s.Seal(NewSecret([]byte("x")), words...)
	if err != nil {
		t.Fatal(err)
	}
	return Sealed{box, words}
}
