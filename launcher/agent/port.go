package agent

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
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
