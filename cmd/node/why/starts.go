package why

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// briefly is how long what takes a moment may take on a busy machine.
const briefly = 20 * time.Second

// engine asks this machine's container engine, while all else is looked at; of a job, if it has containers.
func (w *Why) engine(ctx context.Context, r wire.LookRequest) <-chan string {
	answer := make(chan string, 1)
	if r.Job != "" && !r.Engine {
		answer <- ""
		return answer
	}
	go func() {
		text := ""
		if err := w.cfg.Agent.EngineAnswers(ctx, r.Engine, window); err != nil && ctx.Err() == nil {
			text = err.Error()
		}
		answer <- text
	}()
	return answer
}

// contains reports whether what is asked for has containers on a machine, or is to have some there.
func (e Evidence) contains(n wire.NodeStatus) bool {
	has := func(j rendezvous.JobStatus) bool {
		st := j.Spec.MainStage()
		return st != nil && st.Container != nil
	}
	if e.Job != nil {
		return has(*e.Job)
	}
	return slices.ContainsFunc(e.Open, func(j rendezvous.JobStatus) bool {
		return has(j) && on(j, n.ID)
	})
}

// starting is about jobs whose ranks have not been exec'd: what each machine does for them, which is a finding where it
// takes long without a reason.
func (e Evidence) starting(l wire.NodeLook) (out []wire.WhyFinding) {
	if l.Engine != "" {
		f := wire.WhyFinding{Code: "engine-silent", Sure: 55, Host: l.Host, Text: l.Host + ": " + l.Engine,
			Remedy: "systemctl status docker   # on " + l.Host}
		if len(l.Starts) > 0 {
			f.Sure = 88
		}
		for _, s := range l.Starts {
			f.Evidence = append(f.Evidence, e.startText(l, s))
		}
		return []wire.WhyFinding{f}
	}
	for _, s := range l.Starts {
		switch image, pulls := strings.CutPrefix(s.Text, "pulls "); {
		case pulls && s.Still >= 2*lasts: // others wait for the like of that
			image, _, _ = strings.Cut(image, ": ") // how much of it is here
			out = append(out, wire.WhyFinding{Code: "start-stalls", Sure: 50, Host: l.Host, Text: e.startText(l, s) +
				", and nothing of it has come for " + s.Still.Round(time.Second).String(),
				Remedy: fmt.Sprintf("docker pull %s   # on %s", image, l.Host)})
		case s.Brief && s.For >= briefly:
			out = append(out, wire.WhyFinding{Code: "start-stuck", Sure: 60, Host: l.Host, Text: e.startText(l, s) +
				": that takes a moment, unless a disk does not answer", Remedy: "sparkrun why " + l.Host})
		}
	}
	return out
}

// startText says it of the job that was asked for, else with the job.
func (e Evidence) startText(l wire.NodeLook, s wire.StartLook) string {
	text := fmt.Sprintf("%s %s, for %s", l.Host, s.Text, s.For.Round(time.Second))
	if e.Job == nil {
		text = "job " + string(s.Job) + ": " + text
	}
	return text
}

// startTexts says it of all machines.
func (e Evidence) startTexts() (out []string) {
	for _, l := range e.Looks {
		for _, s := range l.Starts {
			out = append(out, e.startText(l, s))
		}
	}
	return out
}
