package shim

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// guest is a command that somebody runs in a rank's place, beside it: in its
// cgroup or its container, as its user, with its environment. It is no rank: nobody counts it,
// its output goes to who asked for it and to no file, and it ends with the
// connection that it was asked for on, or with the last rank. But for the fields
// above done, which never change once arrived was called, it is the loop's.
type guest struct {
	name string
	rank Rank // what is exec'd
	plumbing
	exit *launcher.Exit // may be read once done is closed
	done chan struct{}

	pid    int
	killAt time.Time // zero: nobody has told it to end
}

// invite begins to exec a guest; the answer follows its exec, or what kept it
// from that.
func (g *gang) invite(req request, to [2]sink, answer func(error)) *guest {
	host := g.rankOf(*req.Rank)
	switch {
	case g.phase >= ending:
		answer(fmt.Errorf("rank %d: %w: it is being ended", *req.Rank, ErrNoRank))
		return nil
	case host == nil:
		answer(fmt.Errorf("rank %d: %w", *req.Rank, ErrNoRank))
		return nil
	case g.guests[req.Guest] != nil:
		answer(fmt.Errorf("%w: a guest %q is here already", ErrRefused, req.Guest))
		return nil
	}
	r := host.Rank
	r.PMI = nil // its seat is taken
	if r.Box != nil {
		r.Box = &Box{Socket: r.Box.Socket, Spec: r.Box.Spec, guest: true}
	}
	r.Argv, r.Env, r.Stdin, r.TTY = untexts(req.Argv), with(r.Env, untexts(req.Env)), req.Stdin, req.TTY
	gs := &guest{name: req.Guest, rank: r, done: make(chan struct{})}
	g.guests[gs.name] = gs
	g.protect(false)
	g.coming++
	go func() { // its join is coming; an exec can hang on a dead disk
		b := bear(r, g.cfg, g.cg, g.trace.Mark, to)
		g.in <- func() { answer(g.arrived(gs, b)) }
	}()
	return gs
}

// rankOf finds a rank that runs.
func (g *gang) rankOf(n int) *rank {
	for _, r := range g.ranks {
		if r.Rank.Rank == n && r.running() {
			return r
		}
	}
	return nil
}

// with gives an environment in which the settings of more stand in place of
// those of the same names.
func with(env, more []string) []string {
	out := make([]string, 0, len(env)+len(more))
next:
	for _, v := range env {
		name, _, _ := strings.Cut(v, "=")
		for _, m := range more {
			if strings.HasPrefix(m, name+"=") {
				continue next
			}
		}
		out = append(out, v)
	}
	return append(out, more...)
}

// arrived enters a guest's process, which may be dead already.
func (g *gang) arrived(gs *guest, b born) error {
	g.coming--
	defer g.allBorn()
	if b.err != nil {
		delete(g.guests, gs.name)
		return b.err
	}
	gs.pid, gs.plumbing = b.pid, b.plumbing
	g.log.Info("guest", "rank", gs.rank.Rank, "pid", gs.pid) // not its command, which may hold a secret
	if d, dead := g.early[gs.pid]; dead {
		delete(g.early, gs.pid)
		g.departed(gs, d.exit)
		return nil
	}
	g.byGuest[gs.pid] = gs
	switch g.phase { // it slipped through while the gang was being ended
	case ending:
		g.dismiss(gs, g.killAt)
	case killing:
		g.died = true
	}
	return nil
}

// allBorn does what has waited for the last fork to be told of.
func (g *gang) allBorn() {
	if g.unborn == 0 && g.coming == 0 {
		g.protect(true)
		clear(g.early)
	}
}

// departed is a guest's waitpid. What it left in the background stays as long
// as a rank runs.
func (g *gang) departed(gs *guest, exit *launcher.Exit) {
	delete(g.byGuest, gs.pid)
	delete(g.guests, gs.name)
	if gs.in != nil {
		gs.in.close()
	}
	gs.exit = exit
	close(gs.done)
}

// dismiss tells a guest to end: TERM, and to one with a terminal HUP, as its
// window's closing would, since an interactive shell takes no TERM. KILL
// follows at killAt.
func (g *gang) dismiss(gs *guest, killAt time.Time) {
	if g.byGuest[gs.pid] != gs {
		return
	}
	if gs.killAt.IsZero() {
		family := gs.family()
		for _, p := range family {
			if gs.rank.TTY != nil {
				_ = unix.Kill(p.PID, unix.SIGHUP)
			}
		}
		g.termEach(family)
	}
	if gs.killAt.IsZero() || killAt.Before(gs.killAt) {
		gs.killAt = killAt
	}
}

