package image

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// view is what is known of a pull, and its lines on a terminal.
type view struct {
	app   *app.App
	live  bool
	plan  *wire.ModelPlan
	told  map[string]wire.ModelProgress
	since map[string]start
	drawn int
}

// start is when a machine began to fetch, and with how much.
type start struct {
	at   time.Time
	have int64
}

func newView(a *app.App, live bool) *view {
	return &view{app: a, live: live, told: map[string]wire.ModelProgress{}, since: map[string]start{}}
}

func (v *view) remember(p wire.ModelProgress) (before wire.ModelProgress) {
	if p.Plan != nil {
		v.plan = p.Plan
		return before
	}
	before = v.told[p.Host]
	v.told[p.Host] = p
	if _, is := v.since[p.Host]; !is && p.State == wire.ModelFetches {
		v.since[p.Host] = start{time.Now(), p.Have}
	}
	return before
}

func (v *view) take(p wire.ModelProgress) error {
	again := v.plan != nil // after a connection that was lost
	before := v.remember(p)
	v.erase()
	defer v.draw()
	if p.Plan != nil {
		if !again {
			v.begin(*p.Plan)
		}
		return nil
	}
	for _, note := range p.Notes {
		v.app.Say(p.Host + ": " + note)
	}
	if p.State != before.State && (!v.live || p.Ended() || p.State == wire.ModelAway) && p.State != wire.ModelWaits {
		v.app.Say(v.line(p))
	}
	return nil
}

func (v *view) begin(p wire.ModelPlan) {
	if p.Offline != "" {
		v.app.Say(p.Offline)
	}
	if len(p.Hosts) > 0 {
		v.app.Say(fmt.Sprintf("%s@%s: %s, to %s", p.Repo.Name, short(p.Commit), launcher.Size(p.Bytes), app.Hosts(p.Hosts)))
	}
}

// short is a digest as docker shows it.
func short(digest string) string {
	digest = strings.TrimPrefix(digest, "sha256:")
	return digest[:min(len(digest), 12)]
}

// line is one machine's.
func (v *view) line(p wire.ModelProgress) string {
	switch p.State {
	case wire.ModelDone:
		return fmt.Sprintf("%s: has it: %s", p.Host, short(p.Dir))
	case wire.ModelFailed:
		return fmt.Sprintf("%s: failed: %s", p.Host, p.Error)
	case wire.ModelAway:
		return fmt.Sprintf("%s: does not answer, and goes on when it is back: %s", p.Host, p.Error)
	case wire.ModelWaits:
		return p.Host + ": waits"
	case wire.ModelUnpacks:
		return p.Host + ": its Docker unpacks it"
	}
	text := fmt.Sprintf("%s: %s of %s", p.Host, launcher.Size(p.Have), launcher.Size(p.Bytes))
	if s := v.since[p.Host]; p.Have > s.have && time.Since(s.at) > time.Second {
		text += fmt.Sprintf("  %s/s", launcher.Size(int64(float64(p.Have-s.have)/time.Since(s.at).Seconds())))
	}
	if p.From != "" {
		text += "  from " + p.From
	}
	return text
}

func (v *view) draw() {
	if !v.live || v.plan == nil {
		return
	}
	for _, host := range v.plan.Hosts {
		if p, ok := v.told[host]; ok && !p.Ended() {
			line := []rune(v.line(p))
			fmt.Fprintln(v.app.Err, string(line[:max(0, min(len(line), v.app.Columns()-1))]))
			v.drawn++
		}
	}
}

func (v *view) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.app.Err, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

// missing is an error where a machine has not got it.
func (v *view) missing() error {
	var not []string
	for host, p := range v.told {
		if p.State != wire.ModelDone {
			not = append(not, host)
		}
	}
	if len(not) == 0 {
		return nil
	}
	slices.Sort(not)
	return fmt.Errorf("%d of %s have not got it: %s", len(not), app.Count(len(v.told), "machine"), app.Hosts(not))
}
