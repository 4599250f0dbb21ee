package shim

import (
	"bufio"
	"cmp"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// server answers protocol v1. It has no state but its connections.
type server struct {
	g       *attempt
	log     *slog.Logger
	ln      net.Listener
	telling sync.RWMutex  // read-locked from each request to its answer
	bye     chan struct{} // closed when the attempt's loop has ended
}

// atSocket calls f with a path of DIR's socket that fits in sockaddr_un (108 bytes): for a
// long path it goes through the opened folder.
func atSocket(dir string, f func(path string) error) error {
	if path := filepath.Join(dir, socketName); len(path) < 104 {
		return f(path)
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return f("/proc/self/fd/" + strconv.Itoa(fd) + "/" + socketName)
}

// listen binds the socket. The caller holds the lock `alive`, so an existing socket belongs
// to a dead shim.
func listen(dir string) (ln net.Listener, err error) {
	full := filepath.Join(dir, socketName)
	if err := os.Remove(full); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	err = atSocket(dir, func(path string) error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false) // that path may be gone by then
		ln = l
		return os.Chmod(full, 0o600) // DIR is 0700: nobody else came in before
	})
	return ln, err
}

func (s *server) run() {
	for {
		c, err := s.ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors, most likely: retry
			s.log.Warn("accept", "error", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.bye:
				return
			}
			continue
		}
		go s.serve(c) // ends with the connection, at the latest with the process
	}
}

// serve answers one connection's requests, in order.
func (s *server) serve(c net.Conn) {
	defer c.Close()
	held := false
	defer func() {
		if held && s.g.cfg.DieWithClient {
			_ = s.g.do(func(answer func(error)) {
				s.g.leave = true
				s.g.end(s.g.cfg.Grace, "the client is gone")
				answer(nil)
			})
		}
	}()
	in := bufio.NewReader(c)
	for {
		line, err := readLine(in, maxRequest)
		if err != nil {
			if errors.Is(err, ErrRequest) { // the rest of the line is not worth reading
				_ = writeLine(c, response{V: protocolVersion, Error: faultOf(err)})
			}
			return
		}
		req, err := decodeRequest(line)
		held = held || err == nil && req.Op == opHold
		err = s.reply(c, req, err)
		if err != nil && !errors.As(err, new(*refusal)) || req.Op == opEvents || req.Op == opExec || req.Op == opBarrier {
			return
		}
		if req.Op == opRelease && err == nil {
			_ = s.g.do(func(answer func(error)) { s.g.released = true; answer(nil) })
			<-s.bye // the connection closes with the process: that tells the client
			select {}
		}
	}
}

// refusal is an error that was answered; any other one is the connection's.
type refusal struct{ error }

func (s *server) reply(c net.Conn, req request, err error) error {
	s.telling.RLock()
	defer s.telling.RUnlock()
	resp := response{V: protocolVersion, ID: req.ID}
	if err == nil {
		err = s.answer(c, req, &resp)
	}
	if resp.OK = err == nil; !resp.OK {
		resp.Error = faultOf(err)
		err = &refusal{err}
	}
	return cmp.Or(writeLine(c, resp), err)
}

func (s *server) answer(c net.Conn, req request, resp *response) error {
	switch req.Op {
	case opHello, opHold:
		return s.g.do(func(answer func(error)) {
			resp.Hello = &hello{s.g.cfg.Key, os.Getpid(), s.g.phase.String(), s.g.cg.v2Path()}
			answer(nil)
		})
	case opStart, opContain:
		return s.g.do(func(answer func(error)) { s.g.start(req.Ranks, answer) })
	case opStartMore, opContainMore:
		return s.g.do(func(answer func(error)) { s.g.startMore(req.Ranks, answer) })
	case opAgain:
		return s.g.do(func(answer func(error)) { s.g.startAgain(req.Ranks, answer) })
	case opEnd:
		return s.g.do(func(answer func(error)) { s.g.endFor(req.Cause, req.Sig, req.Grace); answer(nil) })
	case opLease:
		return s.g.do(func(answer func(error)) { answer(s.g.renew(req.Until, req.Cause)) })
	case opSignal:
		return s.g.do(func(answer func(error)) { answer(s.g.signal(*req.Rank, req.Sig)) })
	case opInput, opInputAt, opResize:
		var in *input
		err := s.g.do(func(answer func(error)) {
			var err error
			in, err = s.g.input(*req.Rank)
			answer(err)
		})
		switch {
		case err != nil:
			return err
		case req.Op == opResize:
			return in.resize(*req.Window)
		case req.Op == opInputAt:
			at := in.offset()
			resp.At = &at
			return nil
		}
		return in.write(req.Offset, req.Data, req.End) // waits for its reader, and the next write for this one
	case opExec:
		return s.exec(c, req, resp)
	case opExecInput, opExecSignal, opExecResize:
		return s.reachSession(req)
	case opBarrier, opBarrierLast, opBarrierPass:
		return s.barrier(c, req, resp)
	case opRelease:
		return s.g.do(func(answer func(error)) {
			if s.g.phase != ended {
				answer(ErrRunning)
				return
			}
			answer(nil)
		})
	case opEvents:
		return s.events(c, req)
	}
	return ErrUnknownOp
}

// events sends the journal from req.From on, until the last event. It is the last request
// of its connection: whatever the client sends afterwards counts as leaving. A slow reader
// delays only itself.
func (s *server) events(c net.Conn, req request) error {
	left := make(chan struct{})
	go func() { // ends with the connection, which serve closes
		_, _ = c.Read(make([]byte, 1))
		close(left)
	}()
	from := req.From
	for {
		events, more := s.g.j.since(from)
		for i := range events {
			if err := writeLine(c, response{V: protocolVersion, ID: req.ID, Event: &events[i]}); err != nil {
				return err
			}
			if events[i].Kind == Ended {
				return nil
			}
			from = events[i].Seq + 1
		}
		select {
		case <-more:
		case <-left:
			return net.ErrClosed
		}
	}
}

// close gives requests a moment to be answered, and readers to get the last event.
func (s *server) close() {
	close(s.bye)
	s.ln.Close()
	done := make(chan struct{})
	go func() { s.telling.Lock(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Second):
	}
}
