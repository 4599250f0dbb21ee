package login

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestLogins(t *testing.T) {
	u, err := parsePasswd("ada:x:1000:1001:Ada,,,:/home/ada:")
	must(t, err)
	if d := cmp.Diff(User{Name: "ada", Home: "/home/ada", Shell: "/bin/sh", UID: 1000, GID: 1001}, u); d != "" {
		t.Error(d)
	}
	for _, line := range []string{"", "ada", "ada:x:1000:1001:Ada:/home/ada", "ada:x:-1:1:::", "ada:x:1:4294967296:::",
		"ada:x:1::::", "a:b:1:1:::::"} {
		if u, err := parsePasswd(line); err == nil {
			t.Errorf("%q: read as %+v", line, u)
		}
	}
	if groups, err := parseGroups([]string{"4", "27", "x"}); err == nil {
		t.Errorf("groups %v", groups)
	}
	u, err = fromFiles("nobody")
	must(t, err)
	if u.UID == 0 || len(u.Groups) == 0 || u.Groups[0] != u.GID {
		t.Errorf("nobody is %+v", u)
	}
}

// LDAP users are in no file: getent and id know them.
func TestALoginOfTheLibrary(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755))
	}
	script("getent", `test "$1 $2 $3" = "passwd -- lda.p" || exit 2; echo "lda.p:*:70001:70002:L:/net/home/ldap:/bin/zsh"`)
	script("id", `test "$1 $2 $3" = "-G -- lda.p" || exit 1; echo "70002 70100"`)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	u, err := fromLibrary(t.Context(), "lda.p")
	must(t, err)
	want := User{Name: "lda.p", Home: "/net/home/ldap", Shell: "/bin/zsh", UID: 70001, GID: 70002,
		Groups: []uint32{70002, 70100}}
	if d := cmp.Diff(want, u); d != "" {
		t.Error(d)
	}
	script("getent", `test "$1 $2 $3" = "group -- m.l" || exit 2; echo "m.l:*:70100:lda.p"`)
	if id, err := FindGroup(t.Context(), "m.l"); err != nil || id != 70100 {
		t.Errorf("group %d, %v", id, err)
	}
	if _, err := FindGroup(t.Context(), "none"); err == nil || !strings.Contains(err.Error(), "create the group") {
		t.Errorf("no group: %v", err)
	}
	if id, err := FindGroup(t.Context(), "root"); err != nil || id != 0 {
		t.Errorf("root is group %d, %v", id, err)
	}
	script("getent", "echo broken >&2; exit 3")
	if _, err := fromLibrary(t.Context(), "lda.p"); err == nil || !strings.Contains(err.Error(), "getent passwd") {
		t.Errorf("error %v", err)
	}
}

func FuzzParsePasswd(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash")
	f.Add("::::::")
	f.Fuzz(func(t *testing.T, line string) {
		u, err := parsePasswd(line)
		if err == nil && (u.Shell == "" || !strings.HasPrefix(line, u.Name+":")) {
			t.Errorf("%q: %+v", line, u)
		}
	})
}
