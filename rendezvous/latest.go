package rendezvous

import "sync"

// Latest is a fact that changes: one part of a node writes it, others read its newest
// value and wait for the next. A slow reader misses the values in between. The zero
// Latest holds the zero value.
type Latest[T any] struct {
	mu      sync.Mutex
	value   T
	changed chan struct{} // closed by the next Store; nil: nobody waits
}

// Load gives the newest value.
func (l *Latest[T]) Load() T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value
}

// Watch gives the newest value, and a channel that the next Store closes.
func (l *Latest[T]) Watch() (T, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return l.value, l.changed
}

// Store replaces the value and wakes those who wait.
func (l *Latest[T]) Store(value T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.value = value
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
