package consensus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// What a client asks about one job, and what it is told.
type (
	simAsk struct {
		what string // submit, get, cancel
		job  launcher.JobID
	}
	simTold string
)

const (
	toldDone    simTold = "done"    // of submit: created; of cancel: ended
	toldKnown   simTold = "known"   // of submit: the job exists; of cancel: it has ended already
	toldNone    simTold = "none"    // of get and cancel: no such job
	toldRuns    simTold = "runs"    // of get
	toldEnded   simTold = "ended"   // of get
	toldRefused simTold = "refused" // certainly nothing was recorded
	toldUnknown simTold = "unknown" // it may have been, or be yet
)

// history is what all clients saw, in one order.
type history struct {
	mu     sync.Mutex
	events []porcupine.Event
	open   map[int]bool
	next   int
	acked  map[launcher.JobID]bool
}

func (h *history) call(client int, a simAsk) (id int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.open == nil {
		h.open, h.acked = map[int]bool{}, map[launcher.JobID]bool{}
	}
	h.next++
	h.open[h.next] = true
	h.events = append(h.events, porcupine.Event{ClientId: client, Kind: porcupine.CallEvent, Value: a, Id: h.next})
	return h.next
}

// told closes a call. One with an unknown outcome stays open to the end: what it
// asked for may happen at any time until then.
func (h *history) told(client, id int, a simAsk, t simTold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t == toldUnknown {
		return
	}
	if a.what == "submit" && (t == toldDone || t == toldKnown) {
		h.acked[a.job] = true
	}
	delete(h.open, id)
	h.events = append(h.events, porcupine.Event{ClientId: client, Kind: porcupine.ReturnEvent, Value: t, Id: id})
}

// closed is the whole history.
func (h *history) closed() []porcupine.Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.open {
		h.events = append(h.events, porcupine.Event{Kind: porcupine.ReturnEvent, Value: toldUnknown, Id: id})
	}
	clear(h.open)
	return h.events
}

// jobModel is what one job may do: come to be once, end once.
var jobModel = porcupine.NondeterministicModel{
	PartitionEvent: func(events []porcupine.Event) [][]porcupine.Event {
		var parts [][]porcupine.Event
		part, of := map[launcher.JobID]int{}, map[int]int{}
		for _, e := range events {
			if a, ok := e.Value.(simAsk); ok {
				p, known := part[a.job]
				if !known {
					p = len(parts)
					part[a.job], parts = p, append(parts, nil)
				}
				of[e.Id] = p
			}
			parts[of[e.Id]] = append(parts[of[e.Id]], e)
		}
		return parts
	},
	Init: func() []any { return []any{toldNone} },
	Step: func(state, input, output any) []any {
		is, a, t := state.(simTold), input.(simAsk), output.(simTold)
		next, answer := is, is // of get
		switch {
		case a.what == "submit" && is == toldNone:
			next, answer = toldRuns, toldDone
		case a.what == "submit":
			answer = toldKnown
		case a.what == "cancel" && is == toldRuns:
			next, answer = toldEnded, toldDone
		case a.what == "cancel" && is == toldEnded:
			answer = toldKnown
		}
		switch t {
		case answer:
			return []any{next}
		case toldRefused:
			return []any{is}
		case toldUnknown:
			return []any{is, next}
		}
		return nil
	},
}

// client asks random things about a few jobs until the end; it repeats what got
// no clear answer with the same id, as the CLI does.
func (s *sim) client(num int, until time.Time, jobs int) {
	rng := rand.New(rand.NewPCG(s.seed, 100+uint64(num)))
	for time.Now().Before(until) {
		time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
		a := simAsk{what: []string{"submit", "submit", "get", "get", "get", "cancel"}[rng.IntN(6)],
			job: launcher.JobID(fmt.Sprintf("job%07d", rng.IntN(jobs)))}
		tries := 1 + rng.IntN(4)
		for range tries {
			l := s.nodes[rng.IntN(len(s.nodes))].now()
			if lead := s.leader(); lead != nil && rng.IntN(4) > 0 {
				l = lead
			}
			if l == nil {
				time.Sleep(200 * time.Millisecond)
				continue
			}
			id := s.history.call(num, a)
			t := s.ask(l, a, 500*time.Millisecond+time.Duration(rng.IntN(3000))*time.Millisecond)
			s.history.told(num, id, a, t)
			if t != toldRefused && t != toldUnknown {
				break
			}
			time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
		}
	}
}

