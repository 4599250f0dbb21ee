package agent

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// claim takes ports for an attempt, for as long as the attempt lasts. Neither what holdAt
// binds nor a server that loads its model before it listens keeps others from a port, as
// each sets SO_REUSEADDR; vLLM sets SO_REUSEPORT as well, and of two on one port each would
// get half of the requests. Ports that were searched for are claimed like those that the
// user named: once their step is started, nothing else holds them.
func (a *Agent) claim(k launcher.Key, span launcher.Ports) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.taken(k, span); err != nil {
		return err
	}
	a.claims[k] = append(a.claims[k], span)
	return nil
}

// taken returns an error if another job here has one of the ports. a.mu is held.
func (a *Agent) taken(k launcher.Key, span launcher.Ports) error {
	for other, t := range a.attempts {
		if other.Job == k.Job {
			continue
		}
		for _, its := range t.ports(a.claims[other]) {
			if its.First <= span.Last && span.First <= its.Last {
				return fmt.Errorf("job %[2]s has port %[1]d here (`sparkrun ps %[2]s`): end that job, or choose another port",
					max(its.First, span.First), other.Job)
			}
		}
	}
	return nil
}

// ports are those that an attempt's ranks may listen on here, together with those that it
// claimed. a.mu is held.
func (t *attempt) ports(claimed []launcher.Ports) []launcher.Ports {
	t.entryMu.Lock()
	defer t.entryMu.Unlock()
	e := &t.entry
	if e.Phase == launcher.PhaseEnded || e.Refused != "" && e.Phase < launcher.PhasePrepared {
		return nil // an attempt that is started may have refused a later step
	}
	all := slices.Concat(slices.Collect(maps.Values(e.Ports)), claimed)
	if as := t.assignment; e.Port != 0 && (as == nil || as.NodeRank == 0) { // on other nodes this is the head's port
		all = append(all, onePort(e.Port))
	}
	return all
}

// unclaim gives back ports that turned out not to be free.
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
