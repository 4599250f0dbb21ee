package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// Rendezvous ports lie below net.ipv4.ip_local_port_range (32768 and up by
// default), so that no outgoing connection can hold one. torch's own default,
// 29500, is the first.
const (
	firstPort = 29500
	lastPort  = 29999
)

// holdPort finds a port that no process on this node and no other job has, and holds it
// until the start. Each search begins behind the last port found: two generations in a row
// get different ports, so that a rank of the older one cannot answer for the newer.
func (a *Agent) holdPort(k launcher.Key, first, last int) (io.Closer, int, error) {
	n := uint32(last - first + 1)
	for range n {
		port := first + int(a.ports.Add(1)%n)
		if a.claim(k, onePort(port)) != nil {
			continue
		}
		if held, err := bindTo(port); err == nil {
			return held, port, nil
		}
		a.unclaim(k, onePort(port))
	}
	return nil, 0, fmt.Errorf("no free port from %d to %d: `ss -ltnp` shows who holds them", first, last)
}

// bindTo takes a port on every address, as torch's store listens on all of them, and as
// strictly as a rank might: without SO_REUSEADDR, which net.Listen sets, a port with
// connections in TIME_WAIT is not free. It does not listen: a rank that connects before
// rank 0 listens is then refused, and connects again, while a connection to us would break
// when we let go.
func bindTo(port int) (io.Closer, error) { return bindAs(port, 0) }

// bindAs is bindTo with SO_REUSEADDR at 0 or 1.
func bindAs(port, reuse int) (io.Closer, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	var at unix.Sockaddr = &unix.SockaddrInet6{Port: port}
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		at = &unix.SockaddrInet4{Port: port}
	} else if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse)
	}
	if err == nil {
		err = unix.Bind(fd, at)
	}
	if err != nil {
		if fd >= 0 {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("bind to port %d: %w", port, err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("port %d", port)), nil
}

// Named ports lie below the rendezvous ports, so that a job that has both runs out of
// neither.
const (
	firstNamed = 20000
	lastNamed  = firstPort - 1
)

// ports are those that an attempt's ranks get to know.
type ports struct {
	port      int                       // the rendezvous port; 0 before it is known
	own, head map[string]launcher.Ports // the named ones: this node's, the head's
}

func (p ports) fill(placement *launcher.Placement) {
	placement.Port, placement.Ports, placement.HeadPorts = p.port, p.own, p.head
}

// found marks the named ports as complete: a reference to another one is an error from now
// on.
func (p ports) found() ports {
	if p.own == nil {
		p.own = map[string]launcher.Ports{}
	}
	if p.head == nil {
		p.head = map[string]launcher.Ports{}
	}
	return p
}

// all are the ports that ranks of this node may listen on.
func (p ports) all() []uint16 {
	var all []uint16
	if p.port != 0 {
		all = append(all, uint16(p.port))
	}
	for _, name := range slices.Sorted(maps.Keys(p.own)) {
		for port := int(p.own[name].First); port <= int(p.own[name].Last); port++ {
			all = append(all, uint16(port))
		}
	}
	return all
}

// holding are bound ports, kept from others until their step is started.
type holding []io.Closer

func (h holding) Close() error {
	var errs error
	for _, c := range h {
		errs = errors.Join(errs, c.Close())
	}
	return errs
}

// held are an attempt's bound ports, by the step that will listen on them.
type held map[int]holding

func (h held) close() {
	for step := range h {
		h.letGo(step)
	}
}

// letGo releases a step's ports for its ranks.
func (h held) letGo(step int) {
	h[step].Close()
	delete(h, step)
}

// portStep is the step that listens on the rendezvous port.
func portStep(steps []launcher.Stage) (step int, uses bool) {
	step = slices.IndexFunc(steps, func(st launcher.Stage) bool { return st.UsesPort })
	return step, step >= 0
}

// holdPorts finds and holds the ports that a node's part of a job asks for.
func (a *Agent) holdPorts(as launcher.Assignment, r *result) (err error) {
	steps := as.Spec.Steps()
	all := held{}
	defer func() {
		if r.hold = all; err != nil {
			r.hold.close()
		}
	}()
	if step, uses := portStep(steps); uses && as.NodeRank == 0 {
		one, port, err := a.holdPort(as.Key, firstPort, lastPort)
		if err != nil {
			return err
		}
		all[step], r.at.port = append(all[step], one), port
	}
	for i, st := range steps {
		if !st.On(as.NodeRank) {
			continue
		}
		for _, wish := range st.Ports {
			some, span, err := a.holdNamed(as.Key, as.Spec.User, wish)
			if err != nil {
				return fmt.Errorf("port %s: %w", wish.Name, err)
			}
			if r.at.own == nil {
				r.at.own = map[string]launcher.Ports{}
			}
			all[i], r.at.own[wish.Name] = append(all[i], some...), span
		}
	}
	return nil
}

// maxHeld bounds the ports that jobs of one user hold here before their ranks start: less
// than half of all ports.
const maxHeld = 2 * launcher.MaxPortCount

// holdNamed finds the ports of one name.
func (a *Agent) holdNamed(k launcher.Key, user string, wish launcher.NamedPort) (holding, launcher.Ports, error) {
	count := max(wish.Count, 1)
	back, err := a.reservePorts(user, count)
	if err != nil {
		return nil, launcher.Ports{}, err
	}
	var some holding
	span := spanOf(wish)
	if wish.At == 0 {
		some, span, err = a.holdSpan(k, count)
	} else if err = a.claim(k, span); err == nil {
		some, err = holdAt(span)
	}
	if err != nil {
		back()
		return nil, span, err
	}
	return append(some, closer(back)), span, nil
}

type closer func()

func (c closer) Close() error { c(); return nil }

// reservePorts counts the ports that a user's jobs hold, until back is called.
func (a *Agent) reservePorts(user string, count int) (back func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := a.heldPorts[user]; n+count > maxHeld {
		return nil, fmt.Errorf("jobs of %s that are about to start hold %d ports here, and at most %d may be: try "+
			"again in a minute", user, n, maxHeld)
	}
	a.heldPorts[user] += count
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.heldPorts[user] -= count; a.heldPorts[user] <= 0 {
			delete(a.heldPorts, user)
		}
	}, nil
}

