package launcher

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"time"
)

// A job may start in steps: stages that run side by side in one generation, each started
// when the one before is ready. In a plain job the main stage is the only one.

// Where says which of a job's nodes a stage has ranks on.
type Where string

const (
	OnAll  Where = ""     // on each
	OnHead Where = "head" // on rank 0's
	OnRest Where = "rest" // on each but that one
)

// DefaultPatience is how long a stage may take to become ready without any progress.
const DefaultPatience = 5 * time.Minute

// NamedPort is a number of consecutive TCP ports that a stage gets under a name on each
// node that it has ranks on: free there in prepare, and held until the stage starts.
type NamedPort struct {
	Name  string `json:"name"`
	Count int    `json:"count,omitempty"` // 0 means 1
	// At is the first of them, if they must have known numbers; a node where one is taken
	// refuses. 0: any from 20000 to 29499, new with each generation.
	At uint16 `json:"at,omitempty"`
}

// Limits of what a stage asks for besides its command.
const (
	MaxNamedPorts = 16
	MaxPortCount  = 2048 // on one node, of all stages together
	MaxProbes     = 8
	maxMatch      = 256  // bytes of a pattern
	maxMatchSteps = 1000 // of the compiled program: the cost of each byte that is searched
)

// ProbeKind is a way to find out whether a stage is ready.
type ProbeKind string

const (
	ProbeTCP  ProbeKind = "tcp"  // something listens on Port
	ProbeHTTP ProbeKind = "http" // Path on Port answers with a status from 200 to 399
	ProbeLog  ProbeKind = "log"  // a line that matches Match is in the output of each rank of the stage
	ProbeExec ProbeKind = "exec" // Argv, beside a rank and with its environment, exits with 0
)

// Probe is repeated by the agents of the nodes that it is about, until it passes.
type Probe struct {
	Kind ProbeKind `json:"kind"`
	What string    `json:"what"` // in words: what is waited for
	// Head: it runs on rank 0's node alone, else on each node with ranks of the stage.
	Head bool `json:"head,omitempty"`
	// Port is a reference to one of the job's ports: agents probe as root, and a job may
	// not probe any other port.
	Port  Value   `json:"port,omitempty"`
	Path  string  `json:"path,omitempty"`
	Match string  `json:"match,omitempty"` // a regular expression (RE2)
	Argv  []Value `json:"argv,omitempty"`
	// Want, with ProbeExec and Match, is how much the output of Argv must show: the sum of
	// the numbers in Match's group, over all its matches.
	Want Value `json:"want,omitempty"`
}

// Steps are the stages that run side by side in a generation of the main one, in the order
// of their starts.
func (s Spec) Steps() []Stage {
	return slices.DeleteFunc(slices.Clone(s.Stages), func(st Stage) bool {
		return !st.Main && (st.Name == StageBefore || st.Name == StageAfter)
	})
}

// Stepped reports whether a version without steps would misread the job.
func (s Spec) Stepped() bool {
	steps := s.Steps()
	return len(steps) > 1 || len(steps) == 1 && steps[0].beyondPlain()
}

func (st Stage) beyondPlain() bool {
	return st.Where != OnAll || len(st.Ready) > 0 || len(st.Ports) > 0 || st.Patience != 0 || st.Spares ||
		st.Replace || st.PIDsOf != ""
}

// On reports whether the stage has ranks on a node.
func (st Stage) On(nodeRank int) bool {
	return st.Where == OnAll || (st.Where == OnHead) == (nodeRank == 0)
}

// place gives a node's index among the nodes of the stage, with so many nodes in the job,
// and the number of the stage's nodes.
func (st Stage) place(nodeRank, nodes int) (index, of int) {
	switch st.Where {
	case OnHead:
		return nodeRank, 1
	case OnRest:
		return nodeRank - 1, nodes - 1
	}
	return nodeRank, nodes
}

// AskedOn reports whether a node runs probes of a stage.
func (st Stage) AskedOn(nodeRank int) bool {
	return slices.ContainsFunc(st.Ready, func(p Probe) bool { return p.askedOn(st, nodeRank) })
}

func (p Probe) askedOn(st Stage, nodeRank int) bool {
	if p.Head {
		return nodeRank == 0
	}
	return st.On(nodeRank)
}

// ProbesOn are the probes that a node runs for a stage.
func (st Stage) ProbesOn(nodeRank int) []Probe {
	return slices.DeleteFunc(slices.Clone(st.Ready), func(p Probe) bool { return !p.askedOn(st, nodeRank) })
}

// RanksOn counts the ranks of all steps on a node. They are numbered consecutively, in the
// order of the steps, so that a node's ranks in a plan are one span.
func (s Spec) RanksOn(nodeRank int) int {
	n := 0
	for _, st := range s.Steps() {
		if st.On(nodeRank) {
			n += st.RanksPerNode
		}
	}
	return n
}

