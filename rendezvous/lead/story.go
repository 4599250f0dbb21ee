package lead

import (
	"context"
	"slices"
	"sort"
	"sync"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// story is what followers of a job are told. A slow follower slows nobody. Of what only the
// latest word counts - what is waited for, how far a pull has come, whether a node is there -
// whoever follows later, or slowly, hears that alone: a job may wait, and live, for months.
type story struct {
	mu   sync.Mutex
	told []word
	last int           // number of the latest word
	more chan struct{} // closed and replaced by tell
	err  error         // why there will be no end to tell
}

// word is one step of the story, by its number.
type word struct {
	n     int
	topic topic
	p     rendezvous.Progress
}

// topic is what a later word takes the place of an earlier one about; zero: nothing does.
type topic struct {
	step rendezvous.Step
	host string
}

func topicOf(p rendezvous.Progress) topic {
	switch p.Step {
	case rendezvous.StepWaiting:
		return topic{step: p.Step}
	case rendezvous.StepPreparing:
		return topic{step: p.Step, host: p.Host}
	case rendezvous.StepNodeDown, rendezvous.StepNodeUp:
		return topic{step: rendezvous.StepNodeDown, host: p.Host}
	case rendezvous.StepStage:
		if p.Host != "" { // of one of its machines; that a stage is ready is said once
			return topic{step: p.Step, host: p.Host}
		}
	}
	return topic{}
}

// maxStory bounds the words that are kept: a service may be tried anew for years, and who
// follows it late hears how it does now.
const maxStory = 4096

func newStory() *story { return &story{more: make(chan struct{})} }

func (s *story) tell(p rendezvous.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	about := topicOf(p)
	if about != (topic{}) { // into a slice of its own: followers read the old one
		s.told = slices.DeleteFunc(slices.Clone(s.told), func(w word) bool { return w.topic == about })
	}
	s.last++
	if most := len(s.told) - maxStory; most > 0 { // the oldest go, a good many at a time
		s.told = slices.Clone(s.told[most+maxStory/4:])
	}
	s.told = append(s.told, word{s.last, about, p})
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

// since gives what was told after the word of a number.
func (s *story) since(n int) ([]word, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := sort.Search(len(s.told), func(i int) bool { return s.told[i].n > n })
	return s.told[i:], s.more, s.err
}

// follow tells fn everything up to and including StepEnded.
func (s *story) follow(ctx, leadership context.Context, fn func(rendezvous.Progress) error) error {
	n := 0
	for {
		news, more, broken := s.since(n)
		for _, w := range news {
			n = w.n
			if err := fn(w.p); err != nil {
				return err
			}
			if w.p.Step == rendezvous.StepEnded {
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
