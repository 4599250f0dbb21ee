package launcher

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Ref is a fact known only after placement. A Value names it instead of having text, so
// that no template has to be escaped or parsed.
type Ref string

const (
	Rank           Ref = "rank"             // 0 .. world size - 1
	LocalRank      Ref = "local-rank"       // 0 .. local world size - 1
	NodeRank       Ref = "node-rank"        // 0 .. nodes - 1
	WorldSize      Ref = "world-size"       // ranks in the job
	LocalWorldSize Ref = "local-world-size" // ranks on this node
	NodeCount      Ref = "node-count"
	Head           Ref = "head"       // address of rank 0's node that all chosen nodes reach
	Port           Ref = "port"       // free on Head, new with each generation
	NodeAddr       Ref = "node-addr"  // this node's address on the network of Head
	Management     Ref = "management" // this node's address on the network that the cluster talks over
	HeadHere       Ref = "head-here"  // 1 on rank 0's node, 0 on every other
	Host           Ref = "host"
	Job            Ref = "job"
	RestartCount   Ref = "restart-count" // attempts of the main stage before this one
	Program        Ref = "sparkrun"      // the node's own sparkrun, as a path
	CompileCache   Ref = "compile-cache" // a folder for compiled code that outlives the job
)

// The references to a NamedPort: this node's, the last one of several, the head's.
const (
	namedPort = "port:"
	lastPort  = "last-port:"
	headPort  = "head-port:"
)

// PortNamed is this node's port of that name, the first of several.
func PortNamed(name string) Ref { return Ref(namedPort + name) }

// LastPortNamed is the last one of them.
func LastPortNamed(name string) Ref { return Ref(lastPort + name) }

// HeadPortNamed is the first one on the head.
func HeadPortNamed(name string) Ref { return Ref(headPort + name) }

// restAt begins the reference to the other nodes' addresses.
const restAt = "rest-at:"

// RestAt is the addresses of all nodes but the head's, by node rank, each with this port:
// HOST:PORT,HOST:PORT. It is for programs that talk to ranks on a port with a fixed number.
func RestAt(port uint16) Ref { return Ref(restAt + strconv.Itoa(int(port))) }

func (r Ref) port() (kind, name string, named bool) {
	for _, kind := range []string{namedPort, lastPort, headPort} {
		if name, named := strings.CutPrefix(string(r), kind); named {
			return kind, name, true
		}
	}
	return "", "", false
}

// IsNamedPort reports whether it is one of these.
func (r Ref) IsNamedPort() bool {
	_, _, named := r.port()
	return named
}

// Part is a literal or a Ref: exactly one of the two is set, or neither for an empty
// literal.
type Part struct {
	Lit string `json:"lit,omitempty"`
	Ref Ref    `json:"ref,omitempty"`
}

// Value is text in parts, joined when it is resolved.
type Value []Part

// Lit makes a Value of fixed text.
func Lit(text string) Value { return Value{{Lit: text}} }

// Lits makes a Value of each text.
func Lits(texts ...string) []Value {
	vs := make([]Value, len(texts))
	for i, t := range texts {
		vs[i] = Lit(t)
	}
	return vs
}

// Of makes a Value that is one Ref.
func Of(r Ref) Value { return Value{{Ref: r}} }

// String shows the value as --dry-run does before placement: refs in <>.
func (v Value) String() string {
	var b strings.Builder
	for _, p := range v {
		if p.Ref != "" {
			b.WriteString("<" + string(p.Ref) + ">")
		} else {
			b.WriteString(p.Lit)
		}
	}
	return b.String()
}

func (v Value) size() int {
	n := 0
	for _, p := range v {
		n += len(p.Lit)
	}
	return n
}

func (v Value) validate() error {
	for _, p := range v {
		if err := validText(p.Lit); err != nil {
			return err
		}
		if p.Lit != "" && p.Ref != "" {
			return fmt.Errorf("%w: a part has both text and the reference %q", ErrInvalid, p.Ref)
		}
		// The record is JSON, which would silently replace such bytes.
		if !utf8.ValidString(p.Lit) {
			return fmt.Errorf("%w: not UTF-8 text", ErrInvalid)
		}
		if _, err := (Placement{}).lookup(p.Ref); p.Ref != "" && err != nil {
			return err
		}
	}
	return nil
}

