package network

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type netplanShowOptions struct {
	node string
	json bool
}

type netplanDiffOptions struct{ json bool }

type netplanApplyOptions struct {
	request wire.NetplanApplyRequest
	yes     bool
}

// NewNetplanCmd makes `sparkrun netplan`.
func NewNetplanCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "netplan",
		Short: "Give the fabric's ports their addresses",
		Long: `Works out which address every fabric port of every machine gets, from the cables
and switches that the probe sees, and writes them as one netplan file a machine,
` + netplan.Path + `: each twin in a subnet of its own, MTU 9000. Ports that
lead to a LAN and the interface the cluster talks over are left alone.

An address once given stays: machines that join or leave move nobody, and
addresses that worked before sparkrun are taken over. What has to move when a
cable goes elsewhere, diff shows.`,
		Example: `  sparkrun netplan show
  sudo sparkrun netplan diff
  sudo sparkrun netplan apply`,
	}
	app.Group(cmd)
	cmd.AddCommand(newNetplanShowCmd(a), newNetplanDiffCmd(a), newNetplanApplyCmd(a), newNetplanRollbackCmd(a))
	return cmd
}

func newNetplanShowCmd(a *app.App) *cobra.Command {
	opts := &netplanShowOptions{}
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the file each machine should have",
		Long: `Prints for each machine the netplan file that sparkrun would write, and looks at
no file there. It changes nothing.`,
		Example: `  sparkrun netplan show
  sparkrun netplan show --node spark2
  sparkrun netplan show --json | jq -r '.nodes[].text'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, netplanShow),
	}
	cmd.Flags().StringVar(&opts.node, "node", "", "this machine's file only, as it is")
	app.CompleteFlag(cmd, "node", a.CompleteHost)
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func newNetplanDiffCmd(a *app.App) *cobra.Command {
	opts := &netplanDiffOptions{}
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Compare each machine's files with what they should be",
		Long: `Shows what apply would change on each machine, as diff -u does and in words, names
every other netplan file that names the same interface (netplan adds the
addresses of all files up), and says why apply would refuse. It changes nothing.`,
		Example: `  sudo sparkrun netplan diff
  sudo sparkrun netplan diff --json | jq '.nodes[] | select(.verdict.refusal)'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, netplanDiff),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func newNetplanApplyCmd(a *app.App) *cobra.Command {
	opts := &netplanApplyOptions{}
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Put the files in force on all machines, or on none",
		Long: `Shows what diff shows, asks, then writes the files and runs netplan apply on all
machines at the same time. Every machine then has to reach its neighbours over
each of its interfaces. Where one does not within --grace, or fails otherwise, all
go back to what they had; so does a machine that loses its power or its agent in
between, at its next start.

It refuses while a job uses the ports, for the interface the cluster talks over,
where netplan itself does not accept the files, and where another file would
spoil ours; --force overrides the last of these, nothing else.`,
		Example: `  sudo sparkrun netplan apply
  sudo sparkrun netplan apply --yes --grace 1m`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, netplanApply),
	}
	applyFlags(cmd, opts, "write although another netplan file spoils ours")
	cmd.Flags().Var(app.Span{D: &opts.request.Grace}, "grace",
		"how long neighbours have to answer (default 30s; a switch with spanning tree needs that)")
	return cmd
}

func newNetplanRollbackCmd(a *app.App) *cobra.Command {
	opts := &netplanApplyOptions{request: wire.NetplanApplyRequest{Rollback: true}}
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Undo the last change on all machines",
		Long: `Puts back what was there before the last apply, on every machine that it changed.
Rolling back twice is back where it began. Nobody has to answer afterwards; what
is refused is the same as for apply, and a file that was edited since.`,
		Example: `  sudo sparkrun netplan rollback
  sudo sparkrun netplan rollback --yes`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, netplanRollback),
	}
	applyFlags(cmd, opts, "undo over an edit of the file, and beside files that spoil it")
	return cmd
}

func applyFlags(cmd *cobra.Command, opts *netplanApplyOptions, force string) {
	cmd.Flags().BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&opts.request.Force, "force", false, force)
}

func netplanShow(ctx context.Context, a *app.App, o netplanShowOptions) error {
	b := a.Dial()
	defer b.Close()
	plan, err := wire.Netplan.Call(ctx, b, wire.NetplanRequest{})
	if err != nil {
		return err
	}
	if o.node != "" {
		i := slices.IndexFunc(plan.Nodes,
			func(n wire.NetplanNode) bool { return n.Host == o.node || n.Node == launcher.NodeID(o.node) })
		if i < 0 {
			return fmt.Errorf("show netplan of %s: it gets no file: these do: %s",
				o.node, strings.Join(planHosts(plan), ", "))
		}
		plan.Nodes = plan.Nodes[i : i+1]
	}
	switch {
	case o.json:
		return a.Object(plan)
	case o.node != "":
		_, err := fmt.Fprint(a.Out, textOf(plan.Nodes[0]))
		return err
	}
	fmt.Fprintln(a.Out, plan.Why)
	notes(a, plan)
	for _, n := range plan.Nodes {
		fmt.Fprintf(a.Out, "\n%s:%s\n%s", n.Host, netplan.Path, textOf(n))
	}
	return nil
}

