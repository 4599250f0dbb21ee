// Package jobs is a node's part in jobs that run: the list of them that ps shows, their
// output, their input and signals, commands beside them, the files and secrets that they bring along, and
// who may have ranks here.
//
// It decides which node is asked for what of a job, whose job a user may touch, and
// what this node refuses to run by its own policy.
//
// It must not start or end a rank (launcher/agent does, by the leader's orders), or
// need a leader where the record here says enough.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's part.
type Config struct {
	Self   launcher.NodeID
	Host   string
	Record *rendezvous.Record
	Agent  *agent.Agent
	// What the agent was opened with.
	Files   *Files
	Secrets Secrets
	Policy  Policy
	Dial    *dial.Dialer
	// Failover knows of the leader; Why gives a better reason why none answered.
	Failover *failover.Failover
	// Present are the members as gossip knows them.
	Present *rendezvous.Latest[[]gossip.Peer]
	Why     func(error) error
	// Leader is asked for all jobs.
	Leader *wire.ToLeader
	// ByUser and ByMember write to the audit log who ran a command beside a rank.
	ByUser, ByMember func(what string, c wire.Caller, on string, err error)
	Logger           *slog.Logger
}

// Ranks reaches the ranks of any job, here and on other nodes.
type Ranks struct {
	Files   *Files
	Secrets Secrets
	Policy  Policy
	cfg     Config
}

// New makes a node's part.
func New(cfg Config) *Ranks {
	return &Ranks{Files: cfg.Files, Secrets: cfg.Secrets, Policy: cfg.Policy, cfg: cfg}
}

// Calls are what it answers.
func (k *Ranks) Calls() []wire.Call {
	return []wire.Call{
		wire.Launch.Around(k.launchFrom), wire.Jobs.Around(k.jobs),
		wire.Logs.Serve(k.Logs), wire.Input.Serve(k.Input), wire.InputAt.Serve(k.InputAt), wire.Signal.Serve(k.Signal),
		wire.Exec.Serve(k.Exec), wire.ExecReach.Serve(k.ExecReach),
		wire.Stage.Serve(k.Files.Stage), wire.StageContent.Serve(k.Files.Content), wire.Seal.Serve(k.Secrets.Seal),

		wire.ServeBarrier(k.barrier),
		wire.NodeLogs.Serve(k.NodeLogs), wire.Prepared.Serve(k.Prepared), wire.NodeReach.Serve(k.NodeReach),
		wire.NodeInputAt.Serve(k.NodeInputAt), wire.NodeExec.Serve(k.NodeExec), wire.NodeExecReach.Serve(k.NodeExecReach),
		wire.NodeStaged.Serve(k.Files.NodeStaged), wire.NodeStageRead.Serve(k.Files.NodeRead),
	}
}