// family is a guest and what comes from it, as far as that can be told while
// the guest lives: its session, and everybody below.
func (gs *guest) family() []proc.Stat {
	procs, _ := proc.Here.All()
	found := below(procs, []int{gs.pid}, nil)
	has := map[int]bool{}
	for _, p := range found {
		has[p.PID] = true
	}
	for _, p := range procs {
		if p.Session == gs.pid && !p.Dead() && !has[p.PID] {
			found = append(found, p)
		}
	}
	return found
}

// seeOut ends guests whose time has come: none outlives the last rank by more
// than ranks' own leftovers may.
func (g *gang) seeOut(allExited bool) {
	for _, gs := range g.byGuest {
		if allExited {
			g.dismiss(gs, g.lastExit.Add(OutputWait))
		}
		if gs.killAt.IsZero() || !g.due(gs.killAt) {
			continue
		}
		for _, p := range gs.family() {
			_ = unix.Kill(p.PID, unix.SIGKILL)
		}
		gs.killAt = g.now.Add(killAgain)
		g.due(gs.killAt)
	}
}

// guest finds a living one.
func (g *gang) guest(name string) (*guest, error) {
	if gs := g.guests[name]; gs != nil && gs.pid != 0 {
		return gs, nil
	}
	return nil, fmt.Errorf("guest %q: %w", name, ErrNoRank)
}

func (gs *guest) signal(sig unix.Signal) error {
	if err := unix.Kill(-gs.pid, sig); err != nil {
		return fmt.Errorf("guest %q: %w: %w", gs.name, ErrRefused, err)
	}
	return nil
}

// guestOut carries one stream of a guest to its connection. It waits for a slow
// reader, and so does the guest.
type guestOut struct {
	mu     *sync.Mutex // of the connection
	c      net.Conn
	id     int64
	stream string
}

func (o guestOut) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := writeLine(o.c, response{V: protocolVersion, ID: o.id, Output: &output{Stream: o.stream, Data: b}}); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (guestOut) Close() error { return nil } // the connection is closed by who serves it
func (guestOut) end() int64   { return 0 }

// exec runs a guest for as long as its connection lasts. It is the last request
// of that: whatever the client does there afterwards is read as his leaving.
func (s *server) exec(c net.Conn, req request, resp *response) error {
	mu := new(sync.Mutex)
	var gs *guest
	to := [2]sink{guestOut{mu, c, req.ID, "out"}, guestOut{mu, c, req.ID, "err"}}
	err := s.g.do(func(answer func(error)) { gs = s.g.invite(req, to, answer) })
	if code := execCode(err); code != 0 {
		resp.Exit = &launcher.Exit{Code: code, Error: err.Error()}
		return nil
	}
	if err != nil {
		return err
	}
	left := make(chan struct{})
	go func() { // ends with the connection, which serve closes
		_, _ = c.Read(make([]byte, 1))
		close(left)
	}()
	werr := writeLine(c, response{V: protocolVersion, ID: req.ID, Began: &began{gs.pid}})
	var copying sync.WaitGroup
	for _, st := range gs.streams {
		st.lost = func(Lost) {} // its reader has gone
		copying.Go(st.run)
	}
	copied := make(chan struct{})
	go func() { copying.Wait(); close(copied) }()
	if werr == nil {
		select {
		case <-gs.done:
		case <-left:
			werr = net.ErrClosed
		}
	}
	if werr != nil {
		_ = s.g.do(func(answer func(error)) {
			s.g.dismiss(gs, time.Now().Add(s.g.cfg.Grace))
			answer(nil)
		})
		return werr // what it still writes is read, and passed over, until it has ended
	}
	select {
	case <-copied:
	case <-left:
		return net.ErrClosed
	case <-time.After(OutputWait): // something that it left holds its output
		for _, st := range gs.streams {
			st.cut()
		}
		select {
		case <-copied:
		case <-left:
			return net.ErrClosed
		}
	}
	resp.Exit = gs.exit
	return nil
}

// execCode is what a shell, env(1) and docker exec give for a command that could
// not be exec'd: 127 where there is none, else 126. 0: that was not why.
func execCode(err error) int {
	switch {
	case !errors.As(err, new(*unexecd)):
		return 0
	case errors.Is(err, errNoProgram):
		return exitNoProgram
	}
	return 126
}

// reachGuest does what may be done to a guest from other connections.
func (s *server) reachGuest(req request) error {
	var in *input
	err := s.g.do(func(answer func(error)) {
		gs, err := s.g.guest(req.Guest)
		switch {
		case err != nil:
		case req.Op == opExecSignal:
			err = gs.signal(req.Sig)
		case gs.in == nil:
			err = fmt.Errorf("guest %q: %w: it has no input", req.Guest, ErrRefused)
		default:
			in = gs.in
		}
		answer(err)
	})
	switch {
	case err != nil || in == nil:
		return err
	case req.Op == opExecResize:
		return in.resize(*req.Window)
	}
	return in.write(req.Offset, req.Data, req.End)
}