// holdSpan finds count free ports in a row, as holdPort finds one.
func (a *Agent) holdSpan(k launcher.Key, count int) (holding, launcher.Ports, error) {
	room := lastNamed - firstNamed + 2 - count
	for tried := 0; tried < 2*room; {
		first := firstNamed + int(a.ports.Add(uint32(count))-uint32(count))%room
		span := launcher.Ports{First: uint16(first), Last: uint16(first + count - 1)}
		if a.claim(k, span) != nil {
			tried++
			continue
		}
		some, good := holdAll(first, count)
		if good == count {
			return some, span, nil
		}
		a.unclaim(k, span)
		tried += good + 1
	}
	return nil, launcher.Ports{},
		fmt.Errorf("no %d free in a row from %d to %d: `ss -ltnp` shows who holds them", count, firstNamed, lastNamed)
}

// holdAll takes ports in a row, all or none, and returns how many were free.
func holdAll(first, count int) (some holding, good int) {
	for port := first; port < first+count; port++ {
		one, err := bindTo(port)
		if err != nil {
			some.Close()
			return nil, port - first
		}
		some = append(some, one)
	}
	return some, count
}

// holdAt takes ports with fixed numbers, as a server would: with SO_REUSEADDR, for the
// ports of the previous generation may be in TIME_WAIT.
func holdAt(span launcher.Ports) (some holding, err error) {
	for port := int(span.First); port <= int(span.Last); port++ {
		one, err := bindAs(port, 1)
		if err != nil {
			some.Close()
			if who := listener(port); who != "" {
				return nil, fmt.Errorf("%w: %s listens on it: end that, or choose another port", err, who)
			}
			return nil, fmt.Errorf("%w: a job that is about to start may have it, else `ss -ltnp 'sport = :%d'` "+
				"shows who: end that, or choose another port", err, port)
		}
		some = append(some, one)
	}
	return some, nil
}

// holdAgain is for ports that were reported before a restart of this agent, and whose steps
// have not started.
func holdAgain(as launcher.Assignment, at ports, begun func(step int) bool) (held, error) {
	all := held{}
	var errs error
	again := func(step int, span launcher.Ports, how func(int) (io.Closer, error)) {
		for port := int(span.First); port <= int(span.Last) && !begun(step); port++ {
			one, err := how(port)
			if err != nil {
				errs = errors.Join(errs, err)
				continue
			}
			all[step] = append(all[step], one)
		}
	}
	steps := as.Spec.Steps()
	if step, uses := portStep(steps); uses && at.port != 0 && as.NodeRank == 0 {
		again(step, onePort(at.port), bindTo)
	}
	for i, st := range steps {
		for _, wish := range st.Ports {
			how := bindTo
			if wish.At != 0 {
				how = func(port int) (io.Closer, error) { return bindAs(port, 1) }
			}
			if span, has := at.own[wish.Name]; has {
				again(i, span, how)
			}
		}
	}
	return all, errs
}

func namedPath(dir string) string { return filepath.Join(dir, "ports.json") }

func (p ports) writeOwn(dir string) error {
	if len(p.own) == 0 {
		return nil
	}
	return writeJSON(namedPath(dir), p.own)
}

// readOwn gives the named ports of an attempt that was prepared here; nil: it has none.
func readOwn(dir string) (own map[string]launcher.Ports, err error) {
	if err = readJSON(namedPath(dir), &own); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return own, err
}
