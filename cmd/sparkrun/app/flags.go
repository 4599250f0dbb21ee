package app

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
)

// Span is a flag's duration: 90s, 2m, or a bare number of seconds as for srun.
type Span struct{ D *time.Duration }

func (s Span) Type() string { return "time" }

func (s Span) String() string {
	if s.D == nil || *s.D == 0 {
		return ""
	}
	return s.D.String()
}

func (s Span) Set(text string) error {
	d, err := ParseSpan(text)
	if err == nil {
		*s.D = d
	}
	return err
}

// ParseSpan reads a duration as Span does.
func ParseSpan(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if n, nerr := strconv.Atoi(text); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
		if n > int(time.Duration(1<<63-1)/time.Second) {
			err = strconv.ErrRange
		}
	}
	if err != nil {
		return 0, fmt.Errorf("want a time such as 30s, 5m, or a number of seconds")
	}
	if d < 0 {
		return 0, fmt.Errorf("want no less than 0")
	}
	return d, nil
}

// Ulimits is a flag given once for each limit.
type Ulimits struct{ All *[]launcher.Ulimit }

func (u Ulimits) Type() string { return "name=soft:hard" }

func (u Ulimits) String() string {
	if u.All == nil {
		return ""
	}
	var texts []string
	for _, l := range *u.All {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, ",")
}

func (u Ulimits) Set(text string) error {
	l, err := launcher.ParseUlimit(text)
	if err == nil {
		*u.All = append(*u.All, l)
	}
	return err
}

// Published is a flag given once for each port or range of ports.
type Published struct{ All *[]launcher.Ports }

func (p Published) Type() string { return "port" }

func (p Published) String() string {
	if p.All == nil {
		return ""
	}
	var texts []string
	for _, ports := range *p.All {
		texts = append(texts, ports.String())
	}
	return strings.Join(texts, ",")
}

func (p Published) Set(text string) error {
	if strings.Contains(text, ":") { // docker's HOST:CONTAINER
		return errors.New("the network is the host's: give the port alone")
	}
	ports, err := launcher.ParsePorts(text)
	if err == nil {
		*p.All = append(*p.All, ports)
	}
	return err
}

// Positive is a flag's count from 1 up; the variable stays 0 when the flag is not given.
type Positive struct{ N *int }

func (p Positive) Type() string { return "int" }

func (p Positive) String() string {
	if p.N == nil || *p.N == 0 {
		return ""
	}
	return strconv.Itoa(*p.N)
}

func (p Positive) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return fmt.Errorf("want 1 or more")
	}
	*p.N = n
	return nil
}

// RanksEach is a flag's ranks on each machine. torchrun's words for one on each GPU are taken: a Spark has one.
type RanksEach struct{ N *int }

func (r RanksEach) Type() string   { return "int" }
func (r RanksEach) String() string { return Positive(r).String() }

func (r RanksEach) Set(text string) error {
	if text == "gpu" || text == "auto" {
		text = "1"
	}
	return Positive(r).Set(text)
}

// RankList is a flag's ranks: 3, 0,4 or 0-3, as Slurm writes them.
type RankList struct{ Ranks *[]int }

func (l RankList) Type() string { return "ranks" }

func (l RankList) String() string {
	if l.Ranks == nil {
		return ""
	}
	return strings.Trim(fmt.Sprint(*l.Ranks), "[]")
}

// maxRanks bounds the ranks of a range: more than any cluster of Sparks has.
const maxRanks = 1 << 16

func (l RankList) Set(text string) error {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || from > to {
			return fmt.Errorf("want ranks below %d such as 3, 0,4 or 0-3", maxRanks)
		}
		for r := from; r <= to; r++ {
			*l.Ranks = append(*l.Ranks, int(r))
		}
	}
	return nil
}

// NCCLFlags binds the flags that choose between the variables of old and new NCCL.
func NCCLFlags(fs *pflag.FlagSet, version *string, subnetAware *bool) {
	fs.Var(ncclVersion{version}, "nccl", "the NCCL that the ranks load, such as 2.28.9 (default: a current one)")
	fs.BoolVar(subnetAware, "nccl-subnet-aware", false,
		"it routes by subnet although it is older than 2.30.7: the dgxspark-3node-ring fork")
}

// ncclVersion is a flag's NCCL release.
type ncclVersion struct{ text *string }

func (v ncclVersion) Type() string { return "version" }

func (v ncclVersion) String() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}

func (v ncclVersion) Set(text string) error {
	parsed, err := envgen.ParseNCCLVersion(text)
	if err != nil {
		return err
	}
	*v.text = parsed.String()
	return nil
}

// FabricPortFlag binds the flag that overrides which ports are for jobs.
func FabricPortFlag(fs *pflag.FlagSet, ports *[]string) {
	fs.StringSliceVar(ports, "fabric-port", nil,
		"a port for jobs: number, PCI slot, device or interface; repeat for more, no others are used")
}

// NodeCount is a flag's number of machines: N, MIN:MAX as for torchrun, or all that are there.
type NodeCount struct{ Least, Most *int }

// allNodes is more than any cluster of Sparks has.
const allNodes = 4096

func (n NodeCount) Type() string { return "N|MIN:MAX|all" }

