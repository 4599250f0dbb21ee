package node

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/cmd/node/checkup"
	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/cmd/node/jobs"
	"github.com/sparkrun/sparkrun/cmd/node/metrics"
	"github.com/sparkrun/sparkrun/cmd/node/notify"
	"github.com/sparkrun/sparkrun/cmd/node/rollout"
	"github.com/sparkrun/sparkrun/cmd/node/status"
	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/cmd/node/virtualip"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/control"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// lead is one leadership of this node: it opens the leader's parts, and closes them when
// ctx ends.
func (n *node) lead(ctx context.Context, term uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := n.members.Found(ctx, n.network.Address); err != nil {
		return err
	}
	fence := launcher.Fence{Epoch: n.record.Epoch(), Term: term}
	n.audit.Add(audit.Line{What: "lead", Who: n.self.Host, On: fence.String(), Outcome: audit.OK})

	streams, err := control.Lead(ctx, control.LeaderConfig{
		Control: n.control, Fence: fence, Record: n.record, Dial: n.dial, Members: n.cfg.Members,
	})
	if err != nil {
		return err
	}
	brain := lead.Open(ctx, lead.Config{
		Fence: fence, Record: n.record, Recorder: n.failover.Recorder(term), Send: streams.Send, Fabric: survey.Rules{},
		Hold: n.rollout.Holds, Others: n.failover, Logger: n.cfg.Logger,
	})
	defer brain.Close()
	defer cancel() // before Close, which waits for what ctx ends

	addresses := rollout.Lead(rollout.LeaderConfig{Node: n.rollout, Brain: brain, Dial: n.dial, Failover: n.failover,
		Logger: n.cfg.Logger})
	st := status.Lead(ctx, status.LeaderConfig{Status: n.status, Brain: brain, Apart: streams.Apart, Fence: fence})
	ranks := jobs.Lead(jobs.LeaderConfig{
		Ranks: n.ranks, Brain: brain, Failover: n.failover, Term: term, Holds: n.rollout.Holds, Logger: n.cfg.Logger,
		FabricOnly: func() (hosts []string) {
			now, _ := st.Now()
			for _, f := range checkup.Seen(now).FabricOnly() {
				hosts = append(hosts, f.Host)
			}
			return hosts
		},
	})
	vip := virtualip.New(virtualip.Config{Record: n.record, Prove: n.failover.Raft().Verify, Network: virtualip.Host{},
		Logger: n.cfg.Logger})
	gw := gateway.Lead(ctx, gateway.LeaderConfig{
		Host: n.self.Host, Port: uint16(n.cfg.GatewayPort), Backends: brain.Backends,
		Use:    brain.Use,
		Roster: brain.Roster, Record: n.record,
		Recorder: n.failover.Recorder(term), OnlyHere: n.failover.OnlyHere, VirtualIP: vip.State,
		Sealer: func() (trust.Sealer, error) { return trust.LoadSealer(n.cfg.Paths.trust()) },
		Logger: n.cfg.Logger,
	})
	told := notify.Lead(notify.Config{
		Host: n.self.Host, Version: n.cfg.Version, Jobs: brain.Jobs, Backends: brain.Backends, Status: st.Now,
		Findings: func(now wire.Status) []envgen.Finding { return checkup.Seen(now).Known() },
		Record:   n.record, Recorder: n.failover.Recorder(term), Prove: n.failover.Raft().Verify, OnlyHere: n.failover.OnlyHere,
		Sealer: func() (trust.Sealer, error) { return trust.LoadSealer(n.cfg.Paths.trust()) },
		Logger: n.cfg.Logger,
	})
	defer n.metrics.Lead(metrics.Cluster{Jobs: brain.Jobs, Status: st.Now, Counts: brain.Counts})()
	members := n.members.Lead(brain)
	defer members.Close()
	roles := n.failover.Lead(failover.LeaderConfig{Brain: brain, Members: members, Reopen: streams.Reopen})
	defer roles.Close()
	defer n.toLeader.Lead(slices.Concat(
		st.Calls(), members.Calls(), roles.Calls(), addresses.Calls(), ranks.Calls(), gw.Calls(), told.Calls())...)()

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return streams.Run(ctx, brain) })
	g.Go(func() error { return roles.Run(ctx) })
	g.Go(func() error { return vip.Run(ctx) })
	g.Go(func() error { return told.Run(ctx) })
	g.Go(func() error { return members.Run(ctx) })
	return g.Wait()
}
