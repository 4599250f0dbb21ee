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

// holdPort finds a port that nothing on this node holds, and holds it until
// the start. Each search begins behind the last one's find: two generations in
// a row get different ports, so that a rank of the older one cannot answer for
// the newer.
func (a *Agent) holdPort(first, last int) (io.Closer, int, error) {
	n := uint32(last - first + 1)
	for range n {
		port := first + int(a.ports.Add(1)%n)
		if held, err := bindTo(port); err == nil {
			return held, port, nil
		}
	}
	return nil, 0, fmt.Errorf("no free port from %d to %d: `ss -ltnp` shows who holds them", first, last)
}

// bindTo takes a port on every address, as torch's store itself listens on all of
// them, and as strictly as a rank might: without SO_REUSEADDR, which net.Listen
// sets, a port that has connections in TIME_WAIT is not free. It does not listen: a
// rank that is there before rank 0 is then refused, and comes again, while a
// connection to us would break when we let go.
func bindTo(port int) (io.Closer, error) {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	var at unix.Sockaddr = &unix.SockaddrInet6{Port: port}
	if errors.Is(err, unix.EAFNOSUPPORT) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		at = &unix.SockaddrInet4{Port: port}
	} else if err == nil {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
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

// Named ports lie below those, so that a job that has both runs out of neither.
const (
	firstNamed = 20000
	lastNamed  = firstPort - 1
)

// ports are those that a try's ranks are told of.
type ports struct {
	port      int                       // the rendezvous port; 0 before it is known
	own, head map[string]launcher.Ports // the named ones: this node's, the head's
}

func (p ports) fill(seat *launcher.Seat) {
	seat.Port, seat.Ports, seat.HeadPorts = p.port, p.own, p.head
}

// all are those that ranks of this node may listen on.
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

// holding is what keeps ports from others until the start.
type holding []io.Closer

func (h holding) Close() error {
	var errs error
	for _, c := range h {
		errs = errors.Join(errs, c.Close())
	}
	return errs
}

// holdPorts finds the ports that a node's part of a job asks for.
func (a *Agent) holdPorts(as launcher.Assignment, r *result) error {
	var held holding
	if as.Spec.MainStage().UsesPort && as.NodeRank == 0 {
		one, port, err := a.holdPort(firstPort, lastPort)
		if err != nil {
			return err
		}
		held, r.at.port = append(held, one), port
	}
	for _, wish := range as.Spec.WishedOn(as.NodeRank) {
		some, span, err := a.holdSpan(max(wish.Count, 1))
		if err != nil {
			return errors.Join(fmt.Errorf("port %s: %w", wish.Name, err), held.Close())
		}
		if r.at.own == nil {
			r.at.own = map[string]launcher.Ports{}
		}
		held, r.at.own[wish.Name] = append(held, some...), span
	}
	if len(held) > 0 {
		r.hold = held
	}
	return nil
}

// holdSpan finds so many free ports in a row, as holdPort finds one.
func (a *Agent) holdSpan(count int) (holding, launcher.Ports, error) {
	room := lastNamed - firstNamed + 2 - count
	for tried := 0; tried < 2*room; {
		first := firstNamed + int(a.ports.Add(uint32(count))-uint32(count))%room
		held, good := holdAll(first, count)
		if good == count {
			return held, launcher.Ports{First: uint16(first), Last: uint16(first + count - 1)}, nil
		}
		tried += good + 1
	}
	return nil, launcher.Ports{}, fmt.Errorf("no %d free in a row from %d to %d: `ss -ltnp` shows who holds them", count, firstNamed, lastNamed)
}

// holdAll takes ports in a row, all or none, and tells how many it got.
func holdAll(first, count int) (held holding, good int) {
	for port := first; port < first+count; port++ {
		one, err := bindTo(port)
		if err != nil {
			held.Close()
			return nil, port - first
		}
		held = append(held, one)
	}
	return held, count
}

// holdAgain is for what an earlier life of this agent has told of.
func holdAgain(at ports) (io.Closer, error) {
	var held holding
	var errs error
	for _, port := range at.all() {
		one, err := bindTo(int(port))
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		held = append(held, one)
	}
	return held, errs
}

func namedPath(dir string) string { return filepath.Join(dir, "ports.json") }

func (p ports) writeOwn(dir string) error {
	if len(p.own) == 0 {
		return nil
	}
	return writeJSON(namedPath(dir), p.own)
}

// readOwn gives the named ports of a try that was prepared here; none where it has none.
func readOwn(dir string) (own map[string]launcher.Ports, err error) {
	if err = readJSON(namedPath(dir), &own); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return own, err
}