// Run tells the agent where members are, so that a member whose address changes while a
// job runs can still reach its ranks.
func (k *Ranks) Run(ctx context.Context) error {
	for {
		present, changed := k.cfg.Present.Watch()
		addrs := map[launcher.NodeID][]netip.Addr{}
		for _, p := range present {
			addrs[launcher.NodeID(p.ID)] = nil // it is a member
			if p.Alive {
				addrs[launcher.NodeID(p.ID)] = append(p.Meta.FabricAddrs(), p.Addr)
			}
		}
		k.cfg.Agent.Readdress(addrs)
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close closes Files, which New took over.
func (k *Ranks) Close() { k.Files.Close() }

// launchFrom asks this node's policy before anything is placed: the user typed the launch
// here.
func (k *Ranks) launchFrom(ctx context.Context, c wire.Caller, r wire.LaunchRequest,
	tell func(rendezvous.Progress) error, ask wire.AskAll[wire.LaunchRequest, rendezvous.Progress]) error {
	user, err := c.RunsAs(r.Spec.User)
	if err != nil {
		return err
	}
	if err := k.Policy.Launch(ctx, c, user); err != nil {
		return err
	}
	return ask(ctx, r, tell)
}

// jobs asks the leader; without a leader it answers from this node's copy and says so.
func (k *Ranks) jobs(ctx context.Context, c wire.Caller, r wire.JobsRequest,
	ask wire.Ask[wire.JobsRequest, wire.JobsResponse]) (wire.JobsResponse, error) {
	res, err := ask(ctx, r)
	if !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrNoLeader) {
		return res, err
	}
	res = wire.JobsResponse{User: c.User.Name, Problem: k.cfg.Why(err).Error(), Heard: k.cfg.Failover.Raft().LastContact()}
	for _, j := range k.cfg.Record.Jobs() {
		st := rendezvous.StatusOf(j)
		k.localState(&st)
		if r.Wants(st) {
			res.Jobs = append(res.Jobs, st)
		}
	}
	return res, nil
}

// All gives the jobs as jobs answers c.
func (k *Ranks) All(ctx context.Context, c wire.Caller) (wire.JobsResponse, error) {
	return k.jobs(ctx, c, wire.JobsRequest{}, func(ctx context.Context, r wire.JobsRequest) (wire.JobsResponse, error) {
		return wire.Jobs.Call(ctx, k.cfg.Leader.As(c), r)
	})
}

// localState adds what this node's own ledger knows of a job.
func (k *Ranks) localState(st *rendezvous.JobStatus) {
	if st.Outcome != nil || st.Verdict != nil || st.Stop != nil {
		return
	}
	for _, e := range k.cfg.Agent.Ledger() {
		if e.Key == st.Key() && e.Phase == launcher.PhaseStarted {
			st.State = rendezvous.StateRuns
			if e.Suspended {
				st.Suspended = []string{k.cfg.Host}
			}
		}
	}
}

// Prepared answers a dry run: what this node would start, or why it refuses.
func (k *Ranks) Prepared(ctx context.Context, _ wire.Caller, r wire.NodePlanRequest) (wire.NodePlan, error) {
	ranks, model, err := k.cfg.Agent.Explain(ctx, r.Assignment, r.Model)
	p := wire.NodePlan{Host: k.cfg.Host, Ranks: ranks, Memory: survey.Memory(), Model: model}
	if err != nil {
		p.Error = err.Error()
	}
	return p, nil
}

// ownJob finds a job that its caller may act on.
func (k *Ranks) ownJob(ctx context.Context, c wire.Caller, text string) (rendezvous.Job, error) {
	job, _, err := k.findJob(ctx, c, text)
	if err == nil && c.User.UID != 0 && c.User.Name != job.Spec.User {
		err = fmt.Errorf("reach job %s: %w: it is %s's, who may, as root may (sudo)", job.Spec.ID,
			wire.ErrDenied, job.Spec.User)
	}
	return job, err
}

// findJob finds the job that a text means. For a whole id in this node's copy of the
// record the copy is enough: a plan does not change. Anything else is asked of the
// leader, since a name may have gone to a newer job a moment ago. While there is no
// leader this copy has to do, and aged says how old it is.
func (k *Ranks) findJob(ctx context.Context, c wire.Caller, text string) (job rendezvous.Job, aged string, err error) {
	if job, ok := k.cfg.Record.Job(launcher.JobID(text)); ok {
		return job, "", nil
	}
	all, err := k.All(ctx, c)
	if err != nil {
		return rendezvous.Job{}, "", err
	}
	if all.Problem != "" {
		aged = k.aged(text, all.Heard)
	}
	jobs := make([]rendezvous.Job, len(all.Jobs))
	for i, j := range all.Jobs {
		jobs[i] = j.Job
	}
	i, err := rendezvous.FindJob(jobs, c.User.Name, text)
	if err != nil {
		return rendezvous.Job{}, "", err
	}
	return jobs[i], aged, nil
}

// aged says how old this node's own knowledge of jobs may be.
func (k *Ranks) aged(text string, heard time.Time) string {
	since := "from before its agent started"
	if !heard.IsZero() {
		since = fmt.Sprintf("%s old", max(time.Second, time.Since(heard).Round(time.Second)))
	}
	return fmt.Sprintf("no leader answers: which job %q is was looked up in what %s knows, %s", text, k.cfg.Host, since)
}
