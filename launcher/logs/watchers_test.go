package logs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
)

// instances counts this process's inotify instances.
func instances(t *testing.T) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, fd := range fds {
		if to, _ := os.Readlink(filepath.Join("/proc/self/fd", fd.Name())); to == "anon_inode:inotify" {
			n++
		}
	}
	return n
}

// Readers who follow one after the other share an inotify instance: each reads what grows in
// its own folder, and the kernel need not close one for each.
func TestReadersShareAWatcher(t *testing.T) {
	var w Watchers
	defer w.Close()
	before := instances(t)
	for range 3 {
		path := filepath.Join(lay(t, map[string]string{"": ""}), "rank-0.out")
		news, over := make(chan struct{}), false
		live := Live{Watchers: &w, News: news, Ended: func(map[int]bool) bool { return over }}
		var got strings.Builder
		grow := func(text string) {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			must(t, err)
			_, err = f.WriteString(text)
			must(t, err)
			must(t, f.Close())
		}
		grow("one ")
		must(t, Read(t.Context(), filepath.Dir(path), Request{Ranks: []int{0}, Follow: true}, live, func(c launcher.Chunk) error {
			got.Write(c.Data)
			if got.String() == "one " {
				grow("two") // inotify alone can tell it of this
			} else {
				over = true
				go func() { news <- struct{}{} }() // taken by Read
			}
			return nil
		}))
		if got.String() != "one two" {
			t.Errorf("read %q", got.String())
		}
	}
	if n := instances(t) - before; n != 1 {
		t.Errorf("%d inotify instances are open after three readers, want 1", n)
	}
	w.Close()
	if n := instances(t) - before; n != 0 {
		t.Errorf("%d are open after Close", n)
	}
}
