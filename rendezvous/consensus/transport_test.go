package consensus

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// A vote is not lost to a connection that has died since raft last asked: to a server that was
// off in between, or over a route that was left.
func TestVoteOverDeadConnection(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn)
	var ours, theirs []net.Conn
	voter := newTransport(Config{ID: "voter", RPCTimeout: 10 * time.Second, Accept: accepted,
		Dialer: func(context.Context, string) (net.Conn, error) { return nil, errSimLost }}.forFuzz(), newCopies())
	defer voter.(raft.WithClose).Close()
	done := make(chan struct{})
	var answers sync.WaitGroup
	defer answers.Wait()
	defer close(done)
	answers.Go(func() {
		for {
			var rpc raft.RPC
			select {
			case rpc = <-voter.Consumer():
			case <-done:
				return
			}
			switch rpc.Command.(type) {
			case *raft.RequestPreVoteRequest:
				rpc.Respond(&raft.RequestPreVoteResponse{Granted: true}, nil)
			case *raft.RequestVoteRequest:
				rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
			}
		}
	})
	candidate := newTransport(Config{ID: "candidate", RPCTimeout: 10 * time.Second, Accept: make(chan net.Conn),
		Dialer: func(context.Context, string) (net.Conn, error) {
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				return nil, err
			}
			there, err := l.Accept()
			if err != nil {
				return nil, err
			}
			ours, theirs = append(ours, c), append(theirs, there)
			accepted <- there
			return c, nil
		}}.forFuzz(), newCopies())
	defer candidate.(raft.WithClose).Close()

	ask := func() {
		t.Helper()
		var pre raft.RequestPreVoteResponse
		err := candidate.(raft.WithPreVote).RequestPreVote("voter", "voter", &raft.RequestPreVoteRequest{}, &pre)
		if err != nil || !pre.Granted {
			t.Errorf("asked for a pre-vote: %+v, %v", pre, err)
		}
	}
	vote := func() {
		t.Helper()
		var v raft.RequestVoteResponse
		err := candidate.RequestVote("voter", "voter", &raft.RequestVoteRequest{}, &v)
		if err != nil || !v.Granted {
			t.Errorf("asked for a vote: %+v, %v", v, err)
		}
	}
	last := func(c []net.Conn) *net.TCPConn { return c[len(c)-1].(*net.TCPConn) }
	ask()
	vote()
	if len(ours) != 1 {
		t.Fatalf("%d connections for two votes, want 1", len(ours))
	}
	last(ours).Close() // its route was left
	ask()
	last(ours).Close()
	vote()
	last(theirs).Close() // the voter was ended, and runs again
	ask()
	if err := last(theirs).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	last(theirs).Close() // it was off: its kernel refuses what comes
	vote()
	if len(ours) != 5 {
		t.Errorf("%d connections, want a new one for each of 4 dead ones", len(ours))
	}
}
