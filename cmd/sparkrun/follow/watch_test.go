package follow

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
)

// q ends a view, and so does Ctrl-C; the terminal is then as it was.
func TestWatchEndsByKey(t *testing.T) {
	for _, key := range []string{"q", "\x03"} {
		keyboard, screen := apptest.PTY(t)
		var out apptest.SyncBuffer
		a := &app.App{In: screen, Out: &out, OutTTY: true, Columns: func() int { return 10 }}
		looks, again := 0, make(chan struct{}, 1)
		again <- struct{}{}
		err := Watch(t.Context(), a, again, func(context.Context) (View, error) {
			if !apptest.IsRaw(t, screen) {
				t.Error("a key has to be followed by Enter")
			}
			var err error
			if looks++; looks > 1 { // the first view is drawn
				_, err = io.WriteString(keyboard, "x"+key)
			}
			return View{Text: "a line that is long, and one with \x1b[31mcolour\nb\n"}, err
		})
		if err != nil || apptest.IsRaw(t, screen) {
			t.Errorf("%q: %v, raw %v", key, err, apptest.IsRaw(t, screen))
		}
		if want := "\x1b[Ha line tha\x1b[K\r\nb\x1b[K\x1b[J"; !strings.Contains(out.String(), want) ||
			strings.Contains(out.String(), "[31m") && !strings.Contains(out.String(), "?[31m") {
			t.Errorf("drawn %q", out.String())
		}
	}
}
