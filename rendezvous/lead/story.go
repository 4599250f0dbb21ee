package lead

import (
	"context"
	"sync"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// story is what followers of a job are told: it only grows, and a slow
// follower slows nobody.
type story struct {
	mu   sync.Mutex
	told []rendezvous.Progress
	more chan struct{} // closed and replaced by tell
	err  error         // why there will be no end to tell
}

func newStory() *story { return &story{more: make(chan struct{})} }

func (s *story) tell(p rendezvous.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, p)
	close(s.more)
	s.more = make(chan struct{})
}

// breakOff ends a story that never came to be: its job could not be recorded.
func (s *story) breakOff(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	close(s.more)
	s.more = make(chan struct{})
}

func (s *story) since(n int) ([]rendezvous.Progress, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.told[n:], s.more, s.err
}

// follow tells fn everything up to and including StepEnded.
func (s *story) follow(ctx, leadership context.Context, fn func(rendezvous.Progress) error) error {
	n := 0
	for {
		news, more, broken := s.since(n)
		n += len(news)
		for _, p := range news {
			if err := fn(p); err != nil {
				return err
			}
			if p.Step == rendezvous.StepEnded {
				return nil
			}
		}
		if broken != nil {
			return broken
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		case <-leadership.Done():
			return ErrOver
		}
	}
}
