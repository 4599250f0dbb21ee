package shim

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// fencing is a shim's server over the space of one rank of two, and nothing else.
type fencing struct {
	*server
	rank *bufio.Reader
	say  net.Conn
}

func newFencing(t *testing.T) *fencing {
	t.Helper()
	a := &attempt{in: make(chan func()), gone: make(chan struct{}), space: mpi.NewSpace("j.1", mpi.Mapping(2, 1), 2, 1)}
	loop := make(chan struct{})
	go func() {
		defer close(loop)
		for f := range a.in {
			f()
		}
	}()
	theirs, ours := net.Pipe()
	must(t, theirs.SetDeadline(time.Now().Add(time.Minute)))
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer ours.Close()
		_ = a.space.NewSession().Serve(ours)
	}()
	t.Cleanup(func() {
		a.space.Close()
		theirs.Close()
		<-served
		close(a.in)
		<-loop
	})
	return &fencing{server: &server{g: a, log: slog.New(slog.DiscardHandler)}, rank: bufio.NewReader(theirs), say: theirs}
}

// tell has the rank say something, and hear tells what it is answered.
func (f *fencing) tell(t *testing.T, line string) {
	t.Helper()
	_, err := io.WriteString(f.say, line+"\n")
	must(t, err)
}

func (f *fencing) hear(t *testing.T) string {
	t.Helper()
	line, err := f.rank.ReadString('\n')
	must(t, err)
	return strings.TrimSuffix(line, "\n")
}

// ask is one connection with one request; waits: it may have no answer, and is hung up on.
func (f *fencing) ask(t *testing.T, line string, waits bool) (r response, answered bool) {
	t.Helper()
	theirs, ours := net.Pipe()
	must(t, theirs.SetDeadline(time.Now().Add(time.Minute)))
	served := make(chan struct{})
	go func() { f.serve(ours); close(served) }()
	defer func() { theirs.Close(); <-served }()
	_, err := io.WriteString(theirs, line+"\n")
	must(t, err)
	if waits {
		return r, false
	}
	text, err := bufio.NewReader(theirs).ReadString('\n')
	must(t, err)
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.OK == (r.Error != nil) {
		t.Fatalf("%s is answered %q: %v", line, text, err)
	}
	return r, true
}

