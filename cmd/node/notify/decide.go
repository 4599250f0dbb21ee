package notify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// How long something has to be so before it is told.
const (
	holdLost    = launcher.DefaultNodeTimeout // as for jobs
	holdBack    = 5 * time.Second
	holdSick    = 10 * time.Second // a service that does not answer its probes; they take their time, too
	holdMoves   = 2 * time.Minute  // a service that was ended to go on elsewhere, and finds no place
	holdFinding = time.Minute
	holdGone    = 30 * time.Minute // an error of doctor's that comes back within it is no news
	// Trouble with what was told of often, each time less than calm after the last, has to hold for holdFlaps.
	holdFlaps = 10 * time.Minute
	often     = 4
	calm      = time.Hour
	maxTell   = 50 // at once: an entry of the record is bounded
)

// What is said of things.
const (
	up, down, wedged = "up", "down", "wedged" // services
	lost, back       = "lost", "back"         // machines
	wrong, gone      = "error", "gone"        // doctor's errors
)

// sight is how one thing is now.
type sight struct {
	key    string
	state  string // empty: what was said of it stands
	base   string // its state where nothing was said
	since  time.Time
	hold   time.Duration
	notice rendezvous.Notice // without an event: it is not told
}

// memory has since when things are otherwise than was said of them.
type memory map[string]pending

type pending struct {
	state string
	since time.Time
}

// unsure tells whether an error of doctor's is there, or gone, that has yet to prove itself.
func (m memory) unsure() bool {
	for key, p := range m {
		if isFinding(key) && p.state == wrong {
			return true
		}
	}
	return false
}

// decide says what is to be told now, and when something else will be unless it changes; zero: nothing will.
func (m memory) decide(now time.Time, sights []sight, n rendezvous.Notify) (tell rendezvous.NotifyTell, next time.Time) {
	tell.Told = map[string]rendezvous.NotifyTold{}
	seen := map[string]bool{}
	for _, s := range sights {
		seen[s.key] = true
		was := n.Told[s.key]
		if s.state == "" || s.state == cmp.Or(was.State, s.base) {
			delete(m, s.key)
			continue
		}
		p := m[s.key]
		if p.state != s.state {
			p = pending{s.state, now}
			if !s.since.IsZero() && s.since.Before(now) {
				p.since = s.since
			}
			m[s.key] = p
		}
		// That it is well again is not held up: who was told of the trouble would believe in it for so long.
		if s.state != up && s.state != back && was.Count >= often && now.Sub(was.At) < calm {
			s.hold = max(s.hold, holdFlaps)
		}
		if due := p.since.Add(s.hold); now.Before(due) {
			if next.IsZero() || due.Before(next) {
				next = due
			}
			continue
		}
		if len(tell.Told) == maxTell { // the rest at once after these
			next = now
			continue
		}
		delete(m, s.key)
		told := rendezvous.NotifyTold{State: s.state, At: now.UTC(), Count: 1}
		if now.Sub(was.At) < calm {
			told.Count += was.Count
		}
		if s.state == gone {
			told = rendezvous.NotifyTold{}
		}
		tell.Told[s.key] = told
		old := !s.since.IsZero() && s.since.Before(n.Since) // it was so before anybody asked
		if s.notice.Event != "" && !old {
			s.notice.At, s.notice.Cause = now.UTC(), plain.Cut(plain.Line(s.notice.Cause), rendezvous.MaxNoticeText)
			tell.Notices = append(tell.Notices, s.notice)
		}
	}
	maps.DeleteFunc(m, func(key string, _ pending) bool { return !seen[key] })
	for key := range n.Told { // machines that were removed, services that have ended
		if !isFinding(key) && !seen[key] {
			tell.Told[key] = rendezvous.NotifyTold{}
		}
	}
	return tell, next
}

func isFinding(key string) bool { return strings.HasPrefix(key, "finding/") }

