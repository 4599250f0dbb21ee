package rendezvous

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Member is a node as the leader sees it now.
type Member struct {
	Node
	// Ready: its control stream is up. Gossip plays no part in it.
	Ready bool `json:"ready"`
	// Drained says why a node that answers gets no ranks: what was killed there and does
	// not exit. Empty: it may get ranks.
	Drained string `json:"drained,omitempty"`
	// Blank: it has lost its copy of the record, and with it what it has voted for. It
	// takes no part in raft until it is taken in anew.
	Blank bool      `json:"blank,omitempty"`
	Since time.Time `json:"since"` // of the last change of Ready
	// Unstarted: it has joined under this leader, who has not heard its agent yet.
	Unstarted bool             `json:"unstarted,omitempty"`
	Boot      string           `json:"boot,omitempty"`
	Version   string           `json:"version,omitempty"`
	Inventory envgen.Inventory `json:"inventory"`
}

// Roster is every member, in the order of their names.
type Roster []Member

// Plan says where each rank of one generation runs, and the address at which they meet.
type Plan struct {
	Generation launcher.Generation `json:"generation"`
	Nodes      []Place             `json:"nodes"` // by node rank
	World      int                 `json:"world"`
	Head       netip.Addr          `json:"head"`    // rank 0's node, on Network
	Network    string              `json:"network"` // "fabric", "management" or "loopback"
	Why        string              `json:"why"`     // why this network, one sentence

	// Stage is what this generation runs: "" is the main stage.
	Stage string `json:"stage,omitempty"`
	// Restarts counts the attempts of the main stage before this generation.
	Restarts int `json:"restarts,omitempty"`
	// Held are nodes that the job keeps for its next generation.
	Held []Holding `json:"held,omitempty"`
}

// Holding is a node that a job occupies without using it.
type Holding struct {
	Node launcher.NodeID `json:"node"`
	Host string          `json:"host"`
}

// Place is one node's part in a plan.
type Place struct {
	Node      launcher.NodeID `json:"node"`
	Host      string          `json:"host"`
	Boot      string          `json:"boot"`
	FirstRank int             `json:"first_rank"`
	Ranks     int             `json:"ranks"`
	Entry     envgen.Entry    `json:"entry"` // the node's address, NIC and RDMA paths on the job's network
	// Addrs are all addresses of the node, management first, then the fabric's: its
	// ranks' connections come from them.
	Addrs []netip.Addr `json:"addrs,omitempty"`
}

// Management is the node's address on the management network; without a cluster it is the address that the job
// uses.
func (p Place) Management() netip.Addr {
	if len(p.Addrs) > 0 {
		return p.Addrs[0]
	}
	return p.Entry.Addr
}

// ErrCannotPlace is wrapped by every error of MakePlan.
var ErrCannotPlace = errors.New("cannot place the job")

// Views are the members that are ready and may get ranks, in envgen's form.
func (r Roster) Views() []envgen.NodeView {
	var views []envgen.NodeView
	for _, m := range r {
		if m.Ready && !m.Witness {
			views = append(views, m.View())
		}
	}
	return views
}

// View is the member in envgen's form.
func (m Member) View() envgen.NodeView {
	return envgen.NodeView{ID: string(m.ID), Host: m.Host, Mgmt: m.Addr.Addr(), Inventory: m.Inventory}
}

// MakePlan chooses nodes and ranks: ranks are contiguous on each node; the nodes come in
// the order of --on, else the topology chooses and orders them, including the node that
// the user is on. The topology is that of the ready members; an empty one joins no nodes.
func MakePlan(spec launcher.Spec, roster Roster, topology envgen.Topology, gen launcher.Generation) (Plan, error) {
	return makePlan(spec, roster, topology, gen, Former{})
}

func makePlan(spec launcher.Spec, roster Roster, topology envgen.Topology, gen launcher.Generation,
	former Former) (Plan, error) {
	chosen, err := choose(spec, roster, topology, former)
	if err != nil {
		return Plan{}, err
	}
	meeting, err := topology.Meet(Roster(chosen).Views())
	if err != nil {
		return Plan{}, fmt.Errorf("%w: %w", ErrCannotPlace, err)
	}
	plan := Plan{
		Generation: gen,
		Head:       meeting.Entries[0].Addr,
		Network:    string(meeting.Kind),
		Why:        meeting.Why,
	}
	for i, m := range chosen {
		ranks := spec.RanksOn(i)
		plan.Nodes = append(plan.Nodes, Place{
			Node: m.ID, Host: m.Host, Boot: m.Boot,
			FirstRank: plan.World, Ranks: ranks,
			Entry: meeting.Entries[i], Addrs: m.View().Addrs(meeting.Entries[i].Addr),
		})
		plan.World += ranks
	}
	return plan, nil
}

// Sides are the plan's nodes, by node rank, as in the roster that it was made from, and
// the address at which each meets the others.
func (p Plan) Sides(roster Roster) (views []envgen.NodeView, entries []envgen.Entry) {
	for _, n := range p.Nodes {
		i := slices.IndexFunc(roster, func(m Member) bool { return m.ID == n.Node })
		views = append(views, roster[i].View())
		entries = append(entries, n.Entry)
	}
	return views, entries
}

