package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// onLaptop runs a command line with these variables beside HOME, and gives what it said.
func onLaptop(t *testing.T, home string, environ []string, line ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	a := &app{in: strings.NewReader(""), out: &o, err: &e, environ: append([]string{"HOME=" + home}, environ...), columns: func() int { return 100 }}
	a.dial = a.dialChosen
	a.dialHere = dialAgent
	code = a.run(t.Context(), line)
	return code, o.String(), e.String()
}

func makeContext(t *testing.T, home, name string) {
	t.Helper()
	dir := filepath.Join(home, ".config", "sparkrun", "contexts", name)
	if err := trust.SaveRoll(dir, []byte(`{"cluster":"c-`+name+`","user":"ada","members":[{"id":"x","host":"spark1","addr":"127.0.0.1:1"}]}`)); err != nil {
		t.Fatal(err)
	}
}

// --context counts more than the variable, which counts more than what use has named.
func TestWhichContext(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"lab", "home"} {
		makeContext(t, home, name)
	}
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
		code, out, errs := onLaptop(t, home, s.environ, strings.Fields(s.line)...)
		if code != s.code || out != s.out || !strings.Contains(errs, s.err) {
			t.Errorf("%v sparkrun %s: exit %d, stdout %q, stderr %q; want %d, %q and %q", s.environ, s.line, code, out, errs, s.code, s.out, s.err)
		}
	}
	if _, err := os.Stat(filepath.Join(home, ".config", "sparkrun", "contexts", "lab")); !os.IsNotExist(err) {
		t.Errorf("the removed context's folder: %v", err)
	}
}
