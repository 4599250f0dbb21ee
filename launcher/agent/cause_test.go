package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

const torchRecord = `{"message": {"message": "RuntimeError: out of luck", "extraInfo": {"py_callstack": "Traceback (most recent call last):\n  File \"boom.py\", line 3, in main\n    raise RuntimeError(\"out of luck\")\nRuntimeError: out of luck\n", "timestamp": "1771070400"}}}`

// A rank that fails leaves its last lines and its error file to be read, and the
// folder of that file goes with the attempt.
func TestAnExitIsExplained(t *testing.T) {
	n := newNode(t)
	record := n.base + "/record.json"
	must(t, os.WriteFile(record, []byte(torchRecord), 0o644))
	as := n.as(`echo one; echo two >&2; cat ` + record + ` > "$TORCHELASTIC_ERROR_FILE"; exit 3`)
	n.launch(as)
	want := launcher.Exit{Code: 3, Words: "RuntimeError: out of luck", Last: "two",
		Trace: "Traceback (most recent call last):\n  File \"boom.py\", line 3, in main\n    raise RuntimeError(\"out of luck\")\nRuntimeError: out of luck"}
	if d := cmp.Diff(&want, n.hear(launcher.Exited).Exit); d != "" {
		t.Error(d)
	}
	n.hear(launcher.Ended)
	if _, err := os.Stat(errorDir(as.Key, as.Node)); err != nil {
		t.Error(err)
	}
	n.order(launcher.Order{Forget: &as.Key})
	for n.entry(as.Key).Key == as.Key {
		must(t, n.ctx.Err())
		time.Sleep(time.Millisecond)
	}
	if _, err := os.Stat(errorDir(as.Key, as.Node)); !os.IsNotExist(err) {
		t.Errorf("the folder of the error file is left: %v", err)
	}
}

// Who knows the name of an attempt's folder, and makes it first, has no part in it: what they have put there is gone,
// and the rank's user has the folder alone.
func TestErrorFolderOfSomebodyElse(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to be other users: run it by scripts/test")
	}
	ada := login.User{Name: "ada", UID: 54321, GID: 54321, Switches: true}
	for name, plant := range map[string]func(dir, prey string) error{
		"a folder with a link": func(dir, prey string) error {
			return errors.Join(os.Mkdir(dir, 0o777), os.Symlink(prey, filepath.Join(dir, "rank-0.json")),
				os.Lchown(dir, 54322, 54322))
		},
		"a link to a folder": func(dir, prey string) error { return os.Symlink(filepath.Dir(prey), dir) },
		"an open folder": func(dir, _ string) error {
			return errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777), os.Lchown(dir, 54321, 54321))
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			as := n.as("true")
			dir, prey := errorDir(as.Key, as.Node), filepath.Join(t.TempDir(), "prey")
			t.Cleanup(func() { os.RemoveAll(dir) })
			must(t, os.WriteFile(prey, []byte("mine"), 0o644))
			must(t, plant(dir, prey))
			must(t, makeErrorDir(as, ada))
			if !ada.HasAlone(dir) {
				t.Error("the rank's user does not have the folder alone")
			}
			if found, err := os.ReadDir(dir); err != nil || name != "an open folder" && len(found) > 0 {
				t.Errorf("in it: %v, %v", found, err)
			}
			if b, err := os.ReadFile(prey); err != nil || string(b) != "mine" {
				t.Errorf("what the link led to: %q, %v", b, err)
			}
			must(t, makeErrorDir(as, ada)) // asked again, it is kept
		})
	}
}

// A link in place of the error file is not followed.
func TestErrorFileIsNoLink(t *testing.T) {
	n := newNode(t)
	secret := n.base + "/secret"
	must(t, os.WriteFile(secret, []byte(torchRecord), 0o644))
	n.launch(n.as(`ln -s ` + secret + ` "$TORCHELASTIC_ERROR_FILE"; exit 3`))
	if e := n.hear(launcher.Exited).Exit; e.Words != "" || e.Trace != "" {
		t.Errorf("the link was followed: %+v", e)
	}
	n.hear(launcher.Ended)
}

// What a rank leaves behind is ended, and told with its name.
func TestLeftBehindIsTold(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("nohup sleep 1000 & exit 0"))
	if ev := n.hear(launcher.Left); ev.Rank != 0 || ev.Text != "left 1 process behind (sleep): ended" {
		t.Errorf("told %+v", ev)
	}
	n.hear(launcher.Ended)
}
