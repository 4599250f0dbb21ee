package logs

import (
	"sync"

	"github.com/fsnotify/fsnotify"
)

// Watchers lends inotify instances to readers and keeps one of those that come back: when
// one is closed the kernel waits for a grace period (fsnotify_wait_marks_destroyed,
// fs/notify/mark.c), 5 to 20 ms that the end of a launch would wait for. The zero value is
// ready.
type Watchers struct {
	mu     sync.Mutex
	idle   *fsnotify.Watcher
	closed bool
}

func (w *Watchers) take() (*fsnotify.Watcher, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f := w.idle; f != nil {
		w.idle = nil
		return f, nil
	}
	return fsnotify.NewWatcher()
}

// putBack takes an instance back that watches nothing any more. What it told meanwhile is
// dropped.
func (w *Watchers) putBack(f *fsnotify.Watcher) {
	for _, dir := range f.WatchList() {
		_ = f.Remove(dir) // its folder may be gone, and the watch with it
	}
	for told := true; told; {
		select {
		case <-f.Events:
		case <-f.Errors: //nolint:errcheck // of what nobody watches
		default:
			told = false
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.idle != nil {
		f.Close()
		return
	}
	w.idle = f
}

// Close closes the one that is kept, and later those that come back.
func (w *Watchers) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.idle != nil {
		w.idle.Close()
		w.idle = nil
	}
}
