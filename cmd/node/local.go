package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Dial gives a client of the local agent. It connects at the first call, which returns
// ErrNoAgent when nothing listens.
func Dial(socket string) *wire.Client {
	tr := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
				return nil, fmt.Errorf("%w: nothing listens on %s", ErrNoAgent, socket)
			}
			if errors.Is(err, os.ErrPermission) {
				return nil, fmt.Errorf("open %s: %w: you must be root (sudo) or in the group sparkrun: `sudo "+
					"usermod -aG sparkrun $USER`, then log in anew", socket, wire.ErrDenied)
			}
			return c, err
		},
	}
	return wire.NewClient(&http.Client{Transport: tr}, "http://agent")
}
