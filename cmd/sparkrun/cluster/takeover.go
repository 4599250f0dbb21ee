package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type takeoverOptions struct {
	dead []string
	yes  bool
}

// NewTakeoverCmd makes `sparkrun takeover`.
func NewTakeoverCmd(a *app.App) *cobra.Command {
	opts := &takeoverOptions{}
	cmd := &cobra.Command{
		Use:   "takeover --confirm-dead HOST",
		Short: "Lead the cluster from here, when the machine that had the vote is off",
		Long: `Makes this machine the leader, from its own copy of the record, when the machine
that had the only vote of a pair is off: launching works again within seconds. Jobs
go on here as they were; those of the dead machine are tried again where they may
be. When it comes back it gives way by itself: its record is merged into this one,
and it stands by.

HOST must be off, or known to run nothing any more. A lost cable looks just like a
lost machine from here, and only you can tell: if HOST still runs its ranks, a job
can end up running twice. So it is refused while HOST shows any sign of life, over
management or fabric, and while anybody leads. A clean stop needs no take-over, and
with a witness (sparkrun join --witness) no loss does.

It asks before it does anything, takes root, and has to be typed on the machine that
is to lead: one that sparkrun status calls standby or voter. Where the cluster has
more machines, all that answer are asked, and it is refused if one hears a leader,
sees HOST, or has a newer copy of the record; each other machine that votes and does
not answer has to be confirmed dead as well.

Where more than one machine is confirmed dead, do not switch those on together while
they cannot reach this one: they may be a majority of the old voters, lead on their
own, and after half a minute try jobs again that go on here.`,
		Example: `  sudo sparkrun takeover --confirm-dead spark1
  sudo sparkrun takeover --confirm-dead spark1 --yes
  sudo sparkrun takeover --confirm-dead spark1 --confirm-dead spark2`,
		Args: app.Takes(0, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(opts.dead) == 0 {
				return app.Usagef("--confirm-dead is missing: name the machine that is off")
			}
			slices.Sort(opts.dead)
			opts.dead = slices.Compact(opts.dead)
			return app.Running(a, opts, runTakeover)(cmd, args)
		},
	}
	cmd.Flags().StringSliceVar(&opts.dead, "confirm-dead", nil, "this machine is off, and runs no rank; repeat "+
		"for more")
	cmd.Flags().BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	app.CompleteFlag(cmd, "confirm-dead", a.CompleteSilent)
	return cmd
}

func runTakeover(ctx context.Context, a *app.App, o takeoverOptions) error {
	b := a.DialHere()
	defer b.Close()
	r := wire.TakeoverRequest{Dead: o.dead, Check: true}
	if _, err := wire.Takeover.Call(ctx, b, r); err != nil {
		return err
	}
	names := strings.Join(o.dead, ", ")
	if !o.yes {
		a.Say("if " + names + " still runs ranks, jobs can run twice; a lost cable is no proof that it is off")
		if err := a.Confirm(ctx, "Is "+names+" switched off?", "to take over"); err != nil {
			return err
		}
	}
	r.Check = false
	res, err := wire.Takeover.Call(ctx, b, r)
	if err != nil {
		return err
	}
	if err := awaitLeads(ctx, b, "take-over", res.Host, res.Epoch); err != nil {
		return err
	}
	gives := "gives way when it comes back"
	if len(o.dead) > 1 {
		gives = "give way when they come back"
		a.Say("do not switch " + names + " on together while they cannot reach " + res.Host + ": they would lead " +
			"on their own, and try its jobs again")
	}
	_, err = fmt.Fprintf(a.Out, "%s leads, in epoch %d; %s %s\n", res.Host, res.Epoch, names, gives)
	return err
}

// leadsWithin bounds the wait for a new leadership: the node opens anew and elects itself.
const leadsWithin = time.Minute

// awaitLeads waits until host leads in an epoch, which is what a take-over and a restore are for.
func awaitLeads(ctx context.Context, b *wire.Client, what, host string, epoch uint64) error {
	end := time.Now().Add(leadsWithin)
	var again app.Pause
	for {
		st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
		if err == nil && st.Leader == host && st.Epoch == epoch {
			return nil
		}
		switch {
		case err != nil && !app.Passing(err):
			return err
		case time.Now().After(end):
			return errors.Join(fmt.Errorf("the %s has begun, and %s does not lead after %s: see its agent's log",
				what, host, leadsWithin), err)
		}
		if err := again.Wait(ctx); err != nil {
			return err
		}
	}
}
