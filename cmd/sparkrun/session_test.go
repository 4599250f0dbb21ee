package main

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// session is a follower with everything around it.
type session struct {
	*follower
	out, err *syncBuffer
	said     []string
	mu       sync.Mutex
	signal   chan os.Signal
	begun    time.Time
}

func newSession(g gangs) *session {
	s := &session{out: &syncBuffer{}, err: &syncBuffer{}, signal: make(chan os.Signal, 3), begun: time.Now()}
	s.follower = &follower{
		gangs: g, out: newPrinter(s.out, s.err), signals: s.signal, leader: "spark1",
		spec: launcher.Spec{ID: "job2345678", Grace: 10 * time.Second},
		say: func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.said = append(s.said, line)
		},
	}
	s.follower.out.note = s.say
	return s
}

func (s *session) want(t *testing.T, code, wantCode int, err error, out string, said ...string) {
	t.Helper()
	if err != nil {
		t.Errorf("error %v", err)
	}
	if code != wantCode {
		t.Errorf("exit code %d, want %d", code, wantCode)
	}
	if diff := cmp.Diff(out, s.out.String()); diff != "" {
		t.Errorf("output -want +got:\n%s", diff)
	}
	s.wantSaid(t, said...)
}

func (s *session) wantSaid(t *testing.T, said ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if diff := cmp.Diff(said, s.said); diff != "" {
		t.Errorf("said -want +got:\n%s", diff)
	}
}

func (f *follower) outText() string { return f.out.out.(*syncBuffer).String() }
