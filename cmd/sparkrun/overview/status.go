// Package overview decides what a person sees of the whole cluster at a glance: its machines, what is wrong with them,
// what they use, and what runs.
//
// It must not change anything.
package overview

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nettest/nccltest"
)

type options struct {
	request           wire.StatusRequest
	json, wide, watch bool
	ranks             bool // what each rank uses, in place of each job
}

// NewStatusCmd makes `sparkrun status`.
func NewStatusCmd(a *app.App) *cobra.Command {
	opts := &options{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the machines, what they use, and what runs",
		Long: `Shows every machine of the cluster: whether its agent answers the leader, its role,
how busy and how warm its GPU is, with "slow" where something holds its clock down, its
memory in use, and how many of its fabric ports have a link, or how many errors doctor
finds by what the leader knows already. Below it what runs, and what its ranks use. A
"-" is what a machine does not tell. On a terminal with few columns the address and the
role are left out.

-o wide adds the GPU's power (W) and clock (MHZ), processors in use (CPU) and waiting
(LOAD), swap, the space left on the fullest disk, what the fabric ports carry, in and
out, by RDMA and by Ethernet, and how many warnings cables and addresses are worth;
doctor asks the machines, and may have more. -o json and -o yaml are for programs, with
--wide what machines use as well; jobs are in ps --json.
--watch shows it until q or Ctrl-C; without a terminal it prints it at each change.

A drained machine answers and gets no jobs, for a process there could not be killed. A
witness votes and never gets ranks; it needs no fabric. "fabric only" is said of a
machine that answers the leader over the fabric and not over the management network: a
cable or a switch there is dead. Nothing stops for it. A warning below the table says
that jobs meet a machine over management though its fabric has a link, or that a
stranger is on the fabric. A machine whose disk hangs or is full "takes no part in the
vote" until it takes writes again: it leads no more, its ranks go on.

Without a leader it shows what this machine knows by itself, since when it has heard
none, and what is wrong; "unknown" are machines that it hears, but that only a leader
could call ready. It changes nothing.

The last line tells what the user's own last nccl-test of this cluster came to.

--json prints everything that is known; "leader" is the leader's host name, empty
when there is none, and "heard" then the time when one was last heard; "findings" counts
errors and warnings by host. With --wide, as in top --json, "usage" is what each machine
and each rank on it uses; without it no machine is asked, and the answer comes at once.`,
		Example: `  sparkrun status
  sparkrun status -o wide --watch
  sparkrun status --json | jq -r .leader
  sparkrun status --wait-nodes 3 --timeout 30s`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, runStatus),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON (-o json; -o yaml: YAML)")
	cmd.Flags().BoolVar(&opts.wide, "wide", false, "with all that machines tell of what they use (-o wide)")
	cmd.Flags().BoolVarP(&opts.watch, "watch", "w", false, "go on until q or Ctrl-C")
	cmd.Flags().Var(app.Positive{N: &opts.request.WaitNodes}, "wait-nodes", "wait until so many machines are ready")
	opts.request.Timeout = 30 * time.Second
	cmd.Flags().Var(app.Span{D: &opts.request.Timeout}, "timeout", "how long to wait for them")
	return cmd
}

