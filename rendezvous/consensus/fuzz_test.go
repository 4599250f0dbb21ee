package consensus

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"runtime"
	"runtime/metrics"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// Bytes of a snapshot, from a damaged disk or from a peer: they are refused or
// restored, and what is restored can be kept again.
func FuzzSnapshot(f *testing.F) {
	meta := &raft.SnapshotMeta{Index: 7, Term: 2, ConfigurationIndex: 3}
	head, err := json.Marshal(headOf(meta))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(binary.BigEndian.AppendUint32([]byte(snapMagic), uint32(len(head))), head...))
	state, err := rendezvous.NewRecord().Snapshot()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append(binary.BigEndian.AppendUint64([]byte(stateMagic), 7), state...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := checkHead(bytes.NewReader(b), meta); err == nil && n > int64(len(b)) {
			t.Errorf("a head of %d bytes in %d", n, len(b))
		}
		record := rendezvous.NewRecord()
		m := &fsm{machine: simMachine{Record: record, s: &sim{states: map[uint64]string{}}}, fatal: func(error) {},
			lastLog: func() uint64 { return 0 }}
		if m.Restore(io.NopCloser(bytes.NewReader(b))) != nil {
			if m.halted == nil {
				t.Error("a state that could not be restored is gone on with")
			}
			return
		}
		if _, err := m.Snapshot(); err != nil {
			t.Errorf("what was restored cannot be kept: %v", err)
		}
	})
}

// frames are what a peer's transport sends for some requests.
func frames(f *testing.F) (out [][]byte) {
	header := raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("peer"), Addr: []byte("peer")}
	for _, send := range []func(t raft.Transport){
		func(t raft.Transport) {
			req := &raft.AppendEntriesRequest{RPCHeader: header, Term: 3, PrevLogEntry: 4,
				Entries: []*raft.Log{entry(5, 3, "data")}}
			_ = t.AppendEntries(me, me, req, &raft.AppendEntriesResponse{})
		},
		func(t raft.Transport) {
			_ = t.RequestVote(me, me, &raft.RequestVoteRequest{RPCHeader: header, Term: 3}, &raft.RequestVoteResponse{})
		},
		func(t raft.Transport) {
			_ = t.TimeoutNow(me, me, &raft.TimeoutNowRequest{RPCHeader: header}, &raft.TimeoutNowResponse{})
		},
		func(t raft.Transport) {
			req := &raft.InstallSnapshotRequest{RPCHeader: header, SnapshotVersion: 1, Term: 3, LastLogIndex: 9, Size: 4}
			_ = t.InstallSnapshot(me, me, req, &raft.InstallSnapshotResponse{}, bytes.NewReader([]byte("body")))
		},
	} {
		here, there := net.Pipe()
		tr := newTransport(Config{ID: "peer", RPCTimeout: 100 * time.Millisecond, Logger: nil, Accept: make(chan net.Conn),
			Dialer: func(context.Context, string) (net.Conn, error) { return there, nil }}.forFuzz(), newCopies())
		var sent []byte
		var reader sync.WaitGroup
		reader.Go(func() { sent, _ = io.ReadAll(here) })
		send(tr)
		tr.(raft.WithClose).Close()
		there.Close()
		reader.Wait()
		out = append(out, sent)
	}
	return out
}

func (c Config) forFuzz() Config {
	full := c
	full.Dir, full.Machine = "d", &list{}
	full, err := full.withDefaults()
	if err != nil {
		panic(err)
	}
	return full
}

// Whatever a peer sends, the transport refuses it or hands on a request: it does
// not crash and does not ask for memory that was never sent. All frames go to one
// transport, each on a connection of its own that is read on the spot: pipes
// between goroutines would make the fuzzer see new paths where there are none. One
// thread does it all: each frame goes through three goroutines, and to wake a
// thread for each is what a busy machine takes long for.
func FuzzFrames(f *testing.F) {
	for _, b := range frames(f) {
		if len(b) == 0 {
			f.Fatal("a transport that sends nothing")
		}
		f.Add(b)
	}
	// Lengths of 2 GiB of which nothing follows.
	f.Add([]byte("\x00\x81\xa7Entries\xdd\x7f\xff\xff\xff"))
	f.Add([]byte("\x00\x81\xa6Leader\xc6\x7f\xff\xff\xff"))
	f.Add([]byte("\x00\xdf\x7f\xff\xff\xff"))

	runtime.GOMAXPROCS(1)
	accept := make(chan net.Conn)
	tr := newTransport(Config{ID: me, RPCTimeout: time.Second, Accept: accept,
		Dialer: func(context.Context, string) (net.Conn, error) { return nil, errSimLost }}.forFuzz(), newCopies())
	done := make(chan struct{})
	var consumer sync.WaitGroup
	consumer.Go(func() {
		for {
			select {
			case rpc := <-tr.Consumer():
				if rpc.Reader != nil {
					_, _ = io.Copy(io.Discard, io.LimitReader(rpc.Reader, 1<<20))
				}
				rpc.Respond(&raft.AppendEntriesResponse{}, nil)
			case <-done:
				return
			}
		}
	})
	f.Cleanup(func() {
		tr.(raft.WithClose).Close()
		close(done)
		consumer.Wait()
	})
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	f.Fuzz(func(t *testing.T, b []byte) {
		metrics.Read(allocated)
		before := allocated[0].Value.Uint64()
		c := &sentBefore{Reader: bytes.NewReader(b), closed: make(chan struct{})}
		accept <- c
		<-c.closed
		metrics.Read(allocated)
		// A connection has a buffer of 256 KiB, and a length is believed up to as much.
		if got := allocated[0].Value.Uint64() - before; got > 4<<20+64*uint64(len(b)) {
			t.Errorf("%d bytes made it ask for %d", len(b), got)
		}
	})
}

// sentBefore is a connection whose peer has sent all it had and hung up.
type sentBefore struct {
	*bytes.Reader
	closed chan struct{}
	once   sync.Once
}

func (c *sentBefore) Write(b []byte) (int, error) { return len(b), nil }

func (c *sentBefore) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (*sentBefore) LocalAddr() net.Addr              { return nodeAddr(me) }
func (*sentBefore) RemoteAddr() net.Addr             { return nodeAddr("peer") }
func (*sentBefore) SetDeadline(time.Time) error      { return nil }
func (*sentBefore) SetReadDeadline(time.Time) error  { return nil }
func (*sentBefore) SetWriteDeadline(time.Time) error { return nil }
