package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// Doing is what this node does for an attempt until its ranks have been exec'd.
type Doing struct {
	launcher.Key
	Text  string // after the machine's name
	Since time.Time
	Moved time.Time // since when the text is as it is, with how far it is
	Brief bool      // it takes a moment where disks and the engine answer
}

// does notes what is done for an attempt now. How far it is, which follows a colon, makes it no other thing.
func (a *Agent) does(k launcher.Key, text string, brief bool) {
	a.mu.Lock()
	t := a.attempts[k]
	a.mu.Unlock()
	if t != nil {
		t.does(text, brief)
	}
}

func (t *attempt) does(text string, brief bool) {
	t.entryMu.Lock()
	defer t.entryMu.Unlock()
	what, _, _ := strings.Cut(text, ": ")
	if was, _, _ := strings.Cut(t.doing.Text, ": "); was != what {
		t.doing.Since = time.Now()
	}
	if t.doing.Text != text {
		t.doing.Moved = time.Now()
	}
	t.doing.Key, t.doing.Text, t.doing.Brief = t.key, text, brief
}

// Doing tells it of the attempts of a job, or of all that have not ended.
func (a *Agent) Doing(job launcher.JobID) (all []Doing) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k, t := range a.attempts {
		t.entryMu.Lock()
		if (job == "" || k.Job == job) && t.doing.Text != "" && t.entry.Phase != launcher.PhaseEnded {
			all = append(all, t.doing)
		}
		t.entryMu.Unlock()
	}
	slices.SortFunc(all, func(x, y Doing) int { return strings.Compare(x.String(), y.String()) })
	return all
}

// EngineAnswers asks this node's container engine for a sign of life: it must, or ranks have had containers here.
func (a *Agent) EngineAnswers(ctx context.Context, must bool, within time.Duration) error {
	return a.containers.Answers(ctx, must, within)
}