// NewTopCmd makes `sparkrun top`.
func NewTopCmd(a *app.App) *cobra.Command {
	opts := &options{wide: true, ranks: true}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch what machines and ranks use",
		Long: `Shows what each machine uses, as status -o wide does, and below it each rank: processors,
memory, and memory of the GPU. q or Ctrl-C ends it. Columns that the terminal has no room
for are left out, the least telling first; machines that something is wrong with come
first where there is no room for all.

With --json or without a terminal it shows this once.`,
		Example: `  sparkrun top
  sparkrun top --json | jq '.usage[] | {host, gpus}'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, func(ctx context.Context, a *app.App, o options) error {
			o.watch = follow.OnScreen(a) && !o.json
			return runStatus(ctx, a, o)
		}),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON, once")
	return cmd
}

func runStatus(ctx context.Context, a *app.App, o options) error {
	b := a.Dial()
	defer b.Close()
	if o.request.WaitNodes == 0 {
		o.request.Timeout = 0
	}
	st, err := waitStatus(ctx, b, o.request)
	if err != nil {
		return err
	}
	if o.watch && !st.Removed {
		return watch(ctx, a, b, st, o)
	}
	s := &seen{status: st}
	_ = s.look(ctx, b, o) // without an answer the machines are shown all the same
	if o.json {
		return a.Object(s.object())
	}
	if st.Removed { // what it knows of the others is old
		a.Say(st.Problem)
		return nil
	}
	width := 0
	if a.OutTTY && !o.wide { // who asks for all of it gets it
		width = a.Columns()
	}
	if _, err := io.WriteString(a.Out, s.text(o, width, 0)); err != nil {
		return err
	}
	for _, note := range s.notes() {
		a.Say(note)
	}
	if last := lastTest(a, st.Cluster); last != "" {
		fmt.Fprintln(a.Out, last)
	}
	return nil
}

// watch shows each state of the cluster as it is told, and what is used each second.
func watch(ctx context.Context, a *app.App, b *wire.Client, first wire.Status, o options) error {
	ctx, cancel := context.WithCancel(ctx)
	g, ctx := errgroup.WithContext(ctx)
	var mu sync.Mutex
	newest, changed := first, make(chan struct{}, 1)
	var used []wire.NodeUsage
	g.Go(func() error {
		for again := (app.Pause{}); ; {
			err := wire.Follow.Call(ctx, b, wire.Empty{}, func(st wire.Status) error {
				again.Reset()
				mu.Lock()
				newest = st
				mu.Unlock()
				select {
				case changed <- struct{}{}:
				default: // it is on its way to look
				}
				return nil
			})
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the view has ended, which is no error
			}
			if err != nil && !app.Passing(err) {
				return err
			}
			if again.Wait(ctx) != nil {
				return nil //nolint:nilerr // the same
			}
		}
	})
	g.Go(func() error { // beside the view, which a machine must not hold up that does not answer
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for o.wide || !o.json {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return nil
			}
			if got := askUsage(ctx, b); got != nil {
				mu.Lock()
				used = got
				mu.Unlock()
			}
		}
		return nil
	})
	g.Go(func() error {
		defer cancel()
		s := &seen{}
		return follow.Watch(ctx, a, changed, func(ctx context.Context) (follow.View, error) {
			mu.Lock()
			if s.status = newest; used != nil {
				s.usage = used
			}
			mu.Unlock()
			return s.view(ctx, a, b, o)
		})
	})
	return g.Wait()
}

// view is what a watch shows now.
func (s *seen) view(ctx context.Context, a *app.App, b *wire.Client, o options) (follow.View, error) {
	if err := s.look(ctx, b, o); err != nil {
		return follow.View{}, err
	}
	v := follow.View{Key: s.key()}
	if o.json {
		text, err := a.ObjectText(s.object())
		v.Text = text
		return v, err
	}
	width, height := 0, 0
	if follow.OnScreen(a) {
		width, height = a.Columns(), a.Height()
	}
	notes := s.notes()
	if height > 0 {
		height = max(height-len(notes), 1)
	}
	v.Text = s.text(o, width, height)
	for _, note := range notes {
		v.Text += note + "\n"
	}
	return v, nil
}

// askUsage asks what machines use; nil: there was no answer. The agent gives up on one that does not answer after 3 s.
func askUsage(ctx context.Context, b *wire.Client) []wire.NodeUsage {
	ctx, cancel := context.WithTimeout(ctx, 3500*time.Millisecond)
	defer cancel()
	got, _ := wire.Usage.Call(ctx, b, wire.Empty{}) //nolint:errcheck // all else is shown without it
	return got.Nodes
}

// seen is what is known at one moment.
type seen struct {
	status  wire.Status
	jobs    wire.JobsResponse
	usage   []wire.NodeUsage
	tallies map[string]doctor.Tally // by host
	now     time.Time
}

// look asks for what the status does not tell. Without an answer what was known before stands; an error is only that
// nobody is there to ask. Programs that want the status are answered by the leader alone, at once.
func (s *seen) look(ctx context.Context, b *wire.Client, o options) (err error) {
	var both sync.WaitGroup
	if s.usage == nil && (o.wide || !o.json) {
		both.Go(func() { s.usage = askUsage(ctx, b) })
	}
	if !o.json {
		var got wire.JobsResponse
		if got, err = wire.Jobs.Call(ctx, b, wire.JobsRequest{Open: true}); err == nil {
			s.jobs = got
		}
	}
	s.tallies = checkup.Seen(s.status).Counts()
	both.Wait()
	s.now = time.Now()
	return err
}

// object is what --json prints.
func (s *seen) object() any {
	return struct {
		wire.Status
		Findings map[string]doctor.Tally `json:"findings"`
		Usage    []wire.NodeUsage        `json:"usage,omitempty"`
	}{s.status, s.tallies, s.usage}
}

// of is what a machine uses; nil: it has not told.
func (s *seen) of(id launcher.NodeID) *wire.NodeUsage {
	for i, u := range s.usage {
		if u.ID == id && u.Error == "" {
			return &s.usage[i]
		}
	}
	return nil
}

// waitStatus asks again when the agent or the leader goes away during the wait, since
// waiting for them is its purpose.
func waitStatus(ctx context.Context, c *wire.Client, r wire.StatusRequest) (wire.Status, error) {
	end := time.Now().Add(r.Timeout)
	var again app.Pause
	for {
		st, err := wire.ShowStatus.Call(ctx, c, r)
		if err == nil || r.WaitNodes == 0 || !app.Passing(err) || ctx.Err() != nil || !time.Now().Before(end) {
			return st, err
		}
		if err := again.Wait(ctx); err != nil {
			return st, err
		}
		r.Timeout = max(time.Until(end), time.Millisecond)
	}
}

// lastTest sums up the last nccl-test with a verdict in the user's history of a cluster;
// "" where there is none.
func lastTest(a *app.App, cluster string) string {
	dir, err := a.UserFolder("XDG_STATE_HOME", filepath.Join(".local", "state"))
	if err != nil {
		return ""
	}
	text, err := os.ReadFile(filepath.Join(dir, nccltest.HistoryFile))
	if err != nil {
		return ""
	}
	r := nccltest.LastOf(text, cluster)
	if r == nil {
		return ""
	}
	of := ""
	if r.Part != nil {
		of = fmt.Sprintf(", %.2f of what is expected", *r.Part)
	}
	return fmt.Sprintf("your last nccl-test, %s ago, on %s: %s %.2f GB/s%s: %s",
		launcher.Age(time.Since(r.At)), strings.Join(r.Hosts, ", "), plain.Text(r.Op), r.Bus, of, r.Grade)
}
