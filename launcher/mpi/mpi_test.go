package mpi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// patience is for a machine that has much else to do.
const patience = time.Minute

// talk gives a rank's end of a session, and how it ended.
func talk(t *testing.T, s *Space, rank int) (net.Conn, *Session, <-chan error) {
	t.Helper()
	theirs, ours := net.Pipe()
	t.Cleanup(func() { theirs.Close() })
	must(t, theirs.SetDeadline(time.Now().Add(patience)))
	c, ended := s.NewSession(), make(chan error, 1)
	go func() {
		defer ours.Close()
		ended <- c.Serve(ours)
	}()
	return theirs, c, ended
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The words are those of Hydra 4.0.2 (field notes of an unmodified MPICH program).
func TestConversation(t *testing.T) {
	s := NewSpace("j.1", Mapping(1, 1), 1, 1)
	conn, session, ended := talk(t, s, 0)
	in := bufio.NewReader(conn)
	for _, step := range []struct{ say, hear string }{
		{"cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"},
		{"cmd=get_maxes", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"},
		{"cmd=get_appnum", "cmd=appnum appnum=0"},
		{"cmd=get_my_kvsname", "cmd=my_kvsname kvsname=j.1"},
		{"cmd=get_universe_size", "cmd=universe_size size=1"},
		{"cmd=get kvsname=j.1 key=PMI_process_mapping", "cmd=get_result rc=0 msg=success value=(vector,(0,1,1))"},
		{"cmd=put kvsname=j.1 key=a value=b c=d e", "cmd=put_result rc=0 msg=success"},
		{"cmd=put kvsname=j.1 key=a value=again", "cmd=put_result rc=-1 msg=duplicate_key"},
		{"cmd=put kvsname=other key=x value=b", "cmd=put_result rc=-1 msg=no_such_kvs"},
		{"cmd=barrier_in", "cmd=barrier_out"},
		{"cmd=get kvsname=j.1 key=a", "cmd=get_result rc=0 msg=success value=b c=d e"},
		{"cmd=get kvsname=j.1 key=none", "cmd=get_result rc=-1 msg=key_not_found value=unknown"},
		{"cmd=lookup_name service=x", "cmd=lookup_result rc=-1 msg=not_supported"},
		{"mcmd=spawn\nnprocs=1\nexecname=./x\nendcmd", "cmd=spawn_result rc=-1"},
		{"cmd=finalize", "cmd=finalize_ack"},
	} {
		_, err := fmt.Fprintln(conn, step.say)
		must(t, err)
		got, err := in.ReadString('\n')
		must(t, err)
		if got != step.hear+"\n" {
			t.Errorf("%s\n got %s\nwant %s", step.say, got, step.hear)
		}
		if step.say == "cmd=barrier_in" && !session.Unfinished() {
			t.Error("between init and finalize it is finished")
		}
	}
	conn.Close()
	if err := <-ended; err != nil || session.Unfinished() {
		t.Errorf("after finalize and a hang-up: %v, unfinished %v", err, session.Unfinished())
	}
}

func TestRefuses(t *testing.T) {
	const begin = "cmd=init pmi_version=1 pmi_subversion=1\n"
	for name, text := range map[string]string{
		"no command":       begin + "key=value\n",
		"no words":         "hello there\n",
		"twice":            begin + "cmd=get key=a key=b\n",
		"before init":      "cmd=get_maxes\n",
		"init again":       begin + begin,
		"after finalize":   begin + "cmd=finalize\ncmd=get_maxes\n",
		"unknown":          begin + "cmd=reboot\n",
		"long line":        begin + "cmd=put key=" + strings.Repeat("x", 2*maxLine) + "\n",
		"long key":         begin + "cmd=put kvsname=j.1 key=" + strings.Repeat("x", MaxKey+1) + " value=v\n",
		"long value":       begin + "cmd=put kvsname=j.1 key=k value=" + strings.Repeat("x", MaxValue+1) + "\n",
		"no value":         begin + "cmd=put kvsname=j.1 key=k\n",
		"not UTF-8":        begin + "cmd=put kvsname=j.1 key=k value=\xff\n",
		"NUL":              begin + "cmd=get kvsname=j.1 key=\x00\n",
		"abort of nothing": begin + "cmd=abort exitcode=many\n",
		"endless spawn":    begin + "mcmd=spawn\n" + strings.Repeat("a=b\n", maxSpawn+1),
	} {
		conn, _, ended := talk(t, NewSpace("j.1", Mapping(1, 1), 1, 1), 0)
		go func() { _, _ = conn.Write([]byte(text)) }() // ends with conn
		go func() { _, _ = bufio.NewReader(conn).WriteTo(nowhere{}) }()
		if err := <-ended; !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", name, err)
		}
	}
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }

func TestAbort(t *testing.T) {
	for line, want := range map[string]int{"exitcode=7": 7, "exitcode=0": 1, "exitcode=256": 1, "exitcode=-1": 255,
		"exitcode=876203535": 876203535 & 0xff} {
		conn, _, ended := talk(t, NewSpace("j.1", Mapping(1, 1), 1, 1), 0)
		_, err := fmt.Fprintln(conn, "cmd=abort "+line)
		must(t, err)
		abort := new(AbortError)
		if err := <-ended; !errors.As(err, &abort) || abort.Status() != want {
			t.Errorf("%s: %v, want status %d", line, err, want)
		}
	}
}

// job are nodes whose barriers meet as agents carry them.
func carry(t *testing.T, ctx context.Context, m *Meeting, node int, s *Space) error {
	for {
		f, err := s.Next(ctx, 0)
		if err != nil {
			return nil //nolint:nilerr // the job is over
		}
		all, err := m.Bring(ctx, node, f.Number, f.Pairs)
		if err != nil {
			return err
		}
		done := Barrier{Number: f.Number, Pairs: all, Done: true}
		if err := s.Pass(done); err != nil {
			return err
		}
		if node == 0 {
			m.Stored(done)
		}
	}
}

// 1,000 clients that speak the protocol and nothing else, on 8 nodes, learn of each
// other, twice.
func TestThousandClients(t *testing.T) {
	const nodes, perNode, world = 8, 125, 1000
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	m := NewMeeting(nodes)
	var carriers, ranks sync.WaitGroup
	spaces := make([]*Space, nodes)
	errs := make(chan error, world+nodes)
	for n := range nodes {
		spaces[n] = NewSpace("j.1", Mapping(nodes, perNode), world, perNode)
		carriers.Go(func() { errs <- carry(t, ctx, m, n, spaces[n]) })
		for i := range perNode {
			rank := n*perNode + i
			conn, _, _ := talk(t, spaces[n], rank)
			ranks.Go(func() { errs <- speak(conn, rank, world) })
		}
	}
	ranks.Wait()
	for _, s := range spaces {
		s.Close()
	}
	carriers.Wait()
	close(errs)
	for err := range errs {
		must(t, err)
	}
}

func speak(conn net.Conn, rank, world int) error {
	c, err := NewClient(conn, rank, world)
	for round := range 2 {
		if err == nil {
			err = c.Put(fmt.Sprintf("r%d-%d", round, rank), strings.Repeat(fmt.Sprint(rank, "\n"), 300))
		}
		if err == nil {
			err = c.Barrier()
		}
		if err != nil {
			return err
		}
		for _, other := range []int{(rank + 1) % world, (rank + world/2) % world} {
			got, err := c.Get(fmt.Sprintf("r%d-%d", round, other))
			if err != nil {
				return err
			}
			if want := strings.Repeat(fmt.Sprint(other, "\n"), 300); got != want {
				return fmt.Errorf("rank %d: of rank %d: %.20q", rank, other, got)
			}
		}
	}
	return c.Finalize()
}

// The agent of rank 0's node dies when its shim has passed a barrier, and another node has
// not had the answer. That node asks the successor, which has it from the shim.
func TestMeetingSurvives(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pairs := func(k string) []launcher.Pair { return []launcher.Pair{{Key: k, Value: k}} }
	second := NewMeeting(2)
	answer := make(chan []launcher.Pair, 1)
	go func() { // asks before the successor has looked
		all, _ := second.Bring(ctx, 1, 1, pairs("b"))
		answer <- all
	}()
	want := append(pairs("a"), pairs("b")...)
	second.Stored(Barrier{Number: 1, Pairs: want, Done: true})
	if diff := cmp.Diff(want, <-answer); diff != "" {
		t.Error(diff)
	}
	// Asked again it says the same, and then all goes on.
	all, err := second.Bring(ctx, 1, 1, pairs("b"))
	must(t, err)
	if diff := cmp.Diff(want, all); diff != "" {
		t.Error(diff)
	}
	go func() { _, _ = second.Bring(ctx, 1, 2, pairs("d")) }()
	all, err = second.Bring(ctx, 0, 2, pairs("c"))
	must(t, err)
	if len(all) != 2 {
		t.Errorf("barrier 2 brought %v", all)
	}
	if _, err := second.Bring(ctx, 1, 1, nil); !errors.Is(err, ErrPast) {
		t.Errorf("barrier 1, when all are in barrier 2: %v, want ErrPast", err)
	}
	if _, err := second.Bring(ctx, 2, 3, nil); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("node 2 of 2: %v", err)
	}
}