// ReplacesOn reports whether ranks on a node may be started again while the job runs.
func (s Spec) ReplacesOn(nodeRank int) bool {
	return s.MaxRestarts > 0 &&
		slices.ContainsFunc(s.Steps(), func(st Stage) bool { return st.Replace && st.On(nodeRank) })
}

// WorldOf counts the ranks of all steps on so many nodes.
func (s Spec) WorldOf(nodes int) int {
	if nodes < 1 {
		return 0
	}
	return s.RanksOn(0) + (nodes-1)*s.RanksOn(1)
}

// StepOf gives the step of a node's local rank, and its index among that step's ranks
// there. -1: there is no such rank.
func (s Spec) StepOf(nodeRank, localRank int) (step, index int) {
	for i, st := range s.Steps() {
		if !st.On(nodeRank) {
			continue
		}
		if localRank < st.RanksPerNode {
			return i, localRank
		}
		localRank -= st.RanksPerNode
	}
	return -1, 0
}

// FirstOf is a step's first local rank on one of its nodes.
func (s Spec) FirstOf(step, nodeRank int) int {
	first := 0
	for _, st := range s.Steps()[:step] {
		if st.On(nodeRank) {
			first += st.RanksPerNode
		}
	}
	return first
}

// Local is one rank of a node: its step, the stage, and its placement.
func (a Assignment) Local(localRank int) (step int, st Stage, placement Placement) {
	placement = Placement{
		Job: a.Job, Generation: a.Generation, Restarts: a.Restarts,
		Rank: a.FirstRank + localRank, LocalRank: localRank, NodeRank: a.NodeRank,
		World: a.World, LocalWorld: a.Ranks, NodesIn: a.NodeCount,
		Head: a.Head.String(), Addr: a.Addr.String(), Host: a.Host, Management: a.Management.String(), Rest: a.Rest,
	}
	if !a.Management.IsValid() { // the leader is too old to send it
		placement.Management = placement.Addr
	}
	if !a.Spec.Stepped() {
		if main := a.Spec.MainStage(); main != nil {
			st = *main
		}
		return 0, st, placement
	}
	step, placement.LocalRank = a.Spec.StepOf(a.NodeRank, localRank)
	if step < 0 { // validate lets no such assignment through
		return step, st, placement
	}
	st = a.Spec.Steps()[step]
	at, of := st.place(a.NodeRank, a.NodeCount)
	placement.Rank, placement.World, placement.LocalWorld = at*st.RanksPerNode+placement.LocalRank, of*st.RanksPerNode,
		st.RanksPerNode
	return step, st, placement
}

func (s Spec) validateSteps() error {
	steps := s.Steps()
	names, ports := map[string]bool{}, map[string]Where{}
	var counts [2]int // on the head, and on each other node
	for _, st := range steps {
		if names[st.Name] {
			return fmt.Errorf("stage %q: %w: there are two of this name", st.Name, ErrInvalid)
		}
		if st.PIDsOf != "" && !slices.ContainsFunc(steps, func(of Stage) bool {
			return of.Name == st.PIDsOf && names[of.Name] && of.Where == st.Where && !of.Replace
		}) {
			return fmt.Errorf("stage %s: %w: %q, whose processes it is to see, is not an earlier stage on the same nodes",
				st.Name, ErrInvalid, st.PIDsOf)
		}
		names[st.Name] = true
		if !st.Container.alike(steps[0].Container) {
			return fmt.Errorf("stage %s: %w: all stages of a job run in containers of one kind, or all on the host",
				st.Name, ErrInvalid)
		}
		if len(st.Ports) > MaxNamedPorts || len(st.Ready) > MaxProbes {
			return fmt.Errorf("stage %s: %w: %d ports and %d probes, at most %d and %d", st.Name, ErrInvalid,
				len(st.Ports), len(st.Ready), MaxNamedPorts, MaxProbes)
		}
		for _, p := range st.Ports {
			if _, twice := ports[p.Name]; twice || !namePattern().MatchString(p.Name) || p.Count < 0 || p.Count > MaxPortCount {
				return fmt.Errorf("stage %s: port %q: %w: want a name of its own, and 1 to %d ports", st.Name, p.Name,
					ErrInvalid, MaxPortCount)
			}
			if int(p.At)+max(p.Count, 1)-1 > 1<<16-1 {
				return fmt.Errorf("stage %s: port %q: %w: %d ports from %d are more than there are", st.Name,
					p.Name, ErrInvalid, p.Count, p.At)
			}
			ports[p.Name] = st.Where
			for i := range counts {
				if st.On(i) {
					counts[i] += max(p.Count, 1)
				}
			}
		}
	}
	if most := max(counts[0], counts[1]); most > MaxPortCount {
		return fmt.Errorf("job %s: %w: its stages have %d ports on a node, at most %d", s.ID, ErrInvalid, most, MaxPortCount)
	}
	for _, st := range steps {
		if err := st.validateStep(ports); err != nil {
			return err
		}
	}
	if s.Service != nil {
		if err := validPorts([]Value{s.Service.Port}, ports, OnHead); err != nil {
			return fmt.Errorf("service: %w", err)
		}
	}
	nodes := s.WithDefaults().Nodes
	for i := range min(nodes, 2) {
		if n := s.RanksOn(i); n < 1 || n > MaxRanksPerNode {
			return fmt.Errorf("job %s: %w: its stages have %d ranks on node %d, want 1 to %d", s.ID, ErrInvalid, n, i,
				MaxRanksPerNode)
		}
	}
	if main := s.MainStage(); main != nil && nodes < 2 && main.Where == OnRest {
		return fmt.Errorf("job %s: %w: its main stage has no rank on one node alone", s.ID, ErrInvalid)
	}
	return nil
}

