package mpi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

func FuzzServe(f *testing.F) {
	for _, text := range []string{
		"cmd=init pmi_version=1 pmi_subversion=1\ncmd=get_maxes\ncmd=put kvsname=j.1 key=a value=b\ncmd=barrier_in\ncmd=finalize\n",
		"cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\ncmd=abort exitcode=9\n",
		"cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\ncmd=get kvsname=j.1 key=a\ncmd=bar",
		"mcmd=spawn\nnprocs=2\nendcmd\n",
		"cmd=abort exitcode=3\n",
	} {
		f.Add(text, false)
		f.Add(text, true)
	}
	f.Fuzz(func(t *testing.T, text string, meets bool) {
		s := NewSpace("j.1", Mapping(1, 1), 1, 1)
		var others sync.WaitGroup
		if meets { // with a rank elsewhere, whose node passes all barriers
			s = NewSpace("j.1", Mapping(2, 1), 2, 1)
			others.Go(func() {
				for {
					f, err := s.Next(t.Context(), 0)
					if err != nil {
						return
					}
					_ = s.Pass(Barrier{Number: f.Number,
						Pairs: append(f.Pairs, launcher.Pair{Key: "theirs", Value: "=x y"}), Done: true})
				}
			})
		}
		answers := &lines{in: strings.NewReader(text)}
		err := s.NewSession().Serve(answers)
		s.Close()
		others.Wait()
		if abort := new(AbortError); err != nil && !errors.Is(err, ErrMalformed) && !errors.As(err, &abort) {
			t.Errorf("an error of no kind: %v", err)
		}
		for line := range strings.Lines(answers.out.String()) {
			if m, err := parse(strings.TrimSuffix(line, "\n")); err != nil || m.cmd == "" {
				t.Errorf("it answered %q: %v", line, err)
			}
		}
	})
}

// lines is a rank that has said all before it hears anything.
type lines struct {
	in  *strings.Reader
	out strings.Builder
}

func (l *lines) Read(b []byte) (int, error)  { return l.in.Read(b) }
func (l *lines) Write(b []byte) (int, error) { return l.out.Write(b) }

// What broken nodes bring to a meeting, in whatever order, does not make it forget or invent a
// pair, nor grow. Each four bytes are one call: who, which barrier, what.
func FuzzMeeting(f *testing.F) {
	f.Add([]byte{0, 0, 1, 'a', 0, 1, 1, 'b', 0, 2, 1, 'c', 1, 0, 1, 0, 0, 1, 2, 'd'})
	f.Add([]byte{0, 1, 1, 'a', 0, 1, 1, 'b', 0, 1, 9, 'c', 0, 1, 8, 'c', 0, 1, 7, 'c', 0, 1, 6, 'c', 0, 1, 5, 'c'})
	f.Add([]byte{1, 0, 5, 'x', 0, 1, 5, 'y', 0, 1, 4, 'y', 0, 200, 1, 'z', 0, 1, 200, '\n', 0, 1, 1, 0})
	f.Fuzz(func(t *testing.T, calls []byte) {
		const nodes = 3
		m := NewMeeting(nodes)
		gone, cancel := context.WithCancelCause(context.Background())
		cancel(errLeft) // who has to wait hangs up
		brought := map[int]map[int][]launcher.Pair{}
		whole := map[int][]launcher.Pair{} // as they were first answered
		for ; len(calls) >= 4; calls = calls[4:] {
			node, n, key := int(int8(calls[1])), int(int8(calls[2])), string(calls[3:4])
			pairs := []launcher.Pair{{Key: key, Value: fmt.Sprint(node)}}
			if calls[0]%2 == 1 {
				m.Stored(Barrier{Number: n, Pairs: pairs, Done: true})
				if n >= m.first && whole[n] == nil {
					whole[n] = pairs
				}
				continue
			}
			all, err := m.Bring(gone, node, n, pairs)
			ok := valid(pairs) == nil && node >= 0 && node < nodes && n >= 1
			if ok && whole[n] == nil && !errors.Is(err, launcher.ErrInvalid) && !errors.Is(err, ErrPast) {
				if brought[n] == nil {
					brought[n] = map[int][]launcher.Pair{}
				}
				if brought[n][node] = pairs; len(brought[n]) == nodes {
					for _, i := range slices.Sorted(maps.Keys(brought[n])) {
						whole[n] = append(whole[n], brought[n][i]...)
					}
				}
			}
			switch {
			case err == nil && !ok:
				t.Fatalf("node %d brought %q to barrier %d, and got an answer", node, key, n)
			case err == nil:
				if d := cmp.Diff(whole[n], all); d != "" {
					t.Fatalf("barrier %d (-want +got):\n%s", n, d)
				}
			case !errors.Is(err, errLeft) && !errors.Is(err, launcher.ErrInvalid) && !errors.Is(err, launcher.ErrNoBarrier):
				t.Fatalf("an error of no kind: %v", err)
			}
			if len(m.open) > maxOpen+1 { // one that rank 0's shim has told of
				t.Fatalf("%d barriers are open", len(m.open))
			}
		}
	})
}

// What the nodes of a job bring is what ranks can put, and nothing that becomes a line of its own
// where another rank gets it.
func TestStrangePairs(t *testing.T) {
	for name, p := range map[string]launcher.Pair{
		"a line": {Key: "k", Value: "v\ncmd=abort exitcode=1"}, "a key of two lines": {Key: "k\nk", Value: "v"},
		"a blank": {Key: "a b", Value: "v"},
		"no key":  {Value: "v"}, "long": {Key: "k", Value: strings.Repeat("v", MaxValue+1)},
		"a long key": {Key: strings.Repeat("k", MaxKey+1)},
		"NUL":        {Key: "k", Value: "\x00"}, "no text": {Key: "k", Value: "\xff"},
	} {
		pairs := []launcher.Pair{{Key: "good", Value: "=v 1"}, p}
		if _, err := NewMeeting(2).Bring(t.Context(), 1, 1, pairs); !errors.Is(err, ErrStrange) ||
			!errors.Is(err, launcher.ErrNoBarrier) {
			t.Errorf("%s, brought: %v", name, err)
		}
		s := NewSpace("j.1", Mapping(2, 1), 2, 1)
		go func() { _ = s.enter(t.Context()) }()
		_, err := s.Next(t.Context(), 1)
		must(t, err)
		if err := s.Pass(Barrier{Number: 1, Pairs: pairs, Done: true}); !errors.Is(err, ErrStrange) {
			t.Errorf("%s, passed: %v", name, err)
		}
		must(t, s.Pass(Barrier{Number: 1, Pairs: pairs[:1], Done: true}))
		s.Close()
	}
}
