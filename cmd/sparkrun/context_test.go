package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// onRemoteClient runs a command line with these variables beside HOME, and gives what it said.
func onRemoteClient(t *testing.T, home string, environ []string, line ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	a := &app.App{In: strings.NewReader(""), Out: &o, Err: &e, Environ: append([]string{"HOME=" + home}, environ...),
		Columns: func() int { return 100 }}
	a.Dial = a.DialChosen
	a.DialHere = app.DialAgent
	code = execute(t.Context(), a, line)
	return code, o.String(), e.String()
}

func makeContext(t *testing.T, home, name string) {
	t.Helper()
	dir := filepath.Join(home, ".config", "sparkrun", "contexts", name)
	if err := trust.SaveMembers(dir,
		[]byte(`{"cluster":"c-`+name+`","user":"ada","members":[{"id":"x","host":"spark1","addr":"127.0.0.1:1"}]}`)); err != nil {
		t.Fatal(err)
	}
}

// --context counts more than the variable, which counts more than what use has named.
func TestWhichContext(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"lab", "home"} {
		makeContext(t, home, name)
	}
	t.Setenv("SPARKRUN_SOCKET", filepath.Join(home, "nobody.sock"))
	steps := []struct {
		environ []string
		line    string
		code    int
		out     string // all of it
		err     string // part of it
	}{
		{nil, "context current", 0, "local\n", ""},
		{nil, "context use lab", 0, "", ""},
		{nil, "context current", 0, "lab\n", ""},
		{[]string{"SPARKRUN_CONTEXT=home"}, "context current", 0, "home\n", ""},
		{[]string{"SPARKRUN_CONTEXT=local"}, "context current", 0, "local\n", ""},
		{[]string{"SPARKRUN_CONTEXT=home"}, "--context lab context current", 0, "lab\n", ""},
		{nil, "token create", 1, "", "no member of the cluster of context lab"},
		{nil, "logout local", 2, "", "no login"},
		{nil, "context list", 0, "    CONTEXT   USER   CLUSTER   MACHINES\n    home      ada    c-home    1\n*   lab       ada    c-lab     1\n", ""},
		{nil, "--context nonesuch ps", 1, "", `context "nonesuch": no such context: there are home, lab, and local`},
		{[]string{"SPARKRUN_CONTEXT=nonesuch"}, "ps", 1, "", "no such context"},
		{nil, "--context ../../etc ps", 1, "", "no such context"},
		{[]string{"SPARKRUN_CONTEXT=gone"}, "context use lab", 0, "", ""},
		{[]string{"SPARKRUN_CONTEXT=gone"}, "version", 0, "sparkrun \n", ""},
		{nil, "context use nonesuch", 1, "", "no such context"},
		{nil, "--context lab agent", 2, "", "sparkrun agent is about this machine"},
		{nil, "--context lab join 10.0.0.1", 2, "", "sparkrun join is about this machine"},
		{nil, "--context lab token create", 2, "", "done on a machine of the cluster"},
		{nil, "--context lab launch --standalone exec -- true", 125, "", "give one of them"},
		{nil, "ps", 1, "", "client.pem"}, // the context is used: its key is what is missing
		{nil, "context remove lab", 0, "", ""},
		{nil, "context current", 0, "local\n", ""},
		{nil, "context remove ..", 2, "", "want a name"},
		{nil, "login spark1 --context local", 2, "", "other than local"},
		{nil, "login spark1 --context home", 1, "", "logout home"},
	}
	for _, s := range steps {
		code, out, errs := onRemoteClient(t, home, s.environ, strings.Fields(s.line)...)
		if code != s.code || out != s.out || !strings.Contains(errs, s.err) {
			t.Errorf("%v sparkrun %s: exit %d, stdout %q, stderr %q; want %d, %q and %q", s.environ, s.line, code, out,
				errs, s.code, s.out, s.err)
		}
	}
	if _, err := os.Stat(filepath.Join(home, ".config", "sparkrun", "contexts", "lab")); !os.IsNotExist(err) {
		t.Errorf("the removed context's folder: %v", err)
	}
}

// A folder that somebody has edited is told of with what mends it, which works all the same; and root leaves no key in another's home.
func TestBrokenContext(t *testing.T) {
	home := t.TempDir()
	makeContext(t, home, "lab")
	roll := filepath.Join(home, ".config", "sparkrun", "contexts", "lab", "roll.json")
	for name, spoil := range map[string]func() error{
		"no JSON":        func() error { return os.WriteFile(roll, []byte("{"), 0o600) },
		"open to others": func() error { return os.Chmod(roll, 0o644) },
		"a link":         func() error { return errors.Join(os.Remove(roll), os.Symlink("/dev/zero", roll)) },
		"gone":           func() error { return os.Remove(roll) },
	} {
		os.Remove(roll)
		makeContext(t, home, "lab")
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := onRemoteClient(t, home, nil, "--context", "lab", "ps"); code != app.ExitFailure ||
			!strings.Contains(errs, filepath.Dir(roll)) || !strings.Contains(errs, "sparkrun logout lab") {
			t.Errorf("%s: ps: exit %d, %s", name, code, errs)
		}
		if code, _, errs := onRemoteClient(t, home, nil, "context", "list"); code != 0 {
			t.Errorf("%s: context list: exit %d, %s", name, code, errs)
		}
	}
	makeContext(t, home, "two")
	if code, _, errs := onRemoteClient(t, home, nil, "context", "use", "lab"); code != 0 {
		t.Error(errs)
	}
	if code, out, errs := onRemoteClient(t, home, nil, "logout", "lab"); code != 0 || !strings.Contains(out, "is gone") ||
		!strings.Contains(errs, "was not told") || !strings.Contains(errs, "chooses another cluster: two") {
		t.Errorf("logout: exit %d, %s%s", code, out, errs)
	}
	for _, bad := range []string{"../../etc\n", "\x1b[2J\n", strings.Repeat("x", 1<<16)} {
		if err := os.WriteFile(filepath.Join(home, ".config", "sparkrun", "current"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := onRemoteClient(t, home, nil, "ps"); code != app.ExitFailure ||
			!strings.Contains(errs, "no such context") || strings.Contains(errs, "\x1b") {
			t.Errorf("current %.20q: exit %d, %.200s", bad, code, errs)
		}
	}
	if os.Geteuid() == 0 { // else it is another's than root's anyway
		if err := os.Chown(home, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	theirs := app.Contexts{Dir: filepath.Join(home, "x", "sparkrun")}
	if err := theirs.MayWrite(0); err == nil || !strings.Contains(err.Error(), "without sudo") {
		t.Errorf("root in another's home: %v", err)
	}
	if err := errors.Join(theirs.MayWrite(65534), app.Contexts{Dir: "/no-such-home/sparkrun"}.MayWrite(0)); err != nil {
		t.Error(err)
	}
}
