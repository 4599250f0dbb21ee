package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// LeaderConfig of the leader's part.
type LeaderConfig struct {
	Ranks    *Ranks // this node's own part
	Brain    *lead.Leader
	Failover *failover.Failover
	Term     uint64 // of the leadership
	// Holds says why no job may begin now; empty where one may.
	Holds func() string
	// FabricOnly names the hosts that this node reaches over the fabric alone.
	FabricOnly func() []string
	Logger     *slog.Logger
}

// Leader answers users about jobs for as long as this node leads.
type Leader struct{ cfg LeaderConfig }

// Lead makes the leader's part.
func Lead(cfg LeaderConfig) *Leader { return &Leader{cfg} }

// Calls are what it answers.
func (l *Leader) Calls() []wire.Call {
	return []wire.Call{
		wire.Launch.Serve(l.launch), wire.Watch.Serve(l.watch), wire.Explain.Serve(l.explain),
		wire.Stop.Serve(l.stop), wire.Service.Serve(l.service), wire.Restart.Serve(l.restart),
		wire.UpdateService.Serve(l.update), wire.Jobs.Serve(l.jobs),
	}
}

// find gives the job that a user means once this node has proven that it still leads: another leader may have recorded
// it, or one of that name, meanwhile.
func (l *Leader) find(ctx context.Context, c wire.Caller, text string) (rendezvous.Job, error) {
	if err := l.cfg.Failover.Raft().Verify(ctx); err != nil {
		return rendezvous.Job{}, err
	}
	return l.cfg.Ranks.cfg.Record.Find(c.User.Name, text)
}

// near is the member that a job should preferably be close to: the one where its user
// typed. A remote client's user is near none, whichever member it has dialled.
func (l *Leader) near(c wire.Caller) string {
	switch {
	case c.Client != nil:
		return ""
	case c.Forwarded():
		return c.Host
	}
	return l.cfg.Ranks.cfg.Host
}

func (l *Leader) launch(ctx context.Context, c wire.Caller, r wire.LaunchRequest,
	tell func(rendezvous.Progress) error) error {
	user, err := c.RunsAs(r.Spec.User)
	if err != nil {
		return err
	}
	if why := l.cfg.Holds(); why != "" {
		return fmt.Errorf("%s: %w", why, wire.ErrRetry)
	}
	r.Spec.User = user
	r.Spec.Near = l.near(c)
	l.cfg.Logger.Info("launch", "job", r.Spec.ID, "workload", r.Spec.Workload,
		"user", c.User.Name, "uid", c.User.UID, "from", c.Host)
	if err := l.cfg.Brain.Launch(ctx, r.Spec); err != nil {
		return err
	}
	return l.cfg.Brain.Watch(ctx, r.Spec.ID, tell)
}

func (l *Leader) watch(ctx context.Context, c wire.Caller, r wire.JobRequest,
	tell func(rendezvous.Progress) error) error {
	job, err := l.find(ctx, c, r.Job)
	if err != nil {
		return err
	}
	return l.cfg.Brain.Watch(ctx, job.Spec.ID, tell)
}

func (l *Leader) stop(ctx context.Context, c wire.Caller, r wire.StopRequest) (wire.StopResponse, error) {
	job, err := l.find(ctx, c, r.Job)
	if err == nil || errors.Is(err, rendezvous.ErrNoJob) {
		if hosts := l.stopStrays(c, r, job); len(hosts) > 0 {
			return wire.StopResponse{Job: launcher.JobID(cmp.Or(string(job.Spec.ID), r.Job)), Strays: hosts}, nil
		}
	}
	if err != nil {
		return wire.StopResponse{}, err
	}
	if c.User.UID != 0 && c.User.Name != job.Spec.User {
		return wire.StopResponse{}, fmt.Errorf("stop job %s: %w: it is %s's, who may, as root may (sudo)", job.Spec.ID,
			wire.ErrDenied, job.Spec.User)
	}
	grace := job.Spec.Grace
	if r.Grace != nil {
		grace = *r.Grace
	}
	return wire.StopResponse{Job: job.Spec.ID}, l.cfg.Brain.StopBy(ctx, job.Spec.ID,
		rendezvous.Stop{Grace: grace, Reason: "stopped by " + c.User.Name, Interrupt: r.Interrupt})
}

// stopStrays ends, for root, the attempts of a job that run although the record does not
// have them: see lead.StopStrays.
func (l *Leader) stopStrays(c wire.Caller, r wire.StopRequest, job rendezvous.Job) []string {
	if c.User.UID != 0 {
		return nil
	}
	id, grace := launcher.JobID(r.Job), launcher.DefaultGrace
	if job.Spec.ID != "" {
		id, grace = job.Spec.ID, job.Spec.Grace
	}
	if r.Grace != nil {
		grace = *r.Grace
	}
	why := fmt.Sprintf("stopped by %s; the record does not know it", c.User.Name)
	return l.cfg.Brain.StopStrays(id, grace, why)
}

// explain says where a job would go, and asks the nodes there what they would start.
func (l *Leader) explain(ctx context.Context, c wire.Caller, r wire.LaunchRequest) (wire.ExplainResponse, error) {
	spec := r.Spec.WithDefaults()
	user, err := c.RunsAs(spec.User)
	if err != nil {
		return wire.ExplainResponse{}, err
	}
	spec.User = user
	spec.Near = l.near(c)
	if err := spec.Validate(); err != nil {
		return wire.ExplainResponse{}, err
	}
	plan, findings, err := l.cfg.Brain.Place(spec)
	if err != nil {
		return wire.ExplainResponse{}, err
	}
	res := wire.ExplainResponse{Plan: plan, Findings: findings, Nodes: make([]wire.NodePlan, len(plan.Nodes))}
	var asked sync.WaitGroup
	for i := range plan.Nodes {
		asked.Go(func() {
			res.Nodes[i] = l.prepared(ctx, c, wire.NodePlanRequest{Assignment: plan.Assignment(spec, i), Model: r.Model})
		})
	}
	asked.Wait()
	return res, nil
}

