package wire

import (
	"context"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A node that gives leases stamps its messages with its own clock. A stamp goes back once
// this node has proven that it leads, by a proof that began after the stamp had come: so
// no other node led when it was made. rendezvous/DESIGN.md says what this is for.

// stamp waits for its echo, on the stream and for the boot that it came from.
type stamp struct {
	at     launcher.Uptime // 0: none waits
	boot   string          // of the node
	stream uint64          // of the stream
}

// stampIs takes a stamp; the previous one needs no echo any more.
func (n *linkLoop) stampIs(boot string, at launcher.Uptime) {
	if at == 0 || n.l.cfg.Prove == nil {
		return
	}
	n.mu.Lock()
	n.stamp = stamp{at, boot, n.stream}
	n.mu.Unlock()
	select {
	case n.l.stamped <- struct{}{}:
	default:
	}
}

// echo proves and answers, for all nodes together, until ctx ends.
func (l *Links) echo(ctx context.Context) {
	for {
		select {
		case <-l.stamped:
		case <-ctx.Done():
			return
		}
		due := l.takeStamps() // before the proof begins: it is valid only for these
		if err := l.cfg.Prove(ctx); err != nil {
			continue // later stamps are under way
		}
		for n, s := range due {
			l.cfg.OnEcho(n.node, s.boot, s.at)
			n.answer(s)
		}
		select {
		case <-time.After(l.cfg.EchoPause):
		case <-ctx.Done():
			return
		}
	}
}

func (l *Links) takeStamps() map[*linkLoop]stamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := map[*linkLoop]stamp{}
	for _, n := range l.nodes {
		n.mu.Lock()
		if n.stamp.at != 0 {
			due[n] = n.stamp
		}
		n.stamp = stamp{}
		n.mu.Unlock()
	}
	return due
}

// answer echoes a stamp on the stream on which it came, or not at all: another stream may
// lead to another boot.
func (n *linkLoop) answer(s stamp) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.stream == s.stream {
		n.enqueue(Down{Echo: s.at})
	}
}
