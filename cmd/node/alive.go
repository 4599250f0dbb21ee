package node

import "context"

// Supervised is a node as a service manager sees it.
type Supervised struct {
	// Ready is closed once the node answers on this machine and at its management
	// address. It may have no leader then: a pair's survivor is there to be asked for
	// a take-over.
	Ready <-chan struct{}
	// Stopping is closed once it is asked to end, and hands over what it leads.
	Stopping <-chan struct{}
	// Alive returns once every loop of the node has taken a turn; it hangs when one of
	// them hangs.
	Alive func(context.Context) error
	// State says in one line what the node does or waits for; changed is closed when that
	// is no longer so.
	State func() (line string, changed <-chan struct{})
}

// supervised runs the supervisor of this node until ctx ends. The node is asked to stop
// when asked ends.
func (n *node) supervised(ctx, asked context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	ready, told := make(chan struct{}), make(chan struct{})
	over := ctx.Done()
	go func() {
		defer close(told)
		for _, is := range []<-chan struct{}{n.server.Listening(), n.network.Reachable()} {
			select {
			case <-is:
			case <-over:
				return
			}
		}
		close(ready)
	}()
	defer func() { stop(); <-told }()
	return n.cfg.Supervise(ctx, Supervised{
		Ready: ready, Stopping: asked.Done(), State: n.status.Line,
		Alive: func(ctx context.Context) error { return alive(ctx, n.turns()...) },
	})
}

// turns are the loops that this node needs: each func returns when its loop has taken a
// turn. They are the agent's state, raft's loop, and the disk below raft. For a disk that
// hangs only the deadline is awaited: the node then takes no part in the vote and says
// so, and the rest of it goes on; a restarted agent would hang at its start.
func (n *node) turns() []func(context.Context) {
	return []func(context.Context){
		func(context.Context) { n.control.Turn() }, func(context.Context) { n.agent.Ledger() }, n.failover.Turn,
	}
}

// alive returns once all have taken a turn. A turn that hangs delays it until ctx ends;
// that is its only error.
func alive(ctx context.Context, turns ...func(context.Context)) error {
	turned := make(chan struct{})
	go func() { // ends with what it waits for, or with the process
		defer close(turned)
		for _, turn := range turns {
			turn(ctx)
		}
	}()
	select {
	case <-turned:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}