// prepared asks one node for its part of a dry run.
func (l *Leader) prepared(ctx context.Context, c wire.Caller, a wire.NodePlanRequest) (p wire.NodePlan) {
	var err error
	if k := l.cfg.Ranks; a.Node == k.cfg.Self {
		p, err = k.Prepared(ctx, c, a)
	} else {
		p, err = wire.Prepared.Call(ctx, k.cfg.Dial.Client(a.Node), a)
	}
	if err != nil {
		p = wire.NodePlan{Error: err.Error()}
	}
	p.Host = a.Host
	return p
}

// service records whether a service is started again after all its machines were off.
func (l *Leader) service(ctx context.Context, c wire.Caller, r wire.ServiceRequest) (wire.ServiceResponse, error) {
	id, err := l.ownService(ctx, c, r.Job)
	if err != nil {
		return wire.ServiceResponse{}, err
	}
	err = l.cfg.Brain.Autostart(ctx, id, r.Autostart, l.cfg.Failover.Recorder(l.cfg.Term).Service)
	return wire.ServiceResponse{Job: id, OnlyOn: l.cfg.Failover.OnlyHere(ctx)}, err
}

// restart has a service end its ranks and start anew.
func (l *Leader) restart(ctx context.Context, c wire.Caller, r wire.JobRequest) (wire.ServiceResponse, error) {
	id, err := l.ownService(ctx, c, r.Job)
	if err == nil {
		err = l.cfg.Brain.Restart(ctx, id, rendezvous.ByHand+c.User.Name)
	}
	return wire.ServiceResponse{Job: id, OnlyOn: l.cfg.Failover.OnlyHere(ctx)}, err
}

// update gives a service another image.
func (l *Leader) update(ctx context.Context, c wire.Caller, r wire.UpdateServiceRequest) (wire.ServiceResponse, error) {
	if r.Image == "" || !plain.Is(r.Image) {
		return wire.ServiceResponse{}, fmt.Errorf("image %.64q: %w: want an image's name", r.Image, launcher.ErrInvalid)
	}
	id, err := l.ownService(ctx, c, r.Job)
	if err == nil {
		err = l.cfg.Brain.Update(ctx, rendezvous.JobUpdate{Job: id, Image: r.Image, By: c.User.Name},
			l.cfg.Failover.Recorder(l.cfg.Term).Update)
	}
	return wire.ServiceResponse{Job: id, OnlyOn: l.cfg.Failover.OnlyHere(ctx)}, err
}

// ownService finds a service that its caller may act on.
func (l *Leader) ownService(ctx context.Context, c wire.Caller, text string) (launcher.JobID, error) {
	job, err := l.find(ctx, c, text)
	id := job.Spec.ID
	switch {
	case err != nil:
		return "", err
	case c.User.UID != 0 && c.User.Name != job.Spec.User:
		return "", fmt.Errorf("job %s: %w: it is %s's, who may, as root may (sudo)", id, wire.ErrDenied,
			job.Spec.User)
	case job.Spec.Service == nil:
		return "", fmt.Errorf("job %s: %w: `sparkrun service ls` lists those", id, rendezvous.ErrNoService)
	case job.Outcome != nil:
		return "", fmt.Errorf("job %s: %w", id, rendezvous.ErrJobEnded)
	}
	return id, nil
}

// jobs lists them once this node has proven that it still leads; for each it says which
// of its machines the management network does not reach, and which have lost the fabric.
func (l *Leader) jobs(ctx context.Context, c wire.Caller, r wire.JobsRequest) (wire.JobsResponse, error) {
	if err := l.cfg.Failover.Raft().Verify(ctx); err != nil {
		return wire.JobsResponse{}, err
	}
	all := slices.DeleteFunc(l.cfg.Brain.Jobs(), func(j rendezvous.JobStatus) bool { return !r.Wants(j) })
	markFabricOnly(all, l.cfg.FabricOnly())
	roster, _ := l.cfg.Brain.Roster()
	markFabricLost(all, roster)
	return wire.JobsResponse{Jobs: all, User: c.User.Name}, nil
}

func markFabricOnly(all []rendezvous.JobStatus, hosts []string) {
	for i, j := range all {
		for _, p := range j.Plan.Nodes {
			if j.Outcome == nil && slices.Contains(hosts, p.Host) {
				all[i].FabricOnly = append(all[i].FabricOnly, p.Host)
			}
		}
	}
}

// markFabricLost says of which machines a port has no link by which the job's ranks meet. Of one that does not answer
// nothing is known.
func markFabricLost(all []rendezvous.JobStatus, roster rendezvous.Roster) {
	for i, j := range all {
		for _, p := range j.Plan.Nodes {
			k := slices.IndexFunc(roster, func(m rendezvous.Member) bool { return m.ID == p.Node })
			if j.Outcome == nil && k >= 0 && roster[k].Ready && len(p.Entry.Down(roster[k].Inventory)) > 0 {
				all[i].FabricLost = append(all[i].FabricLost, p.Host)
			}
		}
	}
}
