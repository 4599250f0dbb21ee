package discover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sync/errgroup"
)

const (
	// browseFor is how long to wait for answers: some come late, or were lost and come
	// after the second question.
	browseFor = 2500 * time.Millisecond
	// askEach is the pause between checks for what is missing; each second one asks again
	// for everything, at most twice.
	askEach  = 500 * time.Millisecond
	askTwice = 2
)

// Browse asks on some links for 2.5 s who offers a service, and gives the answers, by
// name. It returns an error only if no link could be asked.
func Browse(ctx context.Context, service string, links []Link) ([]Instance, error) {
	if len(links) == 0 {
		return nil, fmt.Errorf("look for %s: no network interface is up", service)
	}
	var mu sync.Mutex
	var out []Instance
	var failed []error
	var g errgroup.Group
	for _, on := range links {
		g.Go(func() error {
			w, err := open(on)
			var found []Instance
			if err == nil {
				found, err = browse(ctx, w, newFinder(on.Name, service))
			}
			mu.Lock()
			defer mu.Unlock()
			out = append(out, found...)
			if err != nil {
				failed = append(failed, fmt.Errorf("look for %s: %w", service, err))
			}
			return nil
		})
	}
	_ = g.Wait()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if len(failed) == len(links) {
		return nil, errors.Join(failed...)
	}
	slices.SortStableFunc(out, compareInstances)
	return out, nil
}

// browse closes the wire.
func browse(ctx context.Context, w wire, f *finder) ([]Instance, error) {
	service, err := dnsmessage.NewName(f.service)
	if err != nil {
		w.close()
		return nil, err
	}
	var mu sync.Mutex // over f
	ended := listen(w, func(packet []byte, from netip.AddrPort) {
		mu.Lock()
		defer mu.Unlock()
		f.take(packet, from)
	})
	ask := func(round int) error {
		var q []dnsmessage.Question
		if round%2 == 0 && round < 2*askTwice {
			q = append(q, dnsmessage.Question{Name: service, Type: dnsmessage.TypePTR, Class: dnsmessage.ClassINET})
		}
		mu.Lock()
		q = append(q, f.missing()...)
		mu.Unlock()
		if len(q) == 0 {
			return nil
		}
		packet, err := (&dnsmessage.Message{Questions: q}).Pack()
		if err != nil {
			return err
		}
		return w.send(packet)
	}
	over := time.After(browseFor)
	again := time.NewTicker(askEach)
	defer again.Stop()
	err = ask(0)
	for round := 1; err == nil; {
		select {
		case <-again.C:
			err = ask(round)
			round++
			continue
		case err = <-ended:
			w.close()
			return nil, err
		case <-over:
		case <-ctx.Done():
		}
		break
	}
	w.close()
	<-ended //nolint:errcheck // that it was closed
	return f.found(), err
}