// Whatever an agent asks about barriers, a rank that waits in one goes on once it is passed, and what
// it gets then is one line, of PMI's.
func FuzzBarrierOps(f *testing.F) {
	for _, s := range []string{
		`{"v":1,"id":1,"op":"fence"}`, `{"v":1,"id":1,"op":"fence-last"}`, `{"v":1,"op":"fence-pass"}`,
		`{"v":1,"op":"fence-pass","fence":{"number":0}}`,
		`{"v":1,"op":"fence-pass","fence":{"number":1,"pairs":[{"k":"a","v":"b"}],"done":true}}`,
		`{"v":1,"op":"fence-pass","fence":{"number":1,"pairs":[{"k":"a","v":"b\ncmd=finalize_ack"},{"k":"mine","v":"theirs"}]}}`,
		`{"v":1,"op":"fence-pass","fence":{"number":2,"pairs":null}}`,
		`{"v":1,"op":"fence-pass","fence":{"number":-1}}`, `{"v":1,"op":"fence-pass","fence":[]}`,
		`{"v":1,"op":"fence-pass","fence":{"number":1,"pairs":[{"k":"PMI_process_mapping","v":"x"},{}]}}`,
		`{"v":1,"op":"fence","fence":{"number":9}}`, `{"op":"fence`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.Contains(line, "\n") {
			return // two requests
		}
		req, err := decodeRequest([]byte(line))
		if err == nil && req.Op != opBarrier && req.Op != opBarrierLast && req.Op != opBarrierPass {
			return
		}
		s := newFencing(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for _, step := range []string{"init pmi_version=1 pmi_subversion=1", "put kvsname=j.1 key=mine value=own"} {
			s.tell(t, "cmd="+step)
			s.hear(t)
		}
		s.tell(t, "cmd=barrier_in")
		if _, err := s.g.space.Next(ctx, 1); err != nil {
			t.Fatal(err)
		}
		got, _ := s.ask(t, line, false)
		if err != nil && got.OK {
			t.Fatalf("%s is taken: %v", line, err)
		}
		passed := got.OK && req.Op == opBarrierPass
		if over := s.g.space.Last().Number; over != 0 && !passed || over > 1 {
			t.Fatalf("%s is answered %+v, and %d barriers are over", line, got, over)
		}
		if honest, _ := s.ask(t, `{"v":1,"op":"fence-pass","fence":{"number":1,"pairs":[{"k":"peer","v":"its"}],"done":true}}`, false); !honest.OK {
			t.Fatalf("a barrier that all are in, after %s: %+v", line, honest.Error)
		}
		if line := s.hear(t); line != "cmd=barrier_out" {
			t.Fatalf("the rank hears %q", line)
		}
		want := map[string]string{"mine": "own", "PMI_process_mapping": mpi.Mapping(2, 1)}
		keys := []string{"mine", "PMI_process_mapping"}
		if !passed {
			keys, want["peer"] = append(keys, "peer"), "its"
		} else if req.Barrier != nil {
			for _, p := range req.Barrier.Pairs {
				keys = append(keys, p.Key)
				if _, known := want[p.Key]; !known {
					want[p.Key] = p.Value
				}
			}
		}
		for _, k := range keys {
			s.tell(t, "cmd=get kvsname=j.1 key="+k)
			if got := s.hear(t); got != "cmd=get_result rc=0 msg=success value="+want[k] {
				t.Fatalf("get of %q: %q, want %q", k, got, want[k])
			}
		}
		s.ask(t, `{"v":1,"op":"fence"}`, true) // whoever hangs up there is not waited for
	})
}

// A barrier that is asked for before the ranks are there, twice, and by somebody who goes.
func TestBarrierIsAskedForTwice(t *testing.T) {
	s := newFencing(t)
	s.ask(t, `{"v":1,"op":"fence"}`, true)
	s.tell(t, "cmd=init pmi_version=1 pmi_subversion=1")
	s.hear(t)
	s.tell(t, "cmd=put kvsname=j.1 key=k value=v")
	s.hear(t)
	s.tell(t, "cmd=barrier_in")
	for range 2 {
		want := mpi.Barrier{Number: 1, Pairs: []launcher.Pair{{Key: "k", Value: "v"}}}
		r, _ := s.ask(t, `{"v":1,"op":"fence"}`, false)
		if d := cmp.Diff(&want, r.Barrier); d != "" {
			t.Errorf("asked for twice (-want +got):\n%s", d)
		}
	}
	pass := func(n int, p ...launcher.Pair) response {
		text, err := json.Marshal(mpi.Barrier{Number: n, Pairs: p, Done: true})
		must(t, err)
		r, _ := s.ask(t, fmt.Sprintf(`{"v":1,"op":"fence-pass","fence":%s}`, text), false)
		return r
	}
	if r := pass(2); r.OK || r.Error.Code != "refused" {
		t.Errorf("the barrier after it: %+v", r)
	}
	if r := pass(1, launcher.Pair{Key: "k2", Value: "two\nlines"}); r.OK || r.Error.Code != "no-fence" {
		t.Errorf("pairs that no rank put: %+v", r.Error)
	}
	if r := pass(1, launcher.Pair{Key: "k2", Value: "v2"}); !r.OK {
		t.Errorf("its end: %+v", r.Error)
	}
	if r := pass(1); !r.OK {
		t.Errorf("its end again: %+v", r.Error)
	}
	if line := s.hear(t); line != "cmd=barrier_out" {
		t.Errorf("the rank hears %q", line)
	}
}
