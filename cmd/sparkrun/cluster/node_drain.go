package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type nodeDrainOptions struct {
	hosts  []string
	reason string
	noWait bool
	json   bool
	each   string
	within time.Duration
}

func newNodeDrainCmd(a *app.App) *cobra.Command {
	opts := &nodeDrainOptions{}
	cmd := &cobra.Command{
		Use:   "drain HOST...",
		Short: "Keep ranks away from machines, for firmware or a reboot",
		Long: `HOST gets no new ranks until sparkrun node resume, whoever leads. Services with ranks
there are started anew elsewhere, if there is room for them; that counts as no failure.
One that has no room runs on, and so does every other job, to its end; sparkrun stop
ends it. The command waits until nothing runs there. Ctrl-C ends the waiting alone.

--each does that with one machine after the other, and runs COMMAND for it here by sh,
with its name in $SPARKRUN_HOST, once it is empty; where that fails (but by 255, as ssh
does when its machine goes) all ends there. When the machine has gone and is back, it
is given back, and the next one's turn comes: a rolling reboot. The machine that you
type on cannot be among them. It takes root.`,
		Example: `  sudo sparkrun node drain spark2 --reason "new firmware"
  sudo sparkrun node drain spark2 spark3 --each 'ssh "$SPARKRUN_HOST" sudo systemctl reboot'
  sudo sparkrun node resume spark2`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.hosts = args
			switch {
			case len(args) == 0:
				return app.Usagef("node drain: name a host: `sparkrun status` lists them")
			case opts.each == "" && opts.within != 0:
				return app.Usagef("--within is for --each")
			case opts.each != "" && opts.noWait:
				return app.Usagef("--each and --no-wait: give one of them")
			}
			return app.Running(a, opts, runNodeDrain)(cmd, args)
		},
		ValidArgsFunction: a.CompleteHosts,
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.reason, "reason", "", "a `TEXT` for sparkrun status and for those whose job finds no room")
	fs.BoolVar(&opts.noWait, "no-wait", false, "return at once, and say what runs there")
	fs.StringVar(&opts.each, "each", "", "one machine after the other: run the shell `COMMAND` once it is empty")
	fs.Var(app.Span{D: &opts.within}, "within", "for --each: how long a machine may take to come back (default: 15m)")
	fs.BoolVar(&opts.json, "json", false, "print one JSON object a line: what is left, after every change")
	return cmd
}

func newNodeResumeCmd(a *app.App) *cobra.Command {
	var hosts []string
	cmd := &cobra.Command{
		Use: "resume HOST...", Aliases: []string{"uncordon", "undrain"},
		Short:   "Let drained machines have ranks again",
		Long:    `Takes sparkrun node drain back. It takes root.`,
		Example: `  sudo sparkrun node resume spark2`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			hosts = args
			return app.Running(a, &hosts, resumeNodes)(cmd, args)
		},
		ValidArgsFunction: a.CompleteHosts,
	}
	return cmd
}

func resumeNodes(ctx context.Context, a *app.App, hosts []string) error {
	b := a.Dial()
	defer b.Close()
	for _, host := range hosts {
		if err := resume(ctx, b, host); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(a.Out, "%s may get ranks again\n", host); err != nil {
			return err
		}
	}
	return nil
}

func resume(ctx context.Context, b *wire.Client, host string) error {
	return drain(ctx, b, wire.DrainRequest{Host: host, Over: true}, func(wire.DrainProgress) error { return nil })
}

// drain goes on under the next leader.
func drain(ctx context.Context, b *wire.Client, r wire.DrainRequest, fn func(wire.DrainProgress) error) error {
	var again app.Pause
	for {
		err := wire.DrainNode.Call(ctx, b, r, fn)
		if !errors.Is(err, wire.ErrRetry) {
			return err
		}
		if err := again.Wait(ctx); err != nil {
			return err
		}
	}
}

func runNodeDrain(ctx context.Context, a *app.App, o nodeDrainOptions) error {
	b := a.Dial()
	defer b.Close()
	if o.each != "" {
		return drainEach(ctx, a, b, o)
	}
	d := drainer{App: a, agent: b, options: o, said: map[string]bool{}}
	if len(o.hosts) > 1 { // all of them first, so that nothing moves from one to the next
		for _, host := range o.hosts {
			if _, err := d.drain(ctx, host, true); err != nil {
				return err
			}
		}
	}
	for _, host := range o.hosts {
		if err := d.empty(ctx, host); err != nil {
			return err
		}
	}
	return nil
}

// drainer drains machines, and says what is left on each.
type drainer struct {
	*app.App
	agent   *wire.Client
	options nodeDrainOptions
	said    map[string]bool
}