func textOf(n wire.NetplanNode) string {
	if n.Text == nil {
		return ""
	}
	return *n.Text
}

func planHosts(plan wire.NetplanPlan) []string {
	var hosts []string
	for _, n := range plan.Nodes {
		hosts = append(hosts, n.Host)
	}
	return hosts
}

func notes(a *app.App, plan wire.NetplanPlan) {
	for _, note := range plan.Notes {
		fmt.Fprintln(a.Out, "note: "+note)
	}
}

func netplanDiff(ctx context.Context, a *app.App, o netplanDiffOptions) error {
	b := a.Dial()
	defer b.Close()
	plan, err := wire.Netplan.Call(ctx, b, wire.NetplanRequest{Compare: true})
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(plan)
	}
	difference(a, plan)
	return nil
}

// difference prints what would change; any tells whether anything would.
func difference(a *app.App, plan wire.NetplanPlan) (any bool) {
	fmt.Fprintln(a.Out, plan.Why)
	notes(a, plan)
	for _, n := range plan.Nodes {
		v := n.Verdict
		if v == nil {
			continue
		}
		fmt.Fprintf(a.Out, "\n%s\n", n.Host)
		if v.Unchanged {
			fmt.Fprintln(a.Out, "  as it should be")
		} else {
			any = true
			fmt.Fprint(a.Out, v.Diff)
			for _, c := range v.Changes {
				fmt.Fprintln(a.Out, "  "+c)
			}
		}
		for _, m := range v.Mentions {
			mark := "beside ours"
			if m.Blocks {
				mark = "SPOILS ours"
			}
			fmt.Fprintf(a.Out, "  %s: %s\n", mark, m.Text)
		}
		if v.Refusal != "" {
			fmt.Fprintln(a.Out, "  refused: "+v.Refusal)
		}
	}
	return any
}

func netplanApply(ctx context.Context, a *app.App, o netplanApplyOptions) error {
	return netplanChange(ctx, a, o, "Put this in force on %s?", "to apply it")
}

func netplanRollback(ctx context.Context, a *app.App, o netplanApplyOptions) error {
	return netplanChange(ctx, a, o, "Go back to this on %s?", "to roll back")
}

// netplanChange shows the plan, asks, and applies it. The digest makes sure that what is
// applied is what was shown.
func netplanChange(ctx context.Context, a *app.App, o netplanApplyOptions, question, to string) error {
	b := a.Dial()
	defer b.Close()
	plan, err := wire.Netplan.Call(ctx, b, wire.NetplanRequest{Compare: true, Rollback: o.request.Rollback,
		Force: o.request.Force})
	if err != nil {
		return err
	}
	if !difference(a, plan) {
		fmt.Fprintln(a.Out, "\nnothing to change")
		return nil
	}
	var refused []string
	for _, n := range plan.Nodes {
		if n.Verdict != nil && n.Verdict.Refusal != "" {
			refused = append(refused, n.Host)
		}
	}
	if len(refused) > 0 {
		return fmt.Errorf("%s would refuse, as above; nothing was touched", strings.Join(refused, ", "))
	}
	if !o.yes {
		if err := a.Confirm(ctx, fmt.Sprintf("\n"+question, strings.Join(planHosts(plan), ", ")), to); err != nil {
			return err
		}
	}
	o.request.Digest = plan.Digest
	began := time.Now()
	fmt.Fprintln(a.Out)
	err = wire.NetplanApply.Call(ctx, b, o.request, func(p wire.NetplanProgress) error {
		if line := progressLine(p); line != "" {
			fmt.Fprintln(a.Out, line)
		}
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Out, "done on %s after %s\n", strings.Join(planHosts(plan), ", "),
		time.Since(began).Round(100*time.Millisecond))
	return nil
}

// progressLine says a step in plain words; empty for steps that only programs need.
func progressLine(p wire.NetplanProgress) string {
	words := map[netplan.State]string{
		netplan.StateApplied: "applied; waiting for its neighbours", netplan.StateReached: "all neighbours answer",
		netplan.StateCommitted: "stays", netplan.StateUnchanged: "is as it should be",
		netplan.StateRolledBack: "is back at what it had",
	}[netplan.State(p.State)]
	switch {
	case p.Error != "":
		return fmt.Sprintf("%s: %s: %s", p.Host, cmp.Or(words, "did nothing"), p.Error)
	case words == "":
		return ""
	}
	return fmt.Sprintf("%s: %s", p.Host, words)
}
