package policy

import (
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// What is allowed is added to what the file has; a rule that stands there is its administrator's.
func TestAllowContainers(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	group, err := user.LookupGroupId(me.Gid)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "etc", "policy.yaml")
	for i, step := range []struct {
		before, name string
		written      bool
		err          string
	}{
		{"", me.Username, true, ""},
		{"containers:\n  users: [" + me.Username + "]\n", me.Username, false, ""},
		{"# mine\nlaunch:\n  users: [nobody]", me.Username, true, ""},
		{"containers:\n  users: [nobody]\n", me.Username, false, "line 1 of " + path + " has a rule already"},
		{"{launch: {users: [nobody]}}\n", me.Username, false, "add this rule yourself"},
		{"launch: [", me.Username, false, "read policy"},
		{"", "no-such-name", false, "neither a user nor a group"},
	} {
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(step.before), 0o644); err != nil {
			t.Fatal(err)
		}
		written, err := AllowContainers(path, step.name)
		if written != step.written || step.err == "" && err != nil || step.err != "" &&
			(err == nil || !strings.Contains(err.Error(), step.err)) {
			t.Errorf("%d: %v, %v", i, written, err)
		}
		after, _ := os.ReadFile(path)
		if !written && string(after) != step.before {
			t.Errorf("%d: changed to %q", i, after)
		}
		p, err := Read(path)
		if written && (err != nil || p.Containers("spark1", step.name, nil) != nil || !strings.HasPrefix(string(after), step.before)) {
			t.Errorf("%d: %v: %q", i, err, after)
		}
	}
	os.Remove(path)
	if p, err := Read(path); err != nil {
		t.Error(err)
	} else if err := p.Containers("spark1", "zeta", nil); err == nil || !strings.Contains(err.Error(),
		"`sudo sparkrun init --containers zeta`, or this line in "+path+": containers: {users: [zeta]}") {
		t.Error(err)
	}
	if group.Name == me.Username { // a user's own group has the user's name: the user is meant
		return
	}
	if written, err := AllowContainers(path, group.Name); !written || err != nil {
		t.Errorf("group %s: %v, %v", group.Name, written, err)
	}
}