func (n NodeCount) String() string {
	switch {
	case n.Most == nil || *n.Most == 0:
		return ""
	case *n.Least == 1 && *n.Most == allNodes:
		return "all"
	case *n.Least != 0:
		return fmt.Sprintf("%d:%d", *n.Least, *n.Most)
	}
	return strconv.Itoa(*n.Most)
}

func (n NodeCount) Set(text string) error {
	if text == "all" {
		*n.Least, *n.Most = 1, allNodes
		return nil
	}
	least, most, elastic := strings.Cut(text, ":")
	err := Positive{n.Most}.Set(most)
	if !elastic {
		*n.Least = 0
		err = Positive{n.Most}.Set(text)
	} else if err == nil {
		err = Positive{n.Least}.Set(least)
	}
	if err != nil {
		return fmt.Errorf("want 1 or more, MIN:MAX such as 2:4, or all")
	}
	return nil
}

// GPUCount is a flag's share of a machine's GPUs.
type GPUCount struct {
	G    *launcher.GPUs
	None *bool
}

func (g GPUCount) Type() string { return "all|none|N" }

func (g GPUCount) String() string {
	if g.G == nil {
		return ""
	}
	return string(*g.G)
}

func (g GPUCount) Set(text string) error {
	n, err := strconv.Atoi(text)
	*g.G, *g.None = launcher.GPUs(text), false
	switch {
	case text == "none" || text == "0":
		*g.G, *g.None = launcher.NoGPUs, true
	case text != string(launcher.AllGPUs) && (err != nil || n < 1):
		return fmt.Errorf("want all, none or a number")
	}
	return nil
}

// Choice is a flag that takes one of a few words.
type Choice struct {
	V     *string
	Words []string
}

func (c Choice) Type() string { return strings.Join(c.Words, "|") }

func (c Choice) String() string {
	if c.V == nil {
		return ""
	}
	return *c.V
}

func (c Choice) Set(text string) error {
	if !slices.Contains(c.Words, text) {
		return fmt.Errorf("want %s", strings.Join(c.Words, " or "))
	}
	*c.V = text
	return nil
}

// Part is a flag's fraction of the expected rate, above 0 and up to 1.
type Part struct{ V *float64 }

func (p Part) Type() string { return "part" }

func (p Part) String() string {
	if p.V == nil || *p.V == 0 {
		return ""
	}
	return strconv.FormatFloat(*p.V, 'g', -1, 64)
}

func (p Part) Set(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= 1) {
		return errors.New("want a part of what is expected, above 0 and up to 1, such as 0.9")
	}
	*p.V = v
	return nil
}

// Amount is a flag's size: 512MiB, 2G, or a bare number of bytes. Units are
// powers of 1024, with or without "iB".
type Amount struct {
	N     *int64
	Least int64 // less is refused
}

func (a Amount) Type() string { return "size" }

func (a Amount) String() string {
	if a.N == nil || *a.N == 0 {
		return ""
	}
	return strconv.FormatInt(*a.N, 10)
}

func (a Amount) Set(text string) error {
	n, err := parseBytes(text)
	if err == nil && n < a.Least {
		err = fmt.Errorf("want at least %d", a.Least)
	}
	if err == nil {
		*a.N = n
	}
	return err
}

func parseBytes(text string) (int64, error) {
	number := strings.TrimSuffix(strings.TrimSuffix(text, "B"), "i")
	shift := 0
	if i := strings.IndexAny("KMGTkmgt", number[max(len(number)-1, 0):]); i >= 0 && number != "" {
		number, shift = number[:len(number)-1], 10*(i%4+1)
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return 0, fmt.Errorf("want a size such as 512M, 2GiB, or a number of bytes")
	}
	return n << shift, nil
}

// leastMemory refuses 40, which nobody means as bytes.
const leastMemory = 1 << 20

// Memory is a flag's SIZE[:PEAK].
type Memory struct{ M **launcher.Memory }

func (m Memory) Type() string { return "SIZE[:PEAK]" }

func (m Memory) String() string {
	if m.M == nil || *m.M == nil {
		return ""
	}
	return (*m.M).String()
}

func (m Memory) Set(text string) error {
	size, peak, both := strings.Cut(text, ":")
	var got launcher.Memory
	err := Amount{N: &got.Bytes, Least: leastMemory}.Set(size)
	if err == nil && both {
		err = Amount{N: &got.Peak, Least: got.Bytes}.Set(peak)
	}
	if err != nil {
		return fmt.Errorf("want a size such as 40G, or 40G:60G with the most that it takes while it starts")
	}
	*m.M = &got
	return nil
}

// ManagementFlag binds the flag that overrides which NIC the cluster talks over.
func ManagementFlag(fs *pflag.FlagSet, management *string) {
	fs.StringVar(management, "management", "",
		"interface or address to talk over (default: the wired NIC that is no ConnectX)")
}

// NodeFlags binds the flags that a machine is given once, when it joins a cluster.
func NodeFlags(fs *pflag.FlagSet, c *node.Config) {
	fs.StringVar(&c.Host, "host", "", "this machine's name in the cluster (default: its host name)")
	ManagementFlag(fs, &c.Management)
	FabricPortFlag(fs, &c.FabricPorts)
	fs.IntVar(&c.RPCPort, "rpc-port", membership.DefaultRPCPort, "port of the agent's calls and raft, TCP")
	fs.IntVar(&c.GossipPort, "gossip-port", membership.DefaultGossipPort, "port of gossip, TCP and UDP")
}
