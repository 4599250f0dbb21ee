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
	envhost "github.com/sparkrun/sparkrun/envgen/host"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/envgen/reach"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// The codes of what only a cluster can lack.
const (
	codeNodeAway = "node-away"
	codeNoLeader = "no-leader"
	codeNoAgent  = "no-agent"
)

// Explanations are those of all codes that a doctor's findings may have.
func Explanations() []envgen.Explanation {
	return slices.Concat([]envgen.Explanation{
		{Code: codeNoAgent, Text: "no agent runs on this machine: only what the machine itself shows was looked at"},
		{Code: codeNoLeader, Text: "the cluster has no leader: nothing can be launched or stopped"},
		{Code: codeFabricOnly, Text: "the leader reaches a member over the fabric alone: the management network " +
			"between them is dead, and nothing else would stand in for the fabric"},
		{Code: codeNodeAway, Text: "a member's agent does not answer: nothing can be launched there, " +
			"and nothing was learnt of it"},
	}, topology.Explanations(), reach.Explanations(), envhost.Explanations())
}

const (
	// factsWithin and tryWithin bound one node's answers: what its programs take,
	// what its packets take, and a slow machine's share.
	factsWithin = 8 * time.Second
	tryWithin   = reach.Patience + 5*time.Second
	// settleWithin is how long the cable probe may need to see a link that came
	// up: twins take turns, and both ends have to have heard each other.
	settleWithin = 20 * time.Second
)

// patient is one member and what was learnt of it.
type patient struct {
	wire.NodeStatus
	answer wire.ExamineResponse
	err    error
}

// visit is one examination of all members.
type visit struct {
	status   wire.Status
	patients []*patient
	topology envgen.Topology
	reports  map[string]reach.Report
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
	v, err := u.visit(ctx, c, r.Ask)
	if err != nil {
		return wire.DoctorResponse{}, err
	}
	if err := v.mustHave(r.Node); err != nil {
		return wire.DoctorResponse{}, err
	}
	res := wire.DoctorResponse{Self: u.cfg.Host}
	if r.Fix {
		mends := mendsFor(about(v.findings(), r.Node), v.views())
		res.Mended = u.mendAll(ctx, c, v.patients, mends)
		if len(res.Mended) > 0 {
			u.settle(ctx, c, mends)
			if v, err = u.visit(ctx, c, r.Ask); err != nil {
				return res, err
			}
		}
	}
	res.Findings = about(v.findings(), r.Node)
	for _, p := range v.patients {
		d := wire.DoctorNode{ID: p.ID, Host: p.Host, State: p.State, Facts: p.answer.Facts}
		if p.err != nil {
			d.Error = p.err.Error()
		}
		res.Nodes = append(res.Nodes, d)
	}
	return res, nil
}

// visit asks each member what it is, works out what each has to try, and has
// them try it.
func (u *Checkup) visit(ctx context.Context, c wire.Caller, ask envhost.Ask) (*visit, error) {
	v, err := u.look(ctx, c, &ask)
	if err != nil {
		return nil, err
	}
	orders := reach.Plan(v.topology, u.cfg.Listeners(), func(id string) bool {
		return slices.ContainsFunc(v.patients, func(p *patient) bool { return string(p.ID) == id && p.err == nil })
	})
	reports := make([]*reach.Report, len(v.patients))
	each(len(v.patients), func(i int) {
		o, has := orders[string(v.patients[i].ID)]
		if !has {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, tryWithin)
		defer cancel()
		res, err := u.ask(ctx, v.patients[i].ID, wire.ExamineRequest{Orders: &o})
		if err != nil {
			v.patients[i].err = fmt.Errorf("it tries its part of the checks: %w", err)
			return
		}
		reports[i] = res.Report
	})
	v.reports = map[string]reach.Report{}
	for i, r := range reports {
		if r != nil {
			v.reports[string(v.patients[i].ID)] = *r
		}
	}
	return v, nil
}

// look asks each member what it is; without ask for its hardware only.
func (u *Checkup) look(ctx context.Context, c wire.Caller, ask *envhost.Ask) (*visit, error) {
	st, err := u.cfg.Status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return nil, err
	}
	v := &visit{status: st}
	for _, s := range st.Nodes {
		v.patients = append(v.patients, &patient{NodeStatus: s})
	}
	each(len(v.patients), func(i int) {
		p := v.patients[i]
		ctx, cancel := context.WithTimeout(ctx, factsWithin)
		defer cancel()
		began := time.Now()
		p.answer, p.err = u.ask(ctx, p.ID, wire.ExamineRequest{Facts: ask})
		if p.err == nil && p.answer.Facts != nil && p.ID != u.cfg.Self {
			p.answer.Facts.Clock.Measure(began, p.answer.Received, p.answer.Sent, time.Now())
		}
		if p.err == nil {
			p.Inventory = p.answer.Inventory
		}
	})
	v.topology, err = v.derive()
	return v, err
}

