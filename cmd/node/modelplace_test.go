package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher/policy"
)

// A machine's models lie where its policy says, or its agent does not start, and says why.
func TestModelCachePolicy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "policy.yaml")
	write := func(text string) policy.Policy {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		p, err := policy.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if err := os.WriteFile(filepath.Join(dir, "taken"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"model_cache: " + dir + "/taken":                                    "rule model_cache, line 1 of " + file + ": keep models in " + dir + "/taken: ",
		"model_cache: " + dir + "/a\nmodel_readers: {users: [nobody-here]}": "lines 1 and 2",
		"model_readers: {groups: [none-here]}":                              `line 1 of ` + file + `: group "none-here": not known`,
	} {
		if _, _, err := modelPlace(t.Context(), Paths{State: dir}, write(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if got, readers, err := modelPlace(t.Context(), Paths{State: dir}, policy.Policy{}); got != dir+"/models" || readers != nil || err != nil {
		t.Errorf("without rules: %q, %v, %v", got, readers, err)
	}

	write("model_cache: " + dir + "/cache\nmodel_readers: {users: [nobody], groups: [root]}\n")
	c, _ := withHub(t, 1, func(c *Config) { c.Paths.Policy = file })
	p := c.hosts[0].pull(pullOf(tiny))
	p.whole(t, c.hosts[0])
	if got := p.of("spark1").Dir; !strings.HasPrefix(got, dir+"/cache/models--org--tiny/") {
		t.Errorf("it lies in %s", got)
	}
	if st, err := os.Stat(dir + "/cache"); err != nil || st.Mode().Perm()&0o007 != 0 {
		t.Errorf("others may read it: %v, %v", st.Mode(), err)
	}
}