// drain tells whether a machine is empty: at the end, or once, as it is now.
func (d drainer) drain(ctx context.Context, host string, once bool) (empty bool, err error) {
	r := wire.DrainRequest{Host: host, Reason: d.options.reason, Once: once}
	err = drain(ctx, d.agent, r, func(p wire.DrainProgress) error {
		empty = p.Empty
		if d.options.json {
			return json.NewEncoder(d.Out).Encode(struct {
				Host string `json:"host"`
				wire.DrainProgress
			}{host, p})
		}
		for _, left := range p.Left {
			if text := host + ": " + leftText(left); !d.said[text] {
				d.said[text] = true
				d.Say(text)
			}
		}
		return nil
	})
	return empty, err
}

// empty drains a machine, and waits until nothing runs there unless it is not to.
func (d drainer) empty(ctx context.Context, host string) error {
	empty, err := d.drain(ctx, host, d.options.noWait)
	switch {
	case errors.Is(ctx.Err(), context.Canceled) || errors.Is(err, context.Canceled):
		d.Say(host + " stays drained: `sudo sparkrun node resume " + host + "` ends that")
		return cmp.Or(ctx.Err(), err)
	case err != nil || d.options.json:
		return err
	case empty:
		_, err = fmt.Fprintf(d.Out, "%s is drained: nothing runs there\n", host)
	default:
		_, err = fmt.Fprintf(d.Out, "%s is drained: it gets no more ranks\n", host)
	}
	return err
}

func leftText(l wire.DrainLeft) string {
	text := "job " + string(l.Job)
	if l.Name != "" {
		text += " (" + l.Name + ")"
	}
	if l.User != "" {
		text += " of " + l.User
	}
	switch {
	case l.Stays != "":
		return text + " stays: " + l.Stays + fmt.Sprintf("; `sparkrun stop %s` ends it", l.Job)
	case l.Service:
		return text + " is started anew elsewhere"
	}
	return text + fmt.Sprintf(" runs to its end; `sparkrun stop %s` ends it now", l.Job)
}

// drainEach is a rolling reboot.
func drainEach(ctx context.Context, a *app.App, b *wire.Client, o nodeDrainOptions) error {
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil {
		return err
	}
	for _, host := range o.hosts {
		switch {
		case host == st.Self:
			return app.Usagef("--each: %s is this machine, on which the command would end: reboot it by itself, at last", host)
		case !slices.ContainsFunc(st.Nodes, func(n wire.NodeStatus) bool { return n.Host == host }):
			return app.Usagef("--each: %s is not in this cluster: `sparkrun status` lists its machines", host)
		}
	}
	d := drainer{App: a, agent: b, options: o, said: map[string]bool{}}
	for _, host := range o.hosts {
		if err := allThere(ctx, b, host); err != nil {
			return err
		}
		if err := d.empty(ctx, host); err != nil {
			return err
		}
		if err := rebooted(ctx, a, b, host, o); err != nil {
			return fmt.Errorf("%w; %s stays drained: `sudo sparkrun node resume %[2]s` ends that", err, host)
		}
		if err := resume(ctx, b, host); err != nil {
			return err
		}
		a.Say(host + " is back, and may get ranks again")
	}
	return nil
}

// allThere refuses to take one machine away while another is: two at a time may cost the cluster its majority.
func allThere(ctx context.Context, b *wire.Client, host string) error {
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil {
		return err
	}
	var away []string
	for _, n := range st.Nodes {
		if n.Host != host && n.State != "ready" && n.State != "drained" {
			away = append(away, n.Host)
		}
	}
	if len(away) > 0 {
		return fmt.Errorf("drain %s: %s does not answer: one machine after the other", host, strings.Join(away, ", "))
	}
	return nil
}

const (
	backWithin = 15 * time.Minute // --within's default
	// sshFailed is ssh's own exit code: it has it, too, when the machine that it reboots goes (ssh(1), EXIT STATUS).
	sshFailed = 255
)

// rebooted runs the command for a machine, and waits until that has gone and is back.
func rebooted(ctx context.Context, a *app.App, b *wire.Client, host string, o nodeDrainOptions) error {
	within := cmp.Or(o.within, backWithin)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("%s has not gone and come back within %s", host, within))
	defer cancel()
	before := ""
	for _, back := range []bool{false, true} {
		if back {
			cmd := exec.CommandContext(ctx, "sh", "-c", o.each)
			cmd.Env = append(os.Environ(), "SPARKRUN_HOST="+host)
			cmd.Stdout, cmd.Stderr = a.Err, a.Err
			if err := cmd.Run(); err != nil && cmd.ProcessState.ExitCode() != sshFailed {
				return fmt.Errorf("run --each for %s: %w", host, err)
			}
			a.Say("waiting until " + host + " has gone and is back")
		}
		err := wire.Follow.Call(ctx, b, wire.Empty{}, func(st wire.Status) error {
			for _, n := range st.Nodes {
				up := n.State == "ready" || n.State == "drained"
				if n.Host == host && up && n.Boot != before {
					before = n.Boot
					return errFound
				}
			}
			return nil
		})
		switch {
		case errors.Is(err, errFound):
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		default:
			return err
		}
	}
	return nil
}

var errFound = errors.New("found")
