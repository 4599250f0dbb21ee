package checkup

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// factsWithin and probeWithin bound one node's answers: the time its programs take, the
	// time its packets take, and a margin for a slow machine.
	factsWithin = 8 * time.Second
	probeWithin = doctor.Patience + 5*time.Second
	// settleWithin is how long the cable probe may need to see a link that has come up:
	// twins take turns, and each end must have heard the other.
	settleWithin = 20 * time.Second
)

// Seen takes from a status what doctor examines of the cluster.
func Seen(st wire.Status) *doctor.Cluster {
	c := &doctor.Cluster{Leader: st.Leader, Problem: st.Problem, Removed: st.Removed}
	for _, n := range st.Nodes {
		c.Nodes = append(c.Nodes, doctor.Node{
			ID: string(n.ID), Host: n.Host, Addr: n.Addr, State: n.State, FabricOnly: n.FabricOnly,
			Witness: n.Witness, Inventory: n.Inventory,
		})
	}
	return c
}

// Fabric sums up a node's RDMA ports: how many have a link, and their rate, or that something is wrong with them. A
// witness needs none.
func Fabric(n wire.NodeStatus, t doctor.Tally) string {
	if t.Errors > 0 {
		return counted(t.Errors, "error") + ": sparkrun doctor"
	}
	ports := envgen.Ports(n.Inventory)
	switch {
	case n.Witness, n.State == "away", len(n.Inventory.NICs) == 0: // or nothing is known of it
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

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Doctor examines every member, side by side, from this node: no leader is
// needed for it.
func (u *Checkup) Doctor(ctx context.Context, c wire.Caller, r wire.DoctorRequest) (wire.DoctorResponse, error) {
	if c.Node != "" {
		return wire.DoctorResponse{}, fmt.Errorf("doctor: %w: ask the agent of your own machine", wire.ErrDenied)
	}
	if r.Fix {
		if err := c.MustBeRoot("doctor --fix"); err != nil {
			return wire.DoctorResponse{}, err
		}
	}
	r.Ask.User = c.User.Name
	seen, err := u.examineAll(ctx, c, r.Ask)
	if err != nil {
		return wire.DoctorResponse{}, err
	}
	if err := mustHave(seen, r.Node); err != nil {
		return wire.DoctorResponse{}, err
	}
	var mended []wire.Mended
	if r.Fix {
		mends := seen.Mends(seen.Findings(r.Node))
		if mended = u.mendAll(ctx, c, seen.Nodes, mends); len(mended) > 0 {
			u.settle(ctx, c, mends)
			if seen, err = u.examineAll(ctx, c, r.Ask); err != nil {
				return wire.DoctorResponse{Self: u.cfg.Host, Mended: mended}, err
			}
		}
	}
	res := told(u.cfg.Host, seen, r.Node)
	res.Mended = mended
	return res, nil
}

// told is the answer about one host, or about all where host is empty.
func told(self string, seen *doctor.Cluster, host string) wire.DoctorResponse {
	res := wire.DoctorResponse{Self: self, Findings: seen.Findings(host)}
	for _, n := range seen.Nodes {
		d := wire.DoctorNode{ID: launcher.NodeID(n.ID), Host: n.Host, State: n.State, Facts: n.Facts}
		if n.Err != nil {
			d.Error = n.Err.Error()
		}
		res.Nodes = append(res.Nodes, d)
	}
	return res
}

// examineAll reads each member's facts, works out what each has to test, and has it run
// these tests.
func (u *Checkup) examineAll(ctx context.Context, c wire.Caller, ask doctor.Ask) (*doctor.Cluster, error) {
	seen, err := u.look(ctx, c, &ask)
	if err != nil {
		return nil, err
	}
	orders := doctor.Plan(seen.Topology, u.cfg.Listeners(), func(id string) bool {
		return slices.ContainsFunc(seen.Nodes, func(n doctor.Node) bool { return n.ID == id && n.Err == nil })
	})
	reports := make([]*doctor.Report, len(seen.Nodes))
	each(len(seen.Nodes), func(i int) {
		n := &seen.Nodes[i]
		o, has := orders[n.ID]
		if !has {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, probeWithin)
		defer cancel()
		res, err := u.ask(ctx, n.ID, wire.ExamineRequest{Orders: &o})
		if err != nil {
			n.Err = fmt.Errorf("it tries its part of the checks: %w", err)
			return
		}
		reports[i] = res.Report
	})
	seen.Reports = map[string]doctor.Report{}
	for i, r := range reports {
		if r != nil {
			seen.Reports[seen.Nodes[i].ID] = *r
		}
	}
	return seen, nil
}

// look reads each member's facts; without ask, its hardware only.
func (u *Checkup) look(ctx context.Context, c wire.Caller, ask *doctor.Ask) (*doctor.Cluster, error) {
	st, err := u.cfg.Status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return nil, err
	}
	seen := Seen(st)
	each(len(seen.Nodes), func(i int) {
		n := &seen.Nodes[i]
		ctx, cancel := context.WithTimeout(ctx, factsWithin)
		defer cancel()
		began := time.Now()
		var res wire.ExamineResponse
		if res, n.Err = u.ask(ctx, n.ID, wire.ExamineRequest{Facts: ask}); n.Err != nil {
			return
		}
		n.Inventory, n.Counters, n.Facts = res.Inventory, res.Counters, res.Facts
		if n.Facts != nil && n.ID != string(u.cfg.Self) {
			n.Facts.Clock.Measure(began, res.Received, res.Sent, time.Now())
		}
	})
	return seen, seen.Derive()
}

func (u *Checkup) ask(ctx context.Context, id string, r wire.ExamineRequest) (wire.ExamineResponse, error) {
	if id == string(u.cfg.Self) {
		return u.Examine(ctx, wire.Caller{}, r)
	}
	return wire.Examine.Call(ctx, u.cfg.Dial.Client(launcher.NodeID(id)), r)
}

func mustHave(seen *doctor.Cluster, hostName string) error {
	var known []string
	for _, n := range seen.Nodes {
		known = append(known, n.Host)
	}
	if hostName != "" && !slices.Contains(known, hostName) {
		return fmt.Errorf("--node %s: %w: the cluster has %s", hostName, rendezvous.ErrNoNode, strings.Join(known, ", "))
	}
	return nil
}

// mendAll has each node repair itself, side by side.
func (u *Checkup) mendAll(ctx context.Context, c wire.Caller, nodes []doctor.Node,
	mends map[string][]doctor.Mend) []wire.Mended {
	ill := slices.DeleteFunc(slices.Clone(nodes), func(n doctor.Node) bool { return len(mends[n.ID]) == 0 })
	slices.SortStableFunc(ill, func(a, b doctor.Node) int { return cmp.Compare(a.Host, b.Host) })
	done := make([][]wire.Mended, len(ill))
	each(len(ill), func(i int) {
		id, wanted := launcher.NodeID(ill[i].ID), mends[ill[i].ID]
		ctx, cancel := context.WithTimeout(ctx, factsWithin+carrierWithin)
		defer cancel()
		var res wire.MendResponse
		var err error
		if id == u.cfg.Self {
			res, err = u.Mend(ctx, c, wire.MendRequest{Mends: wanted})
		} else {
			res, err = wire.MendNode.Call(ctx, u.cfg.Dial.Client(id).OnBehalfOf(c), wire.MendRequest{Mends: wanted})
		}
		done[i] = res.Mended
		if err != nil {
			for _, m := range wanted {
				done[i] = append(done[i], wire.Mended{Host: ill[i].Host, Mend: m, Command: m.Command(), Error: err.Error()})
			}
		}
	})
	return slices.Concat(done...)
}

// settle waits until the ports whose NICs were set up have no finding left, for as long
// as the cable probe may need to see their cables.
func (u *Checkup) settle(ctx context.Context, c wire.Caller, mends map[string][]doctor.Mend) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	for ctx.Err() == nil {
		seen, err := u.look(ctx, c, nil)
		if err == nil && !seen.Troubled(mends) {
			return
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// Alone is a machine without an agent, and what is known of it.
type Alone struct {
	Host      string
	Addr      netip.Addr // of management; not valid where there is none
	Inventory envgen.Inventory
	Machine   *doctor.Reader
	Witness   bool
	// Enrolled: it is in a cluster, where an agent would start.
	Enrolled bool
	NoAgent  error // what proves that no agent runs
}

// Doctor examines this machine alone.
func (a Alone) Doctor(ctx context.Context, r wire.DoctorRequest) (wire.DoctorResponse, error) {
	seen := &doctor.Cluster{NoAgent: a.NoAgent, Enrolled: a.Enrolled, Nodes: []doctor.Node{{
		ID: "this", Host: a.Host, Addr: a.Addr, State: "unknown", Inventory: a.Inventory, Witness: a.Witness,
	}}}
	if err := mustHave(seen, r.Node); err != nil {
		return wire.DoctorResponse{}, err
	}
	facts := a.Machine.Read(ctx, r.Ask)
	facts.Netplan = netplanMentions(netplan.Disk{Root: "/"}, a.Inventory)
	seen.Nodes[0].Facts = &facts
	if err := seen.Derive(); err != nil {
		return wire.DoctorResponse{}, err
	}
	return told(a.Host, seen, ""), nil
}
