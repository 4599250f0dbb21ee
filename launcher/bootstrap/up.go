package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// host is one target of a run.
type host struct {
	*remote
	*fleet
	target string
	facts  facts
	sudo   *string // the password that it asks for; nil: it asks for none
	binary Binary

	looked   bool     // whether it is in a cluster is known
	founds   bool     // it makes the cluster
	restart  string   // why its running agent has to be restarted; empty: it has not
	standing standing // what its agent said about the cluster when it was looked at
	has      Release  // of its agent, or of the program there where none runs
	next     Release  // of the program that it gets
	// undo is what to do if a step fails from here on; nil: nothing.
	undo func(context.Context) error
	// after is the member whose agent is restarted before this one; walked is closed when
	// all steps of a host are done, or one has failed.
	after  *host
	walked chan struct{}
	// serves is closed when the host can make tokens, or never will: then broken says why.
	serves chan struct{}
	broken error

	result Result
}

// fleet is what all hosts of one Up share.
type fleet struct {
	cfg     Config
	secrets *secrets
	dialer  *dialer
	// sources are members that can make tokens; cluster is their cluster, empty before
	// there is one.
	sources []*host
	cluster string
}

// Up makes all targets nodes. Hosts are worked on side by side, and one that fails stops no
// other; the results are in the order of the targets. The error is that of the request
// itself: then no host was touched.
func Up(ctx context.Context, cfg Config) ([]Result, error) {
	hosts, end, err := start(cfg)
	if err != nil {
		return nil, err
	}
	defer end()
	each(hosts, func(h *host) { h.walk(ctx, examination) })
	hosts[0].decide(hosts)
	takeTurns(hosts)
	each(hosts, func(h *host) {
		defer close(h.walked)
		h.walk(ctx, installation)
		h.settle(errors.New(h.result.Error))
	})
	return results(hosts), nil
}

// start makes the hosts of a run; end closes their connections.
func start(cfg Config) (hosts []*host, end func(), err error) {
	if err := cfg.validate(); err != nil {
		return nil, nil, err
	}
	d, err := newDialer(cfg.SSH)
	if err != nil {
		return nil, nil, err
	}
	d.secrets.many = len(cfg.Targets) > 1
	r := &fleet{cfg: cfg, dialer: d, secrets: d.secrets}
	for _, t := range cfg.Targets {
		hosts = append(hosts, &host{fleet: r, target: t, serves: make(chan struct{}), walked: make(chan struct{}),
			result: Result{Target: t, Steps: []Event{}}})
	}
	return hosts, func() {
		each(hosts, func(h *host) {
			if h.remote != nil {
				h.close()
			}
		})
	}, nil
}

func results(hosts []*host) []Result {
	out := make([]Result, len(hosts))
	for i, h := range hosts {
		out[i] = h.result
	}
	return out
}

// each runs f for all hosts side by side and waits.
func each(hosts []*host, f func(*host)) {
	var all sync.WaitGroup
	for _, h := range hosts {
		all.Go(func() { f(h) })
	}
	all.Wait()
}

// walk takes steps until one fails.
func (h *host) walk(ctx context.Context, steps []step) {
	for _, s := range steps {
		if h.result.Error != "" {
			return
		}
		what := s.todo(h)
		switch {
		case what == "":
			h.tell(s.name, Skipped, s.already(h))
			continue
		case h.cfg.DryRun && !s.looks:
			h.tell(s.name, Planned, what)
			continue
		}
		h.tell(s.name, Begins, what)
		start := time.Now()
		if err := s.do(h, ctx); err != nil {
			if ctx.Err() != nil {
				err = errors.New("interrupted")
			}
			if h.undo != nil {
				err = h.takeBack(ctx, err)
			}
			h.fail(s.name, err)
			return
		}
		h.tell(s.name, Done, fmt.Sprintf("%s (%.1f s)", what, time.Since(start).Seconds()))
	}
}

func (h *host) tell(step string, state State, text string) {
	e := Event{Host: h.target, Step: step, State: state, Text: text}
	if state != Begins {
		h.result.Steps = append(h.result.Steps, e)
	}
	if h.cfg.Tell != nil {
		h.cfg.Tell(e)
	}
}

func (h *host) fail(step string, err error) {
	h.result.Error = err.Error()
	h.tell(step, Failed, err.Error())
}

// settle records that this host can make tokens, or why it never will. The first call
// counts.
func (h *host) settle(why error) {
	select {
	case <-h.serves:
	default:
		h.broken = why
		close(h.serves)
	}
}

// decide finds the cluster that all hosts are to be in: that of this machine, else one that
// a host is in, else a new one, founded by the first host. It fails the hosts that are in
// another cluster.
func (r *fleet) decide(hosts []*host) {
	if r.cfg.Cluster != nil {
		r.cluster = r.cfg.Cluster.ID
	}
	var first *host
	for _, h := range hosts {
		if h.facts.cluster == "" {
			continue
		}
		if r.cluster == "" {
			r.cluster, first = h.facts.cluster, h
		}
		h.result.Part = Another
		switch {
		case h.facts.cluster == r.cluster:
			h.result.Part = Member
			r.sources = append(r.sources, h)
		case h.result.Error == "" && first == nil:
			h.fail(stepCluster, fmt.Errorf("it is in another cluster (%s) than this machine (%s): `sudo sparkrun "+
				"leave` there takes it out", h.facts.cluster, r.cluster))
		case h.result.Error == "":
			h.fail(stepCluster, fmt.Errorf("it is in another cluster (%s) than %s (%s): `sudo sparkrun leave` on "+
				"one of them takes it out", h.facts.cluster, first.target, r.cluster))
		}
	}
	if r.cluster != "" {
		for _, h := range hosts {
			if h.facts.cluster == "" && h.looked {
				h.result.Part = Joins
			}
		}
		return
	}
	// No host is known to be in a cluster. One that could not be looked at may be in one:
	// to found a second cluster beside its own would be worse than to wait for it.
	for i, h := range hosts {
		if h.result.Error == "" {
			h.founds = true
			h.result.Part = Founds
			r.sources = []*host{h}
			for _, other := range hosts[i+1:] {
				if other.looked {
					other.result.Part = Joins
				}
			}
			return
		}
		if !h.looked {
			for _, other := range hosts[i+1:] {
				if other.result.Error == "" {
					other.fail(stepCluster, fmt.Errorf("no cluster is known to join, and %s, which comes first, "+
						"may be in one and could not be looked at: repair it, or name another host first", h.target))
				}
			}
			return
		}
	}
}

// invite makes an invitation into the cluster, on the first host that can.
func (h *host) invite(ctx context.Context) (Invitation, error) {
	if h.cfg.Cluster != nil {
		return h.cfg.Cluster.Invite(ctx)
	}
	var why []string
	for _, s := range h.sources {
		select {
		case <-s.serves:
		case <-ctx.Done():
			return Invitation{}, context.Cause(ctx)
		}
		if s.broken != nil {
			why = append(why, s.target+" failed itself")
			continue
		}
		i, err := s.token(ctx)
		if err == nil {
			return i, nil
		}
		why = append(why, fmt.Sprintf("make a token on %s: %v", s.target, err))
	}
	return Invitation{}, fmt.Errorf("no member can let it in: %s", strings.Join(why, "; "))
}