// ask does one thing at one node.
func (s *sim) ask(l *simLife, a simAsk, patience time.Duration) simTold {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	e := rendezvous.Entry{At: time.Now()}
	switch a.what {
	case "get":
		switch s.bug {
		case staleRead: // whoever is asked answers by its own copy
		case staleLeader:
			if l.State() != Leader {
				return toldRefused
			}
		default:
			if err := l.Verify(ctx); err != nil {
				return toldRefused
			}
		}
		j, known := l.record.Job(a.job)
		switch {
		case !known:
			return toldNone
		case j.Outcome == nil:
			return toldRuns
		}
		return toldEnded
	case "submit":
		e.Kind, e.Job = rendezvous.KindPlan, &rendezvous.Job{
			Planned: time.Now(),
			Spec: launcher.Spec{ID: a.job, Workload: "exec", Nodes: 1,
				Stages: []launcher.Stage{{Name: "main", Main: true, RanksPerNode: 1, Argv: launcher.Lits("true"),
					Workdir: "/"}}}.WithDefaults(),
			Plan: rendezvous.Plan{Generation: 1, World: 1, Head: netip.MustParseAddr("10.0.0.1"), Network: "loopback",
				Nodes: []rendezvous.Place{{Node: launcher.NodeID(s.nodes[0].id), Host: "spark1", Ranks: 1}}},
		}
	case "cancel":
		e.Kind, e.End = rendezvous.KindEnd,
			&rendezvous.JobEnd{Key: launcher.Key{Job: a.job, Generation: 1},
				Outcome: rendezvous.Outcome{End: rendezvous.Stopped, At: time.Now()}}
	}
	b, err := e.Encode()
	if err != nil {
		panic(err)
	}
	res, err := l.Apply(ctx, b)
	answer, _ := res.(error)
	switch {
	case errors.Is(err, ErrUnknownOutcome):
		return toldUnknown
	case err != nil:
		return toldRefused // as consensus.go promises of all others
	case answer == nil:
		return toldDone
	case errors.Is(answer, rendezvous.ErrNoJob):
		return toldNone
	case errors.Is(answer, rendezvous.ErrJobExists), errors.Is(answer, rendezvous.ErrJobEnded):
		return toldKnown
	}
	s.violated("P1 linearizable", "%s of %s was answered %v", a.what, a.job, answer)
	return toldUnknown
}

// survivors is P5: what was acknowledged is on every node.
func (s *sim) survivors() {
	s.history.mu.Lock()
	defer s.history.mu.Unlock()
	for id := range s.history.acked {
		for _, l := range s.lives() {
			if _, ok := l.record.Job(id); !ok {
				s.violated("P5 acknowledged submits survive", "%s is not on %s", id, l.node.id)
			}
		}
	}
}

// check is P1, after the run.
func (s *sim) check() {
	events := s.history.closed()
	model := jobModel.ToModel()
	switch res := porcupine.CheckEventsTimeout(model, events, time.Minute); res {
	case porcupine.Ok:
	case porcupine.Illegal:
		s.violated("P1 linearizable", "the history of %s is not", illegal(model, events))
	default:
		s.violated("P1 linearizable", "checking %d events took over a minute", len(events))
	}
}

// illegal shows the jobs whose histories are not linearizable.
func illegal(model porcupine.Model, events []porcupine.Event) string {
	var out []string
	for _, part := range jobModel.PartitionEvent(events) {
		if porcupine.CheckEvents(model, part) {
			continue
		}
		var lines []string
		for _, e := range part {
			if a, ok := e.Value.(simAsk); ok {
				lines = append(lines, fmt.Sprintf("%d %s?", e.Id, a.what))
			} else {
				lines = append(lines, fmt.Sprintf("%d %s", e.Id, e.Value))
			}
		}
		out = append(out, string(part[0].Value.(simAsk).job)+": "+strings.Join(lines, ", "))
	}
	return strings.Join(out, "; ")
}