func (st Stage) validateStep(ports map[string]Where) error {
	switch {
	case st.Where != OnAll && st.Where != OnHead && st.Where != OnRest:
		return fmt.Errorf("stage %s: %w: nodes %q are not known to this version of sparkrun", st.Name, ErrInvalid, st.Where)
	case st.Replace && (!st.Spares || st.Main):
		return fmt.Errorf("stage %s: %w: a job that replaces ranks must be able to run without one", st.Name, ErrInvalid)
	case st.Patience < 0:
		return fmt.Errorf("stage %s: %w: patience below zero", st.Name, ErrInvalid)
	}
	values := slices.Clone(st.Command())
	for _, e := range st.Env {
		values = append(values, e.Value)
	}
	if err := validPorts(values, ports, st.Where); err != nil {
		return fmt.Errorf("stage %s: %w", st.Name, err)
	}
	for _, p := range st.Ready {
		at := st.Where
		if p.Head {
			at = OnHead
		}
		if err := errors.Join(p.validate(), validPorts(append([]Value{p.Port, p.Want}, p.Argv...), ports, at)); err != nil {
			return fmt.Errorf("stage %s: probe %q: %w", st.Name, p.What, err)
		}
	}
	return nil
}

// validPorts refuses a reference to a named port that the nodes at where do not know.
func validPorts(values []Value, ports map[string]Where, where Where) error {
	for _, v := range values {
		for _, part := range v {
			kind, name, named := part.Ref.port()
			if !named {
				continue
			}
			of, known := ports[name]
			has := of == OnAll || of == where
			if kind == headPort {
				has = of != OnRest
			}
			if !known || !has {
				return fmt.Errorf("reference %q: %w: no stage has such a port there", part.Ref, ErrInvalid)
			}
		}
	}
	return nil
}

func (p Probe) textBytes() int {
	size := len(p.Path) + len(p.Match) + len(p.What)
	for _, v := range append([]Value{p.Port, p.Want}, p.Argv...) {
		size += v.size()
	}
	return size
}

func (p Probe) validate() error {
	for _, v := range append([]Value{p.Port, p.Want}, p.Argv...) {
		if err := v.validate(); err != nil {
			return err
		}
	}
	if len(p.Match) > maxMatch { // the agent searches for it, beside all its other work
		return fmt.Errorf("%w: a pattern of %d bytes, at most %d", ErrInvalid, len(p.Match), maxMatch)
	}
	if err := cheap(p.Match); err != nil {
		return err
	}
	if len(p.Port) > 0 && (len(p.Port) != 1 || p.Port[0].Ref != Port && !p.Port[0].Ref.IsNamedPort()) {
		return fmt.Errorf("%w: port %q: want a named port of the job", ErrInvalid, p.Port)
	}
	needs := map[ProbeKind]bool{
		ProbeTCP: len(p.Port) > 0, ProbeHTTP: len(p.Port) > 0 && strings.HasPrefix(p.Path, "/"),
		ProbeLog: p.Match != "", ProbeExec: len(p.Argv) > 0 && (len(p.Want) == 0 || p.Match != ""),
	}
	switch {
	case p.What == "" || p.textBytes() > MaxTextBytes:
		return fmt.Errorf("%w: want words for it, and less than %d bytes", ErrInvalid, MaxTextBytes)
	case !needs[p.Kind]:
		return fmt.Errorf("%w: a %q probe that is incomplete, or not known to this version of sparkrun", ErrInvalid, p.Kind)
	}
	return nil
}

// cheap refuses an invalid pattern, or one that repeats so much that each searched byte
// costs too many steps (RE2 is linear in the text, and in the compiled size).
func cheap(pattern string) error {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err == nil {
		var prog *syntax.Prog
		if prog, err = syntax.Compile(re.Simplify()); err == nil && len(prog.Inst) > maxMatchSteps {
			return fmt.Errorf("%w: the pattern %q repeats too much", ErrInvalid, pattern)
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return nil
}