func TestPassOutOfTurn(t *testing.T) {
	s := NewSpace("j.1", Mapping(2, 1), 2, 1)
	if err := s.Pass(Barrier{Number: 1}); err == nil {
		t.Error("a barrier is passed that the local rank is not in")
	}
	s.Close()
	if _, err := s.Next(context.Background(), 0); !errors.Is(err, ErrClosed) {
		t.Errorf("Next after Close: %v", err)
	}
}

// What a node's ranks put before a barrier goes in one message, whatever bytes a value has.
func TestBarrierFitsItsMessage(t *testing.T) {
	s := NewSpace("j.1", Mapping(2, 1), 2, 1)
	var err error
	for i := 0; err == nil; i++ { // "\x01" is six bytes in JSON
		err = s.put(launcher.Pair{Key: fmt.Sprint(i), Value: strings.Repeat("\x01", MaxValue)})
	}
	if !errors.Is(err, ErrMalformed) {
		t.Errorf("too many puts: %v", err)
	}
	go func() { _ = s.enter(t.Context()) }() // until Close
	defer s.Close()
	f, err := s.Next(t.Context(), 0)
	must(t, err)
	text, err := json.Marshal(f)
	must(t, err)
	if len(text) > MaxBarrier+1000 || len(text) < MaxBarrier/2 {
		t.Errorf("a barrier of %d bytes, want at most %d", len(text), MaxBarrier)
	}
}

