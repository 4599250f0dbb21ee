package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/hub"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// sayAfter is how long the Hub may take before it is said that it is asked.
	sayAfter = 1500 * time.Millisecond
	// othersAfter is how long it may take before others ask it as well, one more each othersEvery.
	othersAfter = 2 * time.Second
	othersEvery = 500 * time.Millisecond
	// unheardFor is how long the Hub is not asked again where there is another way.
	unheardFor = 30 * time.Second
	// A request takes three times as long at most; askBriefly is where there is another way.
	askIdle    = 5 * time.Second
	askBriefly = 5 * time.Second / 3
)

// unheard is when the Hub has not been reached from here, and why.
type unheard struct {
	at  time.Time
	why error
}

// revision has the Hub asked: by this node, and where that gets no answer by others, first by those that are to have
// the model. It gives who got the answer. What takes long is said.
func (m *Models) revision(ctx context.Context, r wire.NodeModelAskRequest, nodes, to []wire.NodeStatus,
	say func() error) (*hub.Revision, launcher.NodeID, error) {
	asked := m.whoAsks(nodes, to)
	type answer struct {
		wire.NodeStatus
		rev hub.Revision
		err error
	}
	answers := make(chan answer, len(asked))
	ctx, cancel := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	long, next := time.NewTimer(sayAfter), time.NewTimer(0)
	defer long.Stop()
	defer next.Stop()
	var whys []hostsError
	var elsewhere string // a host that has a way, and is not to have the model
	open := len(to)      // of those that are to have it, how many may still answer
	for begun, ended := 0, 0; ended < len(asked) && (elsewhere == "" || open > 0); {
		select {
		case <-long.C:
			if err := say(); err != nil {
				return nil, "", err
			}
		case <-next.C:
			if begun == len(asked) {
				continue
			}
			n := asked[begun]
			asking.Go(func() {
				rev, err := m.askOf(ctx, n.ID, r)
				answers <- answer{n, rev, err}
			})
			if begun++; begun == 1 {
				next.Reset(othersAfter)
			} else {
				next.Reset(othersEvery)
			}
		case a := <-answers:
			ended++
			is := has(to, a.ID)
			switch {
			case ctx.Err() != nil:
				return nil, "", ctx.Err()
			case a.err == nil && (is || a.ID == m.cfg.Self):
				return &a.rev, a.ID, nil
			case errors.Is(a.err, wire.ErrNoModel), errors.Is(a.err, wire.ErrDenied): // the Hub's word
				return nil, "", a.err
			case a.err == nil:
				elsewhere = cmp.Or(elsewhere, a.Host)
			default:
				whys = because(whys, a.Host, a.err)
				next.Reset(0)
				if is {
					open--
				}
			}
		}
	}
	var texts []string
	for _, w := range whys[:min(len(whys), maxWhys)] {
		texts = append(texts, w.hosts+": "+w.why)
	}
	if more := len(whys) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("%d more", more))
	}
	why := strings.Join(texts, "; ")
	if elsewhere != "" {
		return nil, "", fmt.Errorf("of the machines that are to have it none gets an answer of the Hub, but %s does: "+
			"`sparkrun model pull %s --on %[1]s` first, then here: %[3]s", elsewhere, r.Repo.Name, why)
	}
	return nil, "", fmt.Errorf("none gets an answer of the Hub: %s", why)
}

// hostsError is what hosts have in common.
type hostsError struct{ hosts, why string }

// maxWhys is how many reasons are told.
const maxWhys = 3

func because(all []hostsError, host string, err error) []hostsError {
	for i := range all {
		if all[i].why == err.Error() {
			all[i].hosts += "," + host
			return all
		}
	}
	return append(all, hostsError{host, err.Error()})
}

// whoAsks are the nodes that may ask the Hub, in turn.
func (m *Models) whoAsks(nodes, to []wire.NodeStatus) []wire.NodeStatus {
	asked := slices.DeleteFunc(slices.Clone(nodes), func(n wire.NodeStatus) bool {
		return n.ID != m.cfg.Self && isAway(n)
	})
	rank := func(n wire.NodeStatus) int { return 2*first(n.ID == m.cfg.Self) + first(has(to, n.ID)) }
	slices.SortStableFunc(asked, func(a, b wire.NodeStatus) int { return cmp.Compare(rank(b), rank(a)) })
	return asked
}

func has(nodes []wire.NodeStatus, id launcher.NodeID) bool {
	return slices.ContainsFunc(nodes, func(n wire.NodeStatus) bool { return n.ID == id })
}

func (m *Models) askOf(ctx context.Context, id launcher.NodeID, r wire.NodeModelAskRequest) (hub.Revision, error) {
	if id == m.cfg.Self {
		return m.askHub(ctx, wire.Caller{Node: id}, r)
	}
	return wire.NodeModelAsk.Call(ctx, m.cfg.Dial.Client(id), r)
}

// askHub asks the Hub from here. ErrNoModel and ErrDenied are the Hub's word; after any other error somebody else may
// get an answer.
func (m *Models) askHub(ctx context.Context, _ wire.Caller, r wire.NodeModelAskRequest) (hub.Revision, error) {
	m.mu.Lock()
	last := m.unheard
	m.mu.Unlock()
	if age := time.Since(last.at); r.Brief && last.why != nil && age < unheardFor {
		return hub.Revision{}, fmt.Errorf("%w (%s ago)", last.why, age.Round(time.Second))
	}
	tries, idle := 2, askIdle
	if r.Brief {
		tries, idle = 1, askBriefly
	}
	client, err := m.hub(r, tries, idle)
	if err != nil {
		return hub.Revision{}, err
	}
	rev, err := client.Resolve(ctx, r.Repo.Name, hub.Type(r.Repo.Type), r.Revision)
	if ctx.Err() != nil {
		return hub.Revision{}, ctx.Err()
	}
	last = unheard{}
	if errors.Is(err, hub.ErrOffline) || errors.Is(err, hub.ErrStalled) {
		last = unheard{time.Now(), err}
	}
	m.mu.Lock()
	m.unheard = last
	m.mu.Unlock()
	switch {
	case err == nil:
		return *rev, nil
	case errors.Is(err, hub.ErrGated), errors.Is(err, hub.ErrToken):
		err = fmt.Errorf("%w: %w: --secret HF_TOKEN gives this shell's, --secret HF_TOKEN=FILE a file's", wire.ErrDenied, err)
	case errors.Is(err, hub.ErrNoRepo), errors.Is(err, hub.ErrNoRevision):
		err = fmt.Errorf("%w: %w", wire.ErrNoModel, err)
	}
	return hub.Revision{}, err
}