// validText refuses what would be lost silently on the way to a rank: strings of execve end
// at the first NUL, and JSON, as which the record is kept, replaces what is not UTF-8, so
// that two leaders could order two different commands.
func validText(text string) error {
	switch {
	case strings.ContainsRune(text, 0):
		return fmt.Errorf("%w: it has a NUL byte", ErrInvalid)
	case !utf8.ValidString(text):
		return fmt.Errorf("%w: it is not UTF-8", ErrInvalid)
	}
	return nil
}

// Placement is the placement of one rank, with all that a Ref can ask for.
type Placement struct {
	Job                        JobID
	Generation                 Generation
	Restarts                   int
	Rank, LocalRank, NodeRank  int
	World, LocalWorld, NodesIn int
	Head, Addr, Host           string
	Management                 string
	Port                       int
	// Ports are this node's by name, HeadPorts the head's. nil: none was found yet, and a
	// reference to one resolves to itself in <>, as in Value.String.
	Ports, HeadPorts map[string]Ports
	Program          string // of sparkrun, on the node
	CompileCache     string // the folder, as the rank sees it
	// Rest are the addresses of all nodes but the head's, on its network.
	Rest []netip.Addr
}

func (s Placement) lookup(r Ref) (string, error) {
	if kind, name, named := r.port(); named {
		from := s.Ports
		if kind == headPort {
			from = s.HeadPorts
		}
		p, found := from[name]
		switch {
		case !found && from == nil:
			return "<" + string(r) + ">", nil
		case !found:
			return "", fmt.Errorf("reference %q: %w: this node has no such port", r, ErrInvalid)
		case kind == lastPort:
			return strconv.Itoa(int(p.Last)), nil
		}
		return strconv.Itoa(int(p.First)), nil
	}
	if text, is := strings.CutPrefix(string(r), restAt); is {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return "", fmt.Errorf("reference %q: %w: want a port", r, ErrInvalid)
		}
		all := make([]string, len(s.Rest))
		for i, addr := range s.Rest {
			all[i] = netip.AddrPortFrom(addr, uint16(port)).String()
		}
		return strings.Join(all, ","), nil
	}
	switch r {
	case Rank:
		return strconv.Itoa(s.Rank), nil
	case LocalRank:
		return strconv.Itoa(s.LocalRank), nil
	case NodeRank:
		return strconv.Itoa(s.NodeRank), nil
	case WorldSize:
		return strconv.Itoa(s.World), nil
	case LocalWorldSize:
		return strconv.Itoa(s.LocalWorld), nil
	case NodeCount:
		return strconv.Itoa(s.NodesIn), nil
	case Head:
		return s.Head, nil
	case Port:
		return strconv.Itoa(s.Port), nil
	case NodeAddr:
		return s.Addr, nil
	case Management:
		return s.Management, nil
	case HeadHere:
		if s.NodeRank == 0 {
			return "1", nil
		}
		return "0", nil
	case Host:
		return s.Host, nil
	case Job:
		return string(s.Job), nil
	case RestartCount:
		return strconv.Itoa(s.Restarts), nil
	case Program:
		return s.Program, nil
	case CompileCache:
		return s.CompileCache, nil
	}
	return "", fmt.Errorf("reference %q: %w: not known to this version of sparkrun", r, ErrInvalid)
}

// Resolve turns a value into text for one rank. It fails on a Ref that this version does
// not know: a newer leader's spec on an older node.
func (s Placement) Resolve(v Value) (string, error) {
	var b strings.Builder
	for _, p := range v {
		if p.Ref == "" {
			b.WriteString(p.Lit)
			continue
		}
		text, err := s.lookup(p.Ref)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

// Argv resolves a stage's command line for one rank.
func (s Placement) Argv(st Stage) ([]string, error) {
	command := st.Command()
	argv := make([]string, len(command))
	for i, v := range command {
		var err error
		if argv[i], err = s.Resolve(v); err != nil {
			return nil, err
		}
	}
	return argv, nil
}
