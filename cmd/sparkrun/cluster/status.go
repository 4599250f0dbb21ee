// Package cluster decides what a person types about the cluster: who is in it, how
// machines join and leave, its record, and this machine's agent.
//
// It must not know jobs.
package cluster

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/nettest/nccltest"
)

type statusOptions struct {
	request wire.StatusRequest
	json    bool
}

// NewStatusCmd makes `sparkrun status`.
func NewStatusCmd(a *app.App) *cobra.Command {
	opts := &statusOptions{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the cluster's machines and who leads",
		Long: `Shows every machine of the cluster: its management address, whether its agent
answers the leader, its role, and how many of its fabric ports have a link. A drained
machine answers and gets no jobs, for a process there could not be killed. A witness
votes and never gets ranks; it needs no fabric.

"fabric only" is said of a machine that answers the leader over the fabric and
not over the management network: a cable or a switch there is dead. Nothing stops
for it; what to look at is said below the table. --json: "fabric_only". A warning there
says that jobs meet a machine over management though its fabric has a link, or that a
stranger is on the fabric.

A machine whose disk hangs or is full "takes no part in the vote" until it takes
writes again: it leads no more, its ranks go on. --json: "no_vote".

Without a leader it shows what this machine knows by itself, since when it has heard
none, and what is wrong; "unknown" are machines that it hears, but that only a leader
could call ready. It changes nothing.

The last line tells what the user's own last nccl-test of this cluster came to.

--json prints everything that is known; "leader" is the leader's host name, empty
when there is none, and "heard" then the time when one was last heard.`,
		Example: `  sparkrun status
  sparkrun status --json | jq -r .leader
  sparkrun status --wait-nodes 3 --timeout 30s`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, runStatus),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	cmd.Flags().Var(app.Positive{N: &opts.request.WaitNodes}, "wait-nodes", "wait until so many machines are ready")
	opts.request.Timeout = 30 * time.Second
	cmd.Flags().Var(app.Span{D: &opts.request.Timeout}, "timeout", "how long to wait for them")
	return cmd
}

func runStatus(ctx context.Context, a *app.App, o statusOptions) error {
	b := a.Dial()
	defer b.Close()
	if o.request.WaitNodes == 0 {
		o.request.Timeout = 0
	}
	st, err := waitStatus(ctx, b, o.request)
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(st)
	}
	if st.Removed { // what it knows of the others is old
		a.Say(st.Problem)
		return nil
	}
	leader := "leader " + st.Leader
	if st.Leader == "" {
		leader = "no leader"
		if !st.Heard.IsZero() {
			leader += " for " + app.Age(time.Since(st.Heard))
		}
	}
	if st.Epoch > 1 { // there was a take-over
		leader += fmt.Sprintf(", epoch %d", st.Epoch)
	}
	fmt.Fprintf(a.Out, "cluster %s, %s\n", st.Cluster, leader)
	rows := [][]string{{"HOST", "ADDRESS", "STATE", "ROLE", "FABRIC"}}
	for _, n := range st.Nodes {
		state := n.State
		switch {
		case n.State == "away" && !n.Since.IsZero():
			state += " " + app.Age(time.Since(n.Since))
		case n.State == "unknown" && n.Host == st.Self:
			state = "answers" // this machine: its agent has just answered
		}
		if n.FabricOnly {
			state += ", fabric only"
		}
		addr := "-"
		if n.Addr.IsValid() {
			addr = n.Addr.String()
		}
		rows = append(rows, []string{n.Host, addr, state, roleOf(n), fabricOf(n)})
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	for _, n := range st.Nodes {
		if n.Why != "" {
			a.Say(fmt.Sprintf("%s is %s: %s", n.Host, n.State, n.Why))
		}
	}
	for _, n := range st.Nodes {
		if n.NoVote != "" {
			a.Say(fmt.Sprintf("%s takes no part in the vote: %s", n.Host, n.NoVote))
		}
	}
	if st.Problem != "" {
		a.Say(st.Problem)
	}
	seen := checkup.Seen(st)
	for _, f := range seen.FabricOnly() {
		a.Say(f.Text)
	}
	if seen.Derive() == nil { // else doctor says why
		for _, text := range seen.Fallbacks() {
			a.Say("warning: " + text)
		}
	}
	if last := lastTest(a, st.Cluster); last != "" {
		fmt.Fprintln(a.Out, last)
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

// roleOf is a node's part in the vote. A witness only votes; that it gets no ranks is
// said where machines are counted.
func roleOf(n wire.NodeStatus) string {
	if !n.Witness {
		return cmp.Or(n.Role, "-")
	}
	return strings.TrimPrefix(n.Role+", witness (no ranks)", ", ")
}

// fabricOf sums up a node's RDMA ports: how many have a link, and their rate. A witness
// needs none.
func fabricOf(n wire.NodeStatus) string {
	ports := envgen.Ports(n.Inventory)
	switch {
	case n.Witness, len(n.Inventory.NICs) == 0: // or nothing is known of it
		return "-"
	case len(ports) == 0:
		return "none"
	}
	up := 0
	var rates []string
	for _, p := range ports {
		// The twins share one socket: each shows its rate, which must not be added up.
		i := slices.IndexFunc(p.Twins, func(h envgen.HCA) bool { return h.State == envgen.StateActive })
		if i < 0 {
			continue
		}
		up++
		if r := p.Twins[i].RateMbps; r != nil {
			if text := fmt.Sprintf("%d Gb/s", *r/1000); !slices.Contains(rates, text) {
				rates = append(rates, text)
			}
		}
	}
	text := fmt.Sprintf("%d of %d ports up", up, len(ports))
	if len(rates) > 0 {
		text += ", " + strings.Join(rates, " and ")
	}
	return text
}

// joinAddr leaves out the default port.
func joinAddr(a netip.AddrPort) string {
	if a.Port() == membership.DefaultRPCPort {
		return a.Addr().String()
	}
	return a.String()
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
		app.Age(time.Since(r.At)), strings.Join(r.Hosts, ", "), plain.Text(r.Op), r.Bus, of, r.Grade)
}
