package follow

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
)

// session is a follower with everything around it.
type session struct {
	*Follower
	out, err *apptest.SyncBuffer
	said     []string
	mu       sync.Mutex
	signal   chan os.Signal
	begun    time.Time
}

func newSession(parts ...apptest.Answers) *session {
	s := &session{out: &apptest.SyncBuffer{}, err: &apptest.SyncBuffer{}, signal: make(chan os.Signal, 3),
		begun: time.Now()}
	s.Follower = &Follower{
		Agent: apptest.Agent(parts...), Out: NewPrinter(s.out, s.err), Signals: s.signal, Leader: "spark1",
		Spec: launcher.Spec{ID: "job2345678", Grace: 10 * time.Second},
		Say: func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.said = append(s.said, line)
		},
	}
	s.Follower.Out.Note = s.Say
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

func (f *Follower) outText() string { return f.Out.out.(*apptest.SyncBuffer).String() }