func whoIsThere(roster Roster) string {
	var ready, away, drained []string
	for _, m := range roster {
		switch {
		case m.Drained != "":
			drained = append(drained, m.Host+" ("+m.Drained+")")
		case m.Ready:
			ready = append(ready, m.Host)
		default:
			away = append(away, m.Host)
		}
	}
	text := "the cluster has " + strings.Join(ready, ", ")
	switch {
	case len(ready) == 0 && len(drained) > 0:
		text = "no node can take it"
	case len(ready) == 0:
		text = "no node is ready"
	}
	if len(away) > 0 {
		text += "; away: " + strings.Join(away, ", ")
	}
	if len(drained) > 0 {
		text += "; not usable: " + strings.Join(drained, ", ")
	}
	return text
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Assignment is what node rank i is told of the plan.
func (p Plan) Assignment(spec launcher.Spec, i int) launcher.Assignment {
	n := p.Nodes[i]
	meeting, err := json.Marshal(n.Entry)
	if err != nil {
		panic(err) // plain data: only a change of the type could make this fail
	}
	var members []netip.Addr
	var nodes []launcher.NodeID
	var rest []netip.Addr
	for rank, place := range p.Nodes {
		members, nodes = append(members, place.Addrs...), append(nodes, place.Node)
		if rank > 0 {
			rest = append(rest, place.Entry.Addr)
		}
	}
	return launcher.Assignment{
		Members: members, Nodes: nodes, Rest: rest,
		Key:  launcher.Key{Job: spec.ID, Generation: p.Generation},
		Spec: spec.Only(p.Stage), Restarts: p.Restarts,
		Node: n.Node, Host: n.Host, Boot: n.Boot,
		NodeRank: i, NodeCount: len(p.Nodes), FirstRank: n.FirstRank, Ranks: n.Ranks, World: p.World,
		HeadNode: p.Nodes[0].Node,
		Head:     p.Head, Addr: n.Entry.Addr, Network: p.Network, Meeting: meeting,
		Management: n.Management(),
	}
}

// Has lists the nodes that a job with this plan occupies.
func (p Plan) Has() []launcher.NodeID {
	var ids []launcher.NodeID
	for _, n := range p.Nodes {
		ids = append(ids, n.Node)
	}
	for _, h := range p.Held {
		ids = append(ids, h.Node)
	}
	return ids
}

// Single is the plan of a stage before or after the main one: one rank on the node of
// rank 0. The other nodes are held.
func (p Plan) Single(stage string, gen launcher.Generation) Plan {
	first := p.Nodes[0]
	first.FirstRank, first.Ranks = 0, 1
	one := p
	one.Nodes, one.World, one.Stage, one.Generation = []Place{first}, 1, stage, gen
	one.Held = slices.Clone(p.Held)
	for _, n := range p.Nodes[1:] {
		one.Held = append(one.Held, Holding{Node: n.Node, Host: n.Host})
	}
	return one
}

// HostOf names the host a rank runs on.
func (p Plan) HostOf(rank int) string {
	for _, n := range p.Nodes {
		if rank >= n.FirstRank && rank < n.FirstRank+n.Ranks {
			return n.Host
		}
	}
	return "?"
}

// commandBytes bounds how much of a command line is shown: some lines of a terminal.
const commandBytes = 400

// CommandLine is the command of a job's ranks, quoted for a shell; empty where the job's spec has no known stage.
func (j Job) CommandLine() string {
	st := j.Spec.MainStage()
	if st == nil {
		return ""
	}
	ranks := placements(j)
	command := st.Command()
	argv := make([]string, len(command))
	for i, v := range command {
		for _, p := range v {
			argv[i] += cmp.Or(p.Lit, refText(p.Ref, ranks))
		}
	}
	line := plain.Text(strings.ReplaceAll(launcher.QuoteAll(argv), "\n", "⏎"))
	if len(line) > commandBytes {
		line = strings.ToValidUTF8(line[:commandBytes], "") + "…"
	}
	return line
}

// placements are those of the main stage's ranks as the record has them; none: it is not
// placed now.
func placements(j Job) (all []launcher.Placement) {
	if j.Plan.Stage != "" || !j.Plan.Head.IsValid() {
		return nil
	}
	for i := range j.Plan.Nodes {
		as := j.Plan.Assignment(j.Spec, i)
		for local := range as.Ranks {
			if _, st, placement := as.Local(local); st.Main {
				all = append(all, placement)
			}
		}
	}
	return all
}

// refText is what a reference is for all of these ranks. What the record does not know, or
// what differs from rank to rank, is put in words.
func refText(r launcher.Ref, ranks []launcher.Placement) string {
	kind, port, _ := strings.Cut(string(r), ":")
	switch {
	case r == "":
		return ""
	case r == launcher.Program:
		return string(r)
	case r == launcher.Port, r.IsNamedPort(): // found at the start, and not recorded
		return "<free port>"
	}
	text := ""
	for i, rank := range ranks {
		own, err := rank.Resolve(launcher.Of(r))
		if err != nil || i > 0 && own != text {
			text = ""
			break
		}
		text = own
	}
	switch {
	case text != "":
		return text
	case kind == "rest-at":
		return "<other machines>:" + port
	case r == launcher.Management:
		return "<management address>"
	case r == launcher.NodeAddr:
		return "<own address>"
	case r == launcher.Head:
		return "<first machine>"
	}
	return "<" + strings.ReplaceAll(string(r), "-", " ") + ">"
}