// derive judges what was seen together with what was counted.
func (v *visit) derive() (envgen.Topology, error) {
	in := topology.Observed(v.views())
	for i := range in.Nodes {
		for _, p := range v.patients {
			if string(p.ID) == in.Nodes[i].ID {
				in.Nodes[i].Counters = p.answer.Counters
			}
		}
	}
	return topology.Derive(in)
}

func (u *Checkup) ask(ctx context.Context, id launcher.NodeID, r wire.ExamineRequest) (wire.ExamineResponse, error) {
	if id == u.cfg.Self {
		return u.Examine(ctx, wire.Caller{}, r)
	}
	return wire.Examine.Call(ctx, u.cfg.Dial.Client(id), r)
}

// views are the members of which any hardware is known, without witnesses: they
// have no part in the fabric.
func (v *visit) views() []envgen.NodeView {
	var out []envgen.NodeView
	for _, p := range v.patients {
		if len(p.Inventory.NICs) > 0 && !p.Witness {
			out = append(out, envgen.NodeView{ID: string(p.ID), Host: p.Host, Mgmt: p.Addr, Inventory: p.Inventory})
		}
	}
	return out
}

func (v *visit) mustHave(hostName string) error {
	var known []string
	for _, p := range v.patients {
		known = append(known, p.Host)
	}
	if hostName != "" && !slices.Contains(known, hostName) {
		return fmt.Errorf("--node %s: %w: the cluster has %s", hostName, rendezvous.ErrNoNode, strings.Join(known, ", "))
	}
	return nil
}

// findings are everything that is wrong, worst first, each mistake once.
func (v *visit) findings() []envgen.Finding {
	var out []envgen.Finding
	if v.status.Leader == "" && v.status.Problem != "" {
		out = append(out, envgen.Finding{Code: codeNoLeader, Severity: envgen.SeverityError,
			Text:     "the cluster has no leader: nothing can be launched or stopped",
			Evidence: v.status.Problem, Remedy: "sparkrun status"})
	}
	var nodes []envhost.Node
	gone := map[string]bool{}
	for _, p := range v.patients {
		if p.err != nil || p.answer.Facts == nil {
			gone[string(p.ID)] = true
			out = append(out, away(p))
			continue
		}
		nodes = append(nodes, envhost.Node{ID: string(p.ID), Host: p.Host, Facts: *p.answer.Facts, Witness: p.Witness})
		if p.State == "away" {
			out = append(out, envgen.Finding{Code: codeNodeAway, Severity: envgen.SeverityWarning,
				Node: string(p.ID), Host: p.Host,
				Text:     p.Host + " answers here, and the leader does not hear it",
				Evidence: "state away", Remedy: "sudo systemctl restart sparkrun"})
		}
	}
	out = append(out, FabricOnly(v.status)...)
	// What was last known of a node that does not answer is no finding of today.
	seen := slices.Clone(v.topology.Findings)
	out = append(out, slices.DeleteFunc(seen, func(f envgen.Finding) bool { return gone[f.Node] })...)
	out = append(out, envhost.Judge(envhost.Cluster{Nodes: nodes, Shape: v.topology.Shape})...)
	out = append(out, reach.Judge(v.reports, v.views())...)
	return once(out)
}

func away(p *patient) envgen.Finding {
	why := "it said nothing"
	if p.err != nil {
		why = p.err.Error()
	}
	f := envgen.Finding{Code: codeNodeAway, Severity: envgen.SeverityError, Node: string(p.ID), Host: p.Host,
		Text:     p.Host + " does not answer: nothing can be launched there, and nothing was learnt of it",
		Evidence: why, Remedy: "sudo systemctl start sparkrun"}
	if p.Witness {
		f.Severity = envgen.SeverityWarning
		f.Text = p.Host + ", a witness, does not answer: jobs go on, and until it is back the loss of another machine " +
			"leaves the cluster without a leader"
	}
	return f
}

// once sorts findings and drops those that another says better: MTUs that
// differ where lost packets were seen.
func once(all []envgen.Finding) []envgen.Finding {
	out := slices.DeleteFunc(all, func(f envgen.Finding) bool {
		return f.Code == topology.CodeMTUUnequal && slices.ContainsFunc(all, func(o envgen.Finding) bool {
			return o.Code == reach.CodePathMTU && o.Node == f.Node && o.Device == f.Device
		})
	})
	slices.SortStableFunc(out, func(a, b envgen.Finding) int {
		return cmp.Or(cmp.Compare(a.Severity.Rank(), b.Severity.Rank()),
			cmp.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port),
			cmp.Compare(a.Device, b.Device), cmp.Compare(a.Code, b.Code))
	})
	return out
}

// about keeps the findings of one host; empty keeps all.
func about(all []envgen.Finding, hostName string) []envgen.Finding {
	return slices.DeleteFunc(all, func(f envgen.Finding) bool { return hostName != "" && f.Host != hostName })
}

