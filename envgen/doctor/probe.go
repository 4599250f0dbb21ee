package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen/arp"
)

// atOnce bounds how many sockets are open at a time: each raw one gets a copy of every echo reply from its peer.
const atOnce = 64

// Probe carries out the orders side by side, within Patience or until ctx ends.
func Probe(ctx context.Context, o Orders) Report {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	r := Report{Echoes: make([]EchoResult, len(o.Echoes)), Claims: make([]ClaimResult, len(o.Claims)),
		Dials: make([]DialResult, len(o.Dials))}
	var mu sync.Mutex
	untried := map[string]bool{}
	denied := func(err error) {
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			untried[err.Error()] = true
		}
	}
	gate := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	side := func(fn func()) {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			fn()
		})
	}
	for i, e := range o.Echoes {
		side(func() {
			var err error
			r.Echoes[i], err = echo(ctx, e)
			denied(err)
		})
	}
	for i, c := range o.Claims {
		side(func() {
			holders, err := arp.Holders(ctx, c.End.NIC, c.End.Addr)
			r.Claims[i] = ClaimResult{Claim: c, Holders: holders}
			denied(noRight("ask by ARP on "+c.End.NIC, err))
		})
	}
	for i, d := range o.Dials {
		side(func() { r.Dials[i] = dial(ctx, d) })
	}
	wg.Wait()
	for text := range untried {
		r.Trouble = append(r.Trouble, text)
	}
	slices.Sort(r.Trouble)
	return r
}

// dial opens a connection and closes it; it sends nothing.
func dial(ctx context.Context, d Dial) DialResult {
	ctx, cancel := context.WithTimeout(ctx, Patience/2)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.Addr.String())
	if err == nil {
		c.Close()
		return DialResult{Dial: d, OK: true}
	}
	why := err.Error()
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		why = "refused: nothing listens there, or a firewall rejects it"
	case ctx.Err() != nil:
		why = "no answer: a firewall drops it, or the network is cut"
	}
	return DialResult{Dial: d, Why: why}
}

// noRight describes an error that is about missing rights; nil for any other.
func noRight(what string, err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