func nodeSights(st wire.Status) (out []sight) {
	for _, n := range st.Nodes {
		s := sight{key: rendezvous.NotifyNode(n.ID), base: back, since: n.Since,
			notice: rendezvous.Notice{Host: n.Host, State: n.State, Cause: n.Why}}
		switch n.State {
		case "ready", "drained":
			s.state, s.hold, s.notice.Event = back, holdBack, rendezvous.EventNodeBack
		case "away":
			s.state, s.hold, s.notice.Event = lost, holdLost, rendezvous.EventNodeLost
			if n.Why == "" {
				s.notice.Cause = fmt.Sprintf("it has not answered for %s", holdLost)
			}
		}
		out = append(out, s)
	}
	return out
}

func serviceSights(jobs []rendezvous.JobStatus, told map[string]rendezvous.NotifyTold) (out []sight) {
	for _, j := range jobs {
		if j.Spec.Service != nil && j.Outcome == nil {
			out = append(out, serviceSight(j, told[rendezvous.NotifyService(j.Spec.ID)].State))
		}
	}
	return out
}

// serviceSight is how a service is. One that has never answered is not down, and one that is wedged is not told to be
// down as well: its ranks are ended for it. What it ends with is told by the record.
func serviceSight(j rendezvous.JobStatus, told string) sight {
	word, text := j.ServiceState()
	s := sight{key: rendezvous.NotifyService(j.Spec.ID), notice: rendezvous.Notice{Job: j.Spec.ID, State: word, Cause: text}}
	if hosts := j.MainHosts(); len(hosts) > 0 {
		s.notice.Host = hosts[0]
	}
	is := func(state string, e rendezvous.NotifyEvent, hold time.Duration, cause string) {
		s.state, s.notice.Event, s.hold, s.notice.Cause = state, e, hold, cause
	}
	switch {
	case j.Moves, j.Stop != nil, j.State == rendezvous.StateAsleep:
	case len(j.Away) > 0 && told == up:
		is(down, rendezvous.EventServiceDown, holdLost, strings.Join(j.Away, ", ")+" does not answer")
		s.notice.Host, s.notice.State, s.since = j.Away[0], "away", j.AwaySince[j.Away[0]]
	case len(j.Away) > 0:
	case word == string(launcher.ServiceReady):
		is(up, rendezvous.EventServiceUp, 0, "")
		s.since = j.Service.Since
		if addr := j.ServiceAddr(); addr != "" {
			s.notice.Cause = "http://" + addr
		}
	case word == string(launcher.ServiceWedged):
		is(wedged, rendezvous.EventServiceWedged, 0, text)
		s.since = j.Service.Since
	case told != up:
	case word == string(launcher.ServiceUnhealthy):
		is(down, rendezvous.EventServiceDown, holdSick, text)
	case j.Last == nil:
	case j.Last.End == rendezvous.Failed && !j.Last.Moved && !j.Last.Asleep:
		is(down, rendezvous.EventServiceDown, 0, outcomeText(*j.Last))
		if j.Last.Root != nil {
			s.notice.Host = j.Last.Root.Host
		}
	case j.State == rendezvous.StateWaits && !j.Last.Asleep:
		is(down, rendezvous.EventServiceDown, holdMoves, cmp.Or(j.Waits, j.Last.Cause))
	}
	return s
}

// outcomeText is why something ended, with its last line where that is all that is known.
func outcomeText(o rendezvous.Outcome) string {
	if line := o.LastLine(); line != "" {
		return fmt.Sprintf("%s (its last line: %s)", o.Cause, line)
	}
	return o.Cause
}

// findingSights are errors, each once a machine, and those that were told and are gone.
func findingSights(findings []envgen.Finding, told map[string]rendezvous.NotifyTold) (out []sight) {
	has := func(key string) bool { return slices.ContainsFunc(out, func(s sight) bool { return s.key == key }) }
	for _, f := range findings {
		key := rendezvous.NotifyFinding(f.Code, f.Node)
		if f.Severity == envgen.SeverityError && !has(key) {
			out = append(out, sight{key: key, state: wrong, base: gone, hold: holdFinding, notice: rendezvous.Notice{
				Event: rendezvous.EventDoctorError, Host: f.Host, State: f.Code, Cause: f.Text}})
		}
	}
	for key := range told {
		if isFinding(key) && !has(key) {
			out = append(out, sight{key: key, state: gone, base: gone, hold: holdGone})
		}
	}
	return out
}
