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

// session is an exec session: a command run beside a rank, in its cgroup or its container,
// as its user, with its environment. It is no rank: it does not count, its output goes to
// the caller and to no file, and it ends with the connection that it was asked for on, or
// with the last rank. Except for the fields above done, which never change once arrived was
// called, it belongs to the loop.
type session struct {
	name string
	rank Rank // what is exec'd
	plumbing
	exit *launcher.Exit // may be read once done is closed
	done chan struct{}

	pid     int
	killAt  time.Time         // zero: no end was requested
	stopped map[int]proc.Stat // PIDs that have had STOP, before the KILL
}

// startSession begins to exec an exec session; the answer follows its exec, or its exec error.
func (a *attempt) startSession(req request, to [2]sink, answer func(error)) *session {
	host := a.rankOf(*req.Rank)
	switch {
	case a.phase >= ending:
		answer(fmt.Errorf("rank %d: %w: it is being ended", *req.Rank, ErrNoRank))
		return nil
	case host == nil:
		answer(fmt.Errorf("rank %d: %w", *req.Rank, ErrNoRank))
		return nil
	case a.sessions[req.Session] != nil:
		answer(fmt.Errorf("%w: an exec session %q is here already", ErrRefused, req.Session))
		return nil
	}
	r := host.Rank
	r.PMI = nil // the rank itself talks to the process manager
	if r.Container != nil {
		r.Container = &Container{Socket: r.Container.Socket, Spec: r.Container.Spec, session: true}
	}
	r.Argv, r.Env, r.Stdin, r.TTY = untexts(req.Argv), with(r.Env, untexts(req.Env)), req.Stdin, req.TTY
	es := &session{name: req.Session, rank: r, done: make(chan struct{}), stopped: map[int]proc.Stat{}}
	a.sessions[es.name] = es
	a.protect(false)
	a.coming++
	go func() { // joined by coming; an exec can hang on a dead disk
		b := spawnRank(r, a.cfg, a.cg, a.trace.Mark, to)
		a.in <- func() { answer(a.sessionStarted(es, b)) }
	}()
	return es
}

// rankOf finds a running rank.
func (a *attempt) rankOf(n int) *rank {
	for _, r := range a.ranks {
		if r.Rank.Rank == n && r.running() {
			return r
		}
	}
	return nil
}

// with gives an environment in which the settings of more replace those of the same names.
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

// sessionStarted enters an exec session's process, which may be dead already.
func (a *attempt) sessionStarted(es *session, b spawned) error {
	a.coming--
	defer a.allSpawned()
	if b.err != nil {
		delete(a.sessions, es.name)
		return b.err
	}
	es.pid, es.plumbing = b.pid, b.plumbing
	a.log.Info("exec session", "rank", es.rank.Rank, "pid", es.pid) // not its command, which may contain a secret
	if d, dead := a.early[es.pid]; dead {
		delete(a.early, es.pid)
		a.sessionExited(es, d.exit)
		return nil
	}
	a.bySession[es.pid] = es
	switch a.phase { // forked while the attempt was being ended
	case ending:
		a.endSession(es, a.killAt)
	case killing:
		a.died = true
	}
	return nil
}

// allSpawned does what has waited for the report of the last fork.
func (a *attempt) allSpawned() {
	if a.pending == 0 && a.coming == 0 {
		a.protect(true)
		clear(a.early)
	}
}