// more than one barrier brings is more than a space holds: all nodes are told.
func TestSpaceIsBounded(t *testing.T) {
	var pairs []launcher.Pair
	for i, size := 0, 0; size < MaxBarrier; i++ {
		pairs = append(pairs, launcher.Pair{Key: fmt.Sprint(i), Value: strings.Repeat("v", MaxValue)})
		size += pairs[i].Size()
	}
	const nodes = MaxSpace/MaxBarrier + 1
	m := NewMeeting(nodes)
	errs := make(chan error, nodes)
	for i := range nodes {
		go func() {
			_, err := m.Bring(t.Context(), i, 1, pairs)
			errs <- err
		}()
	}
	for range nodes {
		if err := <-errs; !errors.Is(err, ErrTooMuch) || !errors.Is(err, launcher.ErrNoBarrier) {
			t.Errorf("a barrier that brings too much: %v", err)
		}
	}
	// And so are they where it comes barrier by barrier.
	s := NewSpace("j.1", Mapping(2, 1), 2, 1)
	defer s.Close()
	var err error
	for n := 1; err == nil; n++ {
		if n > nodes {
			t.Fatal("a space takes whatever barriers bring")
		}
		go func() { _ = s.enter(t.Context()) }()
		if _, err := s.Next(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		for i := range pairs {
			pairs[i].Key = fmt.Sprint(n, "-", i)
		}
		err = s.Pass(Barrier{Number: n, Pairs: pairs, Done: true})
	}
	if !errors.Is(err, ErrTooMuch) {
		t.Errorf("a space that is full: %v", err)
	}
}
