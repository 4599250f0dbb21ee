package launcher

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePorts(t *testing.T) {
	for text, want := range map[string]Ports{"8000": {8000, 8000}, "1-65535": {1, 65535}, "8000-8001": {8000, 8001}} {
		got, err := ParsePorts(text)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", text, err, diff)
		}
		b, err := json.Marshal(got)
		var back Ports
		if err != nil || json.Unmarshal(b, &back) != nil || back != want {
			t.Errorf("%s: through JSON: %s, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "0", "65536", "http", "8001-8000", "1-", "-1", "1-2-3"} {
		if p, err := ParsePorts(text); err == nil {
			t.Errorf("%q: taken for %s", text, p)
		}
	}
}
