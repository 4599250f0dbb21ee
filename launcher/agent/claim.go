package agent

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// claim takes ports for an attempt, as long as that is there: neither what holdAt binds nor a server that
// loads its model before it listens keeps another from a port, as each sets SO_REUSEADDR. vLLM sets
// SO_REUSEPORT as well: of two on one port each would get half of the requests. Ports that were found
// free are claimed like those that people know: once their step is started, nothing holds them either.
func (a *Agent) claim(k launcher.Key, span launcher.Ports) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.taken(k, span); err != nil {
		return err
	}
	a.claims[k] = append(a.claims[k], span)
	return nil
}

// taken says which other job has one of some ports here. a.mu is held.
func (a *Agent) taken(k launcher.Key, span launcher.Ports) error {
	for other, t := range a.attempts {
		if other.Job == k.Job {
			continue
		}
		for _, its := range t.ports(a.claims[other]) {
			if its.First <= span.Last && span.First <= its.Last {
				return fmt.Errorf("port %d is job %s's here (`sparkrun ps %[2]s`): end that, or choose another port",
					max(its.First, span.First), other.Job)
			}
		}
	}
	return nil
}

// ports are those that an attempt's ranks may listen on here, with what it has claimed in this incarnation of the
// agent. a.mu is held.
func (t *attempt) ports(claimed []launcher.Ports) []launcher.Ports {
	t.entryMu.Lock()
	defer t.entryMu.Unlock()
	e := &t.entry
	if e.Phase == launcher.PhaseEnded || e.Refused != "" && e.Phase < launcher.PhasePrepared {
		return nil // one that is started may have refused a later step
	}
	all := slices.Concat(slices.Collect(maps.Values(e.Ports)), claimed)
	if as := t.assignment; e.Port != 0 && (as == nil || as.NodeRank == 0) { // elsewhere it is the head's
		all = append(all, onePort(e.Port))
	}
	return all
}

// unclaim gives back what claim took, and turned out not to be free.
func (a *Agent) unclaim(k launcher.Key, span launcher.Ports) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.Index(a.claims[k], span); i >= 0 {
		a.claims[k] = slices.Delete(a.claims[k], i, i+1)
	}
}

func spanOf(wish launcher.NamedPort) launcher.Ports {
	return launcher.Ports{First: wish.At, Last: wish.At + uint16(max(wish.Count, 1)-1)}
}

func onePort(port int) launcher.Ports {
	return launcher.Ports{First: uint16(port), Last: uint16(port)}
}
