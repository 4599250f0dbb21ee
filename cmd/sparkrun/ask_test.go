package main

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
)

// What is asked for secretly is not shown to the quickest either: the terminal is silent before the prompt, and as before after it.
func TestSecretIsNeverShown(t *testing.T) {
	keyboard, screen := apptest.PTY(t)
	echoes := func() bool {
		m, err := unix.IoctlGetTermios(int(screen.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return m.Lflag&unix.ECHO != 0
	}
	asked := false
	a := &app.App{In: screen, Err: apptest.WriterFunc(func(p []byte) (int, error) {
		if !asked {
			asked = true
			if echoes() {
				t.Error("the terminal shows what is typed when the prompt comes")
			}
			if _, err := keyboard.WriteString("open sesame\n"); err != nil {
				t.Error(err)
			}
		}
		return len(p), nil
	})}
	if text, err := a.AskSecret(t.Context(), "token: "); err != nil || string(text) != "open sesame" {
		t.Errorf("%q, %v", text, err)
	}
	if !asked || !echoes() {
		t.Errorf("asked %v, and the terminal shows what is typed: %v", asked, echoes())
	}
}
