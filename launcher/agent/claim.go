package agent

import (
	"fmt"
	"maps"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// claim takes a port that people know for a try, as long as that is there: neither what holdAt binds
// nor a server that loads its model before it listens keeps another from the port, as each sets
// SO_REUSEADDR. vLLM sets SO_REUSEPORT as well: of two on one port each would get half of the requests.
func (a *Agent) claim(k launcher.Key, wish launcher.NamedPort) error {
	if wish.At == 0 {
		return nil
	}
	span := spanOf(wish)
	a.mu.Lock()
	defer a.mu.Unlock()
	for other, t := range a.tries {
		e := t.snapshot()
		if other.Job == k.Job || e.Phase == launcher.PhaseEnded || e.Refused != "" && e.Phase < launcher.PhasePrepared {
			continue // one that is started may have refused a later step
		}
		for _, taken := range slices.Concat(slices.Collect(maps.Values(e.Ports)), a.claims[other]) {
			if taken.First <= span.Last && span.First <= taken.Last {
				return fmt.Errorf("port %d is job %s's here (`sparkrun ps %[2]s`): end that, or choose another port", max(taken.First, span.First), other.Job)
			}
		}
	}
	a.claims[k] = append(a.claims[k], span)
	return nil
}

func spanOf(wish launcher.NamedPort) launcher.Ports {
	return launcher.Ports{First: wish.At, Last: wish.At + uint16(max(wish.Count, 1)-1)}
}
