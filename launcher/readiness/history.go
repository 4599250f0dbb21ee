package readiness

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// How many observations of a service count as a state.
const (
	// sickAfter observations in a row without an answer make it unhealthy; without metrics, that is reported.
	sickAfter = 2
	// wedgeAfter is how long requests run without any sign of work until the service is
	// called wedged. With the time between two observations it stays below a minute.
	wedgeAfter = 50 * time.Second
)

// observation is the result of one look.
type observation struct {
	health  error
	metrics *metrics // nil: they could not be read
	blind   bool     // though there should be some
}

// history is what was found so far.
type history struct {
	seen      launcher.ServiceSeen
	sick      int     // observations in a row without an answer
	generated error   // error of the last completion that was requested
	last      metrics // the last metrics that were read
	lastAt    time.Time
	had       bool          // last was set
	blind     int           // observations in a row in which it answered, but without usable metrics
	generates bool          // completions are requested: they show whether it is stuck
	frozen    time.Duration // how long requests ran while nothing in last has moved
	base      struct {      // of the next rate: as at the last event
		at        time.Time
		generated float64
		rate      *float64
		running   *int
	}
}

// note adds one observation: seen is then the service's state.
func (l *history) note(now time.Time, s observation) {
	l.work(now, s.metrics)
	if s.health == nil {
		l.sick = 0
		if l.seen.Ready == nil {
			l.seen.Ready = &now
		}
	} else {
		l.sick++
	}
	if !s.blind {
		l.blind = 0
	} else if s.health == nil {
		l.blind++
	}
	state, text := launcher.ServiceReady, ""
	switch {
	case l.seen.Ready == nil:
		state, text = launcher.ServiceStarting, s.health.Error()
	case l.frozen >= wedgeAfter:
		state, text = launcher.ServiceWedged,
			fmt.Sprintf("%s, and no token has come for %s", requests(l.last.running), l.frozen.Round(time.Second))
	case l.sick >= sickAfter:
		state, text = launcher.ServiceUnhealthy, s.health.Error()
	case l.sick > 0 && l.seen.State == launcher.ServiceUnhealthy:
		state, text = l.seen.State, s.health.Error()
	case errors.Is(l.generated, errKept):
		text = l.generated.Error()
	case l.generated != nil:
		state, text = launcher.ServiceUnhealthy, l.generated.Error()
	case s.blind && !l.had &&
		(l.blind >= sickAfter || l.seen.Text == l.blindText()): // reported before a restart of the agent
		text = l.blindText()
	}
	if state != l.seen.State {
		l.seen.Since = now
	}
	l.seen.State, l.seen.Text = state, text
}

func (l *history) blindText() string {
	text := "its metrics show no requests: its tokens are not counted"
	if !l.generates {
		text += ", and it would not be seen if it were stuck"
	}
	return text
}

func requests(n float64) string {
	if n == 1 {
		return "1 request is running"
	}
	return fmt.Sprintf("%.0f requests are running", n)
}

// work takes the metrics of one observation: while requests run, and none of the metrics
// that grow with work has moved, the service is frozen. Reading a prompt is work. The time
// between two observations that are far apart counts only in part: this machine may have
// slept.
func (l *history) work(now time.Time, m *metrics) {
	if m == nil {
		return
	}
	if m.running == 0 || l.had && m.progress != l.last.progress {
		l.frozen = 0
	} else if l.had {
		l.frozen += min(now.Sub(l.lastAt), 3*lookEvery)
	}
	if !l.had {
		l.base.at, l.base.generated = now, m.generated
	}
	l.last, l.lastAt, l.had = *m, now, true
	n := int(m.running)
	l.seen.Running = &n
}

// moved reports whether the metrics differ from those reported last.
func (l *history) moved() bool {
	if !l.had {
		return false
	}
	return l.base.running == nil || *l.base.running != int(l.last.running) || l.base.rate == nil ||
		*l.base.rate != l.rate(l.lastAt)
}

// rate is how many tokens a second were generated since the last event: as the server says,
// or by its counter.
func (l *history) rate(now time.Time) float64 {
	r := 0.0
	if l.last.hasThroughput {
		if l.last.running > 0 { // else it is an old value
			r = l.last.throughput
		}
	} else if secs := now.Sub(l.base.at).Seconds(); secs > 0 && l.last.generated >= l.base.generated {
		r = (l.last.generated - l.base.generated) / secs
	}
	return math.Round(r*10) / 10
}

// measure updates the metrics of seen, before they are reported.
func (l *history) measure(now time.Time) {
	if !l.had || !now.After(l.base.at) {
		return
	}
	r, n := l.rate(l.lastAt), int(l.last.running)
	l.seen.Rate, l.seen.Running = &r, &n
	l.base.at, l.base.generated, l.base.rate, l.base.running = l.lastAt, l.last.generated, &r, &n
}
