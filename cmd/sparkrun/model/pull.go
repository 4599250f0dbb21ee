package model

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
	"github.com/sparkrun/sparkrun/launcher/modeldir"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type pullOptions struct {
	request wire.ModelPullRequest
	secret  string
	json    bool
}

func newPullCmd(a *app.App) *cobra.Command {
	opts := &pullOptions{}
	cmd := &cobra.Command{
		Use:   "pull ORG/NAME[@REVISION]",
		Short: "Fetch a model from the Hub, to one machine or more",
		Long: `Fetches a model's files: those that engines load, no second format of the same
weights, and says what it leaves out. Without --on, --nodes or --all they come to
the machine that is asked.

The machines go on when this command ends or is interrupted, and after a reboot:
asked again it shows how far they are, and changes --limit and --secret. model rm
gives a pull up. Where the Hub is not reached a model comes from a machine that has it.

A gated or private model takes a token, and only users whose token the Hub accepts
can read it there. As root you decide that every user of these machines can.`,
		Example: `  sparkrun model pull Qwen/Qwen3-8B --all
  sparkrun model pull org/data@v1.2 --type dataset --on spark1,spark2
  sparkrun model pull meta-llama/Llama-3.1-8B --nodes 2 --secret HF_TOKEN=token.txt`,
		Args: app.Takes(1, "a model: ORG/NAME"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := named(args[0], &opts.request.ModelRepo, &opts.request.Revision); err != nil {
			return err
		}
		ways := 0
		for _, given := range []bool{len(opts.request.On) > 0, opts.request.Nodes > 0, opts.request.All} {
			if given {
				ways++
			}
		}
		if ways > 1 {
			return app.Usagef("give one of --on, --nodes and --all")
		}
		return app.Running(a, opts, pull)(cmd, args)
	}
	fs := cmd.Flags()
	onFlag(a, cmd, &opts.request.On, "to these machines: `HOST,HOST`")
	fs.Var(app.Positive{N: &opts.request.Nodes}, "nodes", "to `N` machines, those that have most of it first")
	fs.BoolVar(&opts.request.All, "all", false, "to all machines")
	fs.BoolVar(&opts.request.OwnCache, "own-cache", false,
		"put it into your own cache there as well, by default ~/.cache/huggingface")
	typeFlag(cmd, &opts.request.Type)
	fs.StringArrayVar(&opts.request.Include, "include", nil,
		"only files like this `PATTERN`, whatever engines load; repeat for more")
	fs.StringArrayVar(&opts.request.Exclude, "exclude", nil, "no files like this `PATTERN`; repeat for more")
	app.CompleteFlag(cmd, "exclude", cobra.NoFileCompletions)
	fs.StringVar(&opts.secret, "secret", "",
		"the token for the Hub: `NAME[=FILE]`, this shell's variable or a file, shown to nobody")
	fs.Var(app.Amount{N: &opts.request.Limit}, "limit", "each machine takes in at most this `SIZE` a second")
	jsonFlag(fs, &opts.json, "print what is told as JSON, a line each")
	return cmd
}

func pull(ctx context.Context, a *app.App, o pullOptions) error {
	b := a.Dial()
	defer b.Close()
	o.request.ID = launcher.NewJobID()
	if o.request.OwnCache {
		o.request.OwnDir = ownDir(a)
	}
	if o.secret != "" {
		var err error
		if o.request.Token, err = sealToken(ctx, a, b, o.request.ID, o.secret); err != nil {
			return err
		}
	}
	v := newPullView(a, a.ErrTTY && !o.json)
	tell := v.take
	if o.json {
		tell = v.lines(a.Out)
	}
	if err := v.follow(ctx, b, o.request, tell); err != nil {
		return err
	}
	if err := v.missing(); err != nil || o.json {
		return err
	}
	for _, dir := range v.dirs() { // one, unless the machines' policies differ
		if _, err := fmt.Fprintln(a.Out, dir); err != nil {
			return err
		}
	}
	return nil
}

// ownDir is the caller's cache where this shell names one; empty: the one in the home on each machine.
func ownDir(a *app.App) string {
	env := func(name string) string {
		value, _ := a.Getenv(name)
		return value
	}
	if away, err := a.Away(); err != nil || away != nil || env("HF_HUB_CACHE") == "" && env("HF_HOME") == "" {
		return ""
	}
	return modeldir.Cache(env)
}

// follow pulls, and tells until all machines have ended; it asks again where the agent is away.
func (v *pullView) follow(ctx context.Context, b *wire.Client, r wire.ModelPullRequest,
	tell func(wire.ModelProgress) error) error {
	v.name = r.Name
	var pause app.Pause
	heard := time.Now()
	for {
		r.Again = v.plan != nil
		err := wire.ModelPull.Call(ctx, b, r, func(p wire.ModelProgress) error {
			heard = time.Now()
			pause.Reset()
			return tell(p)
		})
		v.erase()
		switch {
		case ctx.Err() != nil && v.plan != nil:
			v.app.Say(fmt.Sprintf("the machines go on: `sparkrun model pull %[1]s` follows them again, `sparkrun model rm "+
				"%[1]s` gives it up", r.Name))
			return app.Exits(app.ExitOf(syscall.SIGINT), nil)
		case err == nil:
			return nil
		case v.plan == nil || !app.Passing(err) || time.Since(heard) > app.Patience:
			return err
		}
		if err := pause.Wait(ctx); err != nil {
			return err
		}
	}
}

// pullView shows a pull: on a terminal a line for each machine, else what changes.
type pullView struct {
	app   *app.App
	name  string
	live  bool
	plan  *wire.ModelPlan
	told  map[string]wire.ModelProgress
	rates map[string]*rate
	drawn int
}

func newPullView(a *app.App, live bool) *pullView {
	return &pullView{app: a, live: live, told: map[string]wire.ModelProgress{}, rates: map[string]*rate{}}
}

func (v *pullView) remember(p wire.ModelProgress) (before wire.ModelProgress) {
	if p.Host == "" {
		v.plan = cmp.Or(p.Plan, v.plan)
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

func (v *pullView) take(p wire.ModelProgress) error {
	again := v.plan != nil // after a connection that was lost
	before := v.remember(p)
	v.erase()
	defer v.draw()
	switch {
	case p.Plan != nil && !again:
		v.begin(*p.Plan)
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

// begin says what is fetched, and what is not.
func (v *pullView) begin(p wire.ModelPlan) {
	text := fmt.Sprintf("%s@%s: %s, %s, to %s", p.Repo.Name, short(p.Commit), app.Count(p.Files, "file"),
		launcher.Size(p.Bytes), app.Hosts(p.Hosts))
	v.app.Say(text)
	switch {
	case p.For != "":
		v.app.Say(fmt.Sprintf("it is gated or private: there %s can read it, by a token that the Hub accepts, and root", p.For))
	case p.Restricted:
		v.app.Say("it is gated or private: by root's word every user of these machines can read it now")
	}
	if p.Offline != "" {
		v.app.Say("it comes from machines that have it: " + p.Offline)
	}
	var whys []string
	for why := range p.Left {
		whys = append(whys, why)
	}
	slices.Sort(whys)
	for _, why := range whys {
		v.app.Say(fmt.Sprintf("left out: %s: %s", app.Count(p.Left[why], "file"), why))
	}
}

// line is one machine's.
func (v *pullView) line(p wire.ModelProgress) string {
	switch p.State {
	case wire.ModelDone:
		return fmt.Sprintf("%s: whole: %s", p.Host, p.Dir)
	case wire.ModelFailed:
		return fmt.Sprintf("%s: failed: %s", p.Host, p.Error)
	case wire.ModelAway:
		return fmt.Sprintf("%s: does not answer, and goes on when it is back: %s", p.Host, p.Error)
	case wire.ModelWaits:
		return p.Host + ": waits"
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

func (v *pullView) draw() {
	if !v.live || v.plan == nil {
		return
	}
	var b strings.Builder
	for _, host := range v.plan.Hosts {
		if p, ok := v.told[host]; ok && !p.Ended() {
			b.WriteString(cut(v.line(p), v.app.Columns()-1) + "\n")
			v.drawn++
		}
	}
	fmt.Fprint(v.app.Err, b.String())
}

func (v *pullView) erase() {
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

// missing is an error where a machine has not all of it.
func (v *pullView) missing() error {
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
	return fmt.Errorf("%d of %s have not got all of it: %s; what is there is kept: `sparkrun model pull` goes on with it",
		len(not), app.Count(len(v.told), "machine"), app.Hosts(not))
}

// dirs are the folders in which the machines have it.
func (v *pullView) dirs() []string {
	dirs := map[string]bool{}
	for _, p := range v.told {
		dirs[p.Dir] = true
	}
	return slices.Sorted(maps.Keys(dirs))
}

// rate is how fast bytes come, over the last seconds.
type rate struct {
	at   []time.Time
	have []int64
}

const rateOver = 5 * time.Second

func (r *rate) add(now time.Time, have int64) {
	r.at, r.have = append(r.at, now), append(r.have, have)
	for len(r.at) > 2 && now.Sub(r.at[0]) > rateOver {
		r.at, r.have = r.at[1:], r.have[1:]
	}
}

// perSecond is 0 where it is not known yet.
func (r *rate) perSecond() float64 {
	n := len(r.at)
	if n < 2 || r.at[n-1].Sub(r.at[0]) < time.Second {
		return 0
	}
	return float64(r.have[n-1]-r.have[0]) / r.at[n-1].Sub(r.at[0]).Seconds()
}
