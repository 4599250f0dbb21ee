// Package pull decides how something that machines fetch is followed and shown, whatever it is: a model, an image.
//
// It must not know how it travels: that is a call, whose replies are told here.
package pull

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// TargetFlags binds the flags that say to which machines it comes: one of them. first says which of them --nodes takes.
func TargetFlags(a *app.App, cmd *cobra.Command, on *[]string, nodes *int, all *bool, first string) {
	fs := cmd.Flags()
	fs.StringSliceVar(on, "on", nil, "to these machines: `HOST,HOST`")
	app.CompleteFlag(cmd, "on", a.CompleteHosts)
	fs.Var(app.Positive{N: nodes}, "nodes", "to `N` machines, "+first)
	fs.BoolVar(all, "all", false, "to all machines")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if len(*on) > 0 && *nodes > 0 || *all && (len(*on) > 0 || *nodes > 0) {
			return app.Usagef("give one of --on, --nodes and --all")
		}
		return nil
	}
}

// Targets are those flags, as they are typed.
func Targets(on []string, nodes int, all bool) string {
	switch {
	case len(on) > 0:
		return " --on " + strings.Join(on, ",")
	case nodes > 0:
		return fmt.Sprintf(" --nodes %d", nodes)
	case all:
		return " --all"
	}
	return ""
}

// Kind is what is pulled.
type Kind struct {
	Command string // that pulls it
	Targets string // the flags that name its machines, each after a space; empty: none
	GiveUp  string // what else may be typed once it is interrupted; empty: nothing
	// Begin says what is fetched, a line each.
	Begin func(wire.ModelPlan) []string
	// Whole says what a machine has in the end.
	Whole func(wire.ModelProgress) string
}

// View shows a pull: on a terminal a line for each machine, else what changes.
type View struct {
	Plan *wire.ModelPlan // nil: nothing is known yet

	app   *app.App
	kind  Kind
	name  string
	live  bool
	told  map[string]wire.ModelProgress
	rates map[string]*rate
	drawn int
}

// NewView shows the pull of what has this name.
func NewView(a *app.App, k Kind, name string, live bool) *View {
	return &View{app: a, kind: k, name: name, live: live, told: map[string]wire.ModelProgress{},
		rates: map[string]*rate{}}
}

// Call asks for the pull, and gives each reply on. again: it was begun before.
type Call func(ctx context.Context, again bool, each func(wire.ModelProgress) error) error

// Follow pulls, and tells until all machines have ended; it asks again where the agent is away.
func (v *View) Follow(ctx context.Context, call Call, tell func(wire.ModelProgress) error) error {
	var pause app.Pause
	heard := time.Now()
	for {
		err := call(ctx, v.Plan != nil, func(p wire.ModelProgress) error {
			heard = time.Now()
			pause.Reset()
			return tell(p)
		})
		v.erase()
		switch {
		case ctx.Err() != nil && v.Plan != nil:
			v.app.Say(fmt.Sprintf("the machines go on: `%s %s%s` follows them again%s", v.kind.Command, v.name,
				v.kind.Targets, v.kind.GiveUp))
			return app.Exits(app.ExitOf(syscall.SIGINT), nil)
		case err == nil:
			return nil
		case v.Plan == nil || !app.Passing(err) || time.Since(heard) > app.Patience:
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

func (v *View) remember(p wire.ModelProgress) (before wire.ModelProgress) {
	if p.Host == "" {
		v.Plan = cmp.Or(p.Plan, v.Plan)
		return wire.ModelProgress{}
	}
	before = v.told[p.Host]
	v.told[p.Host] = p
	if v.rates[p.Host] == nil {
		v.rates[p.Host] = &rate{}
	}
	v.rates[p.Host].add(time.Now(), p.Have)
	return before
}

// Take tells people.
func (v *View) Take(p wire.ModelProgress) error {
	again := v.Plan != nil // after a connection that was lost
	before := v.remember(p)
	v.erase()
	defer v.draw()
	switch {
	case p.Plan != nil && !again:
		for _, line := range v.kind.Begin(*p.Plan) {
			v.app.Say(line)
		}
	case p.Asks != "":
		v.app.Say("asks " + p.Asks + " for " + v.name)
	}
	if p.Host == "" {
		return nil
	}
	for _, note := range p.Notes {
		v.app.Say(p.Host + ": " + note)
	}
	if p.State != before.State && (!v.live || p.Ended() || p.State == wire.ModelAway) && p.State != wire.ModelWaits {
		v.app.Say(strings.TrimRight(v.line(p), " "))
	}
	return nil
}

// line is one machine's.
func (v *View) line(p wire.ModelProgress) string {
	switch p.State {
	case wire.ModelDone:
		return p.Host + ": " + v.kind.Whole(p)
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
	if perSecond := v.rates[p.Host].perSecond(); perSecond > 0 {
		left := time.Duration(float64(p.Bytes-p.Have) / perSecond * float64(time.Second))
		text += fmt.Sprintf("  %s/s  %s left", launcher.Size(int64(perSecond)), left.Round(time.Second))
	}
	if p.From != "" {
		text += "  from " + p.From
	}
	return text
}

func (v *View) draw() {
	if !v.live || v.Plan == nil {
		return
	}
	var b strings.Builder
	for _, host := range v.Plan.Hosts {
		if p, ok := v.told[host]; ok && !p.Ended() {
			b.WriteString(cut(v.line(p), v.app.Columns()-1) + "\n")
			v.drawn++
		}
	}
	fmt.Fprint(v.app.Err, b.String())
}

func (v *View) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.app.Err, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func cut(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width || width < 4 {
		return text
	}
	return string(runes[:width-3]) + "..."
}

// Missing is an error where a machine has not all of it.
func (v *View) Missing() error {
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
	return fmt.Errorf("%d of %s have not got all of it: %s; what is there is kept: `%s %s%s` goes on with it",
		len(not), app.Count(len(v.told), "machine"), app.Hosts(not), v.kind.Command, v.name, v.kind.Targets)
}

// Dirs are the folders in which the machines have it.
func (v *View) Dirs() []string {
	dirs := map[string]bool{}
	for _, p := range v.told {
		dirs[p.Dir] = true
	}
	return slices.Sorted(maps.Keys(dirs))
}
