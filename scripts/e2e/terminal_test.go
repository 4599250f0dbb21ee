package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

// A person at a terminal whose window changes, who leaves by the detach keys or by closing it, and comes back elsewhere.
func testWindow(t *testing.T, l *lab) {
	person, err := filepath.Abs("testdata/terminal.py")
	if err != nil {
		t.Fatal(err)
	}
	at := func(host string, code int, steps []string, command ...string) {
		t.Helper()
		if r := l.on(host, append(append([]string{person}, append(steps, "--")...), command...)...); r.code != code {
			t.Errorf("want exit %d: %s", code, r)
		}
	}
	size := func(want string) []string { // a new one is on its way beside what is typed
		return []string{`ask:stty size; echo so$((6*7))\r=` + want, "see:so42"}
	}
	steps := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	at("spark1", 0, steps([]string{"see:# "}, size("24 80"), []string{"size:50,132"}, size("50 132"),
		[]string{`type:sleep 300\r`, `see:sleep 300`, `type:\x03`, `see:# `, `type:keep=mine\x10\x11`, "see:detached"}),
		"sparkrun", "launch", "-t", "--name", "window", "exec", "--on", "spark2", "--", "sh", "-i")
	at("spark3", 129, steps([]string{"size:20,60", `see:keep=mine`, `type:\r`, "see:# "}, size("20 60"), []string{"size:21,61"}, size("21 61"), []string{"hangup"}),
		"sparkrun", "attach", "window")
	at("spark2", 5, steps([]string{`see:so42`, `type:echo $keep-; exit 5\r`, "see:mine-"}),
		"sparkrun", "attach", "--detach-keys", "ctrl-a,x", "window")

	// A shell's own job control: what Ctrl-Z stops goes on by fg.
	at("spark1", 0, []string{"see:# ", `type:sparkrun launch --name paused exec --on spark2,spark3 -- sh -c 'while :; do echo on$((6*7)); sleep 0.2; done'\r`,
		"see:on42", `type:\x1a`, "see:Stopped", `ask:sparkrun ps paused\r=suspended on spark2,spark3`, `type:fg\r`, "see:on42", "see:on42",
		`type:\x03`, "see:stopped", "see:# ", `type:exit 0\r`}, "bash", "--norc", "-i")
	if out := l.on("spark1", "sparkrun", "ps").must(t).out; strings.Contains(out, "window") || strings.Contains(out, "paused") {
		t.Errorf("left: %s", out)
	}
}