// mendsFor draws from findings what --fix does: by the hardware as it is, not
// by a finding's words.
func mendsFor(findings []envgen.Finding, views []envgen.NodeView) map[string][]wire.Mend {
	out := map[string][]wire.Mend{}
	do := func(node string, m wire.Mend) {
		if !slices.Contains(out[node], m) {
			out[node] = append(out[node], m)
		}
	}
	for _, f := range findings {
		i := slices.IndexFunc(views, func(v envgen.NodeView) bool { return v.ID == f.Node })
		if i < 0 {
			continue
		}
		inv := views[i].Inventory
		switch f.Code {
		case topology.CodeNoLink, topology.CodeTwinDown:
			for _, name := range netdevsAt(inv, f.Port) {
				if nic, ok := inv.NIC(name); ok && !nic.Up {
					do(f.Node, wire.Mend{Kind: wire.MendUp, NIC: name})
				}
			}
		case topology.CodeMTULow, topology.CodeMTUUnequal, reach.CodePathMTU:
			if nic, ok := inv.NIC(f.Device); ok && nic.MTU < netplan.MTU {
				do(f.Node, wire.Mend{Kind: wire.MendMTU, NIC: f.Device})
			}
		case envhost.CodePageCache:
			do(f.Node, wire.Mend{Kind: wire.MendCache})
		}
	}
	return out
}

func netdevsAt(inv envgen.Inventory, slot string) []string {
	var out []string
	for _, p := range envgen.Ports(inv) {
		for _, h := range p.Twins {
			if p.Slot == slot && h.Netdev != "" {
				out = append(out, h.Netdev)
			}
		}
	}
	return out
}

// mendAll has each node mend itself, side by side.
func (u *Checkup) mendAll(ctx context.Context, c wire.Caller, patients []*patient,
	mends map[string][]wire.Mend) []wire.Mended {
	ill := slices.DeleteFunc(slices.Clone(patients), func(p *patient) bool { return len(mends[string(p.ID)]) == 0 })
	slices.SortStableFunc(ill, func(a, b *patient) int { return cmp.Compare(a.Host, b.Host) })
	done := make([][]wire.Mended, len(ill))
	each(len(ill), func(i int) {
		id, wanted := ill[i].ID, mends[string(ill[i].ID)]
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
				done[i] = append(done[i], wire.Mended{Host: ill[i].Host, Mend: m, Command: commandOf(m), Error: err.Error()})
			}
		}
	})
	return slices.Concat(done...)
}

// settle waits until nothing is wrong any more at the ports whose NICs were set
// up, for as long as the cable probe may need to see their cables.
func (u *Checkup) settle(ctx context.Context, c wire.Caller, mends map[string][]wire.Mend) {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	for ctx.Err() == nil {
		v, err := u.look(ctx, c, nil)
		if err == nil && !v.troubled(mends) {
			return
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// troubled reports whether the topology still complains of a port with a NIC
// that was set up.
func (v *visit) troubled(mends map[string][]wire.Mend) bool {
	for _, view := range v.views() {
		for _, m := range mends[view.ID] {
			if m.Kind != wire.MendUp {
				continue
			}
			for _, f := range v.topology.Findings {
				if f.Node == view.ID && f.Severity != envgen.SeverityInfo &&
					slices.Contains(netdevsAt(view.Inventory, f.Port), m.NIC) {
					return true
				}
			}
		}
	}
	return false
}

// Alone is a machine without an agent, and what is known of it.
type Alone struct {
	Host      string
	Addr      netip.Addr // of management; not valid where there is none
	Inventory envgen.Inventory
	Machine   *envhost.Reader
	Witness   bool
	// Enrolled: it is in a cluster, where an agent would start.
	Enrolled bool
	NoAgent  error // how it is known that no agent runs
}

// Doctor examines the machine: what it shows by itself.
func (a Alone) Doctor(ctx context.Context, r wire.DoctorRequest) (wire.DoctorResponse, error) {
	p := &patient{NodeStatus: wire.NodeStatus{
		ID: "this", Host: a.Host, Addr: a.Addr, State: "unknown", Inventory: a.Inventory, Witness: a.Witness,
	}}
	v := &visit{patients: []*patient{p}}
	if err := v.mustHave(r.Node); err != nil {
		return wire.DoctorResponse{}, err
	}
	facts := a.Machine.Read(ctx, r.Ask)
	facts.Netplan = netplanMentions(netplan.Disk{Root: "/"}, a.Inventory)
	p.answer.Facts = &facts
	var err error
	if v.topology, err = v.derive(); err != nil {
		return wire.DoctorResponse{}, err
	}
	remedy := "sudo systemctl start sparkrun"
	if !a.Enrolled {
		remedy = "sudo sparkrun join"
	}
	found := append(v.findings(), envgen.Finding{
		Code: codeNoAgent, Severity: envgen.SeverityError, Node: "this", Host: a.Host,
		Text:     "no agent runs here: only what this machine itself shows was looked at, and nothing can be launched on it",
		Evidence: a.NoAgent.Error(), Remedy: remedy})
	return wire.DoctorResponse{Self: a.Host, Findings: once(found),
		Nodes: []wire.DoctorNode{{ID: "this", Host: a.Host, State: p.State, Facts: &facts}}}, nil
}