// sessionExited handles an exec session's waitpid. What it left in the background runs as long
// as a rank does.
func (a *attempt) sessionExited(es *session, exit *launcher.Exit) {
	delete(a.bySession, es.pid)
	delete(a.sessions, es.name)
	if es.in != nil {
		es.in.close()
	}
	for pid, was := range es.stopped { // it was about to be killed, and its descendants are not found without it
		if now, ok := proc.Here.Stat(pid); ok && now.Ticks == was.Ticks {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	es.exit = exit
	close(es.done)
}

// endSession ends an exec session: TERM, and with a terminal also HUP, as if its window were
// closed, since an interactive shell ignores TERM. KILL follows at killAt.
func (a *attempt) endSession(es *session, killAt time.Time) {
	if a.bySession[es.pid] != es {
		return
	}
	if es.killAt.IsZero() {
		family := es.family()
		for _, p := range family {
			if es.rank.TTY != nil {
				_ = unix.Kill(p.PID, unix.SIGHUP)
			}
		}
		a.termEach(family)
	}
	if es.killAt.IsZero() || killAt.Before(es.killAt) {
		es.killAt = killAt
	}
}

// family is an exec session and its processes, as far as they can be found while it lives:
// its session, and all descendants.
func (es *session) family() []proc.Stat {
	procs, _ := proc.Here.All()
	found := below(procs, []int{es.pid}, nil)
	has := map[int]bool{}
	for _, p := range found {
		has[p.PID] = true
	}
	for _, p := range procs {
		if p.Session == es.pid && !p.Dead() && !has[p.PID] {
			found = append(found, p)
		}
	}
	return found
}

// endSessions kills exec sessions whose time is up: none outlives the last rank by more than the
// ranks' own leftovers may.
func (a *attempt) endSessions(allExited bool) {
	for _, es := range a.bySession {
		if allExited {
			a.endSession(es, a.lastExit.Add(OutputWait))
		}
		if es.killAt.IsZero() || !a.due(es.killAt) {
			continue
		}
		if !es.kill(a.now) {
			a.due(a.now.Add(killPause))
			continue
		}
		es.killAt = a.now.Add(killAgain)
		a.due(es.killAt)
	}
}

// stopWait bounds the wait for processes to stop: one in the middle of a system call may not.
const stopWait = 2 * time.Second

// kill kills an exec session and its descendants; false: it has to be called again soon. All are stopped first, until
// none runs: a child forked meanwhile could not be found once its parent is dead.
func (es *session) kill(now time.Time) (killed bool) {
	family, runs := es.family(), false
	for _, p := range family {
		if _, told := es.stopped[p.PID]; !told {
			_ = unix.Kill(p.PID, unix.SIGSTOP)
			es.stopped[p.PID] = p
		}
		runs = runs || !p.Stopped()
	}
	if runs && now.Before(es.killAt.Add(stopWait)) {
		return false
	}
	for _, p := range family {
		_ = unix.Kill(p.PID, unix.SIGKILL)
	}
	return true
}

// session finds a running one.
func (a *attempt) session(name string) (*session, error) {
	if es := a.sessions[name]; es != nil && es.pid != 0 {
		return es, nil
	}
	return nil, fmt.Errorf("exec session %q: %w", name, ErrNoRank)
}

func (es *session) signal(sig unix.Signal) error {
	if err := unix.Kill(-es.pid, sig); err != nil {
		return fmt.Errorf("exec session %q: %w: %w", es.name, ErrRefused, err)
	}
	return nil
}

// sessionOut writes one stream of an exec session to its connection. It waits for a slow
// reader, and so does the exec session.
type sessionOut struct {
	mu     *sync.Mutex // of the connection
	c      net.Conn
	id     int64
	stream string
}

func (o sessionOut) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := writeLine(o.c, response{V: protocolVersion, ID: o.id,
		Output: &output{Stream: o.stream, Data: b}}); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (sessionOut) Close() error { return nil } // serve closes the connection
func (sessionOut) end() int64   { return 0 }

// exec runs an exec session for as long as its connection lasts. It is the connection's
// last request: whatever the client sends afterwards counts as leaving.
func (s *server) exec(c net.Conn, req request, resp *response) error {
	mu := new(sync.Mutex)
	var es *session
	to := [2]sink{sessionOut{mu, c, req.ID, "out"}, sessionOut{mu, c, req.ID, "err"}}
	err := s.g.do(func(answer func(error)) { es = s.g.startSession(req, to, answer) })
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
	werr := writeLine(c, response{V: protocolVersion, ID: req.ID, Began: &began{es.pid}})
	var copying sync.WaitGroup
	for _, st := range es.streams {
		st.lost = func(Lost) {} // its reader is gone
		copying.Go(st.run)
	}
	copied := make(chan struct{})
	go func() { copying.Wait(); close(copied) }()
	if werr == nil {
		select {
		case <-es.done:
		case <-left:
			werr = net.ErrClosed
		}
	}
	if werr != nil {
		_ = s.g.do(func(answer func(error)) {
			s.g.endSession(es, time.Now().Add(s.g.cfg.Grace))
			answer(nil)
		})
		return werr // what it still writes is read and dropped until it has ended
	}
	select {
	case <-copied:
	case <-left:
		return net.ErrClosed
	case <-time.After(OutputWait): // a process that it left holds its output
		for _, st := range es.streams {
			st.cut()
		}
		select {
		case <-copied:
		case <-left:
			return net.ErrClosed
		}
	}
	resp.Exit = es.exit
	return nil
}

// execCode is what a shell, env(1) and docker exec return for a command that could not be
// exec'd: 127 if there is none, else 126. 0: another error.
func execCode(err error) int {
	switch {
	case !errors.As(err, new(*execError)):
		return 0
	case errors.Is(err, errNoProgram):
		return exitNoProgram
	}
	return 126
}

// reachSession does what other connections may do to an exec session.
func (s *server) reachSession(req request) error {
	var in *input
	err := s.g.do(func(answer func(error)) {
		es, err := s.g.session(req.Session)
		switch {
		case err != nil:
		case req.Op == opExecSignal:
			err = es.signal(req.Sig)
		case es.in == nil:
			err = fmt.Errorf("exec session %q: %w: it has no input", req.Session, ErrRefused)
		default:
			in = es.in
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
