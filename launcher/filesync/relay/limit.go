package relay

import (
	"context"
	"sync"
	"time"
)

// Limit bounds what a node takes in, of all files together. What it hands on is what
// others take in.
type Limit struct {
	mu   sync.Mutex
	rate float64 // bytes/s; 0: none
	next time.Time
}

// NewLimit makes a limit of some bytes/s; 0 is none.
func NewLimit(rate int64) *Limit { return &Limit{rate: float64(rate)} }

// Set changes the rate, also for files under way.
func (l *Limit) Set(rate int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.next = float64(rate), time.Time{}
}

// Rate is the limit that counts now.
func (l *Limit) Rate() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int64(l.rate)
}

// wait waits until n more bytes may come. What was not used is not saved up.
func (l *Limit) wait(ctx context.Context, n int) error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	if l.rate <= 0 {
		l.mu.Unlock()
		return nil
	}
	now := time.Now()
	if l.next.Before(now) {
		l.next = now
	}
	until := l.next.Sub(now)
	l.next = l.next.Add(time.Duration(float64(n) / l.rate * float64(time.Second)))
	l.mu.Unlock()
	if until <= 0 {
		return nil
	}
	return pause(ctx, until)
}
