package main

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
)

// span is a flag's duration: 90s, 2m, or a bare number of seconds as srun
// takes it.
type span struct{ d *time.Duration }

func (s span) Type() string { return "time" }

func (s span) String() string {
	if s.d == nil || *s.d == 0 {
		return ""
	}
	return s.d.String()
}

func (s span) Set(text string) error {
	d, err := parseSpan(text)
	if err == nil {
		*s.d = d
	}
	return err
}

func parseSpan(text string) (time.Duration, error) {
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

// ulimits is a flag that is given once a limit.
type ulimits struct{ all *[]launcher.Ulimit }

func (u ulimits) Type() string { return "name=soft:hard" }

func (u ulimits) String() string {
	if u.all == nil {
		return ""
	}
	var texts []string
	for _, l := range *u.all {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, ",")
}

func (u ulimits) Set(text string) error {
	l, err := launcher.ParseUlimit(text)
	if err == nil {
		*u.all = append(*u.all, l)
	}
	return err
}

// published is a flag that is given once a port, or ports in a row.
type published struct{ all *[]launcher.Ports }

func (p published) Type() string { return "port" }

func (p published) String() string {
	if p.all == nil {
		return ""
	}
	var texts []string
	for _, ports := range *p.all {
		texts = append(texts, ports.String())
	}
	return strings.Join(texts, ",")
}

func (p published) Set(text string) error {
	ports, err := launcher.ParsePorts(text)
	if err == nil {
		*p.all = append(*p.all, ports)
	}
	return err
}

// positive is a flag's count from 1 up; the variable stays 0 when it is not
// given.
type positive struct{ n *int }

func (p positive) Type() string { return "int" }

func (p positive) String() string {
	if p.n == nil || *p.n == 0 {
		return ""
	}
	return strconv.Itoa(*p.n)
}

func (p positive) Set(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return fmt.Errorf("want 1 or more")
	}
	*p.n = n
	return nil
}

// rankList is a flag's ranks: 3, 0,4 or 0-3, as Slurm writes them.
type rankList struct{ ranks *[]int }

func (l rankList) Type() string { return "ranks" }

func (l rankList) String() string {
	if l.ranks == nil {
		return ""
	}
	return strings.Trim(fmt.Sprint(*l.ranks), "[]")
}

// maxRanks bounds what a range is written out to: more than any cluster of Sparks has.
const maxRanks = 1 << 16

func (l rankList) Set(text string) error {
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
			*l.ranks = append(*l.ranks, int(r))
		}
	}
	return nil
}

// ncclFlags bind what decides between NCCL's variables of old and new.
func ncclFlags(fs *pflag.FlagSet, version *string, subnetAware *bool) {
	fs.Var(ncclVersion{version}, "nccl", "the NCCL that the ranks load, such as 2.28.9 (default: a current one)")
	fs.BoolVar(subnetAware, "nccl-subnet-aware", false, "it routes by subnet although it is older than 2.30.7: the dgxspark-3node-ring fork")
}

// ncclVersion is a flag's release of NCCL.
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

// fabricPortFlag binds what overrides the rules about which ports are for jobs.
func fabricPortFlag(fs *pflag.FlagSet, ports *[]string) {
	fs.StringSliceVar(ports, "fabric-port", nil, "a port for jobs: number, PCI slot, device or interface; repeat for more, no others are used")
}

// nodeCount is a flag's number of machines: N, or MIN:MAX as torchrun takes it.
type nodeCount struct{ least, most *int }

func (n nodeCount) Type() string { return "N|MIN:MAX" }

func (n nodeCount) String() string {
	switch {
	case n.most == nil || *n.most == 0:
		return ""
	case *n.least != 0:
		return fmt.Sprintf("%d:%d", *n.least, *n.most)
	}
	return strconv.Itoa(*n.most)
}

func (n nodeCount) Set(text string) error {
	least, most, elastic := strings.Cut(text, ":")
	err := positive{n.most}.Set(most)
	if !elastic {
		*n.least = 0
		err = positive{n.most}.Set(text)
	} else if err == nil {
		err = positive{n.least}.Set(least)
	}
	if err != nil {
		return fmt.Errorf("want 1 or more, or MIN:MAX such as 2:4")
	}
	return nil
}

// gpuCount is a flag's share of a machine's GPUs.
type gpuCount struct {
	g    *launcher.GPUs
	none *bool
}

func (g gpuCount) Type() string { return "all|none|N" }

func (g gpuCount) String() string {
	if g.g == nil {
		return ""
	}
	return string(*g.g)
}

func (g gpuCount) Set(text string) error {
	n, err := strconv.Atoi(text)
	*g.g, *g.none = launcher.GPUs(text), false
	switch {
	case text == "none" || text == "0":
		*g.g, *g.none = launcher.NoGPUs, true
	case text != string(launcher.AllGPUs) && (err != nil || n < 1):
		return fmt.Errorf("want all, none or a number")
	}
	return nil
}

// choice is a flag that takes one of a few words.
type choice struct {
	v     *string
	words []string
}

func (c choice) Type() string { return strings.Join(c.words, "|") }

func (c choice) String() string {
	if c.v == nil {
		return ""
	}
	return *c.v
}

func (c choice) Set(text string) error {
	if !slices.Contains(c.words, text) {
		return fmt.Errorf("want %s", strings.Join(c.words, " or "))
	}
	*c.v = text
	return nil
}

// part is a flag's part of what is expected, above 0 and up to 1.
type part struct{ v *float64 }

func (p part) Type() string { return "part" }

func (p part) String() string {
	if p.v == nil || *p.v == 0 {
		return ""
	}
	return strconv.FormatFloat(*p.v, 'g', -1, 64)
}

func (p part) Set(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= 1) {
		return errors.New("want a part of what is expected, above 0 and up to 1, such as 0.9")
	}
	*p.v = v
	return nil
}

// amount is a flag's size: 512MiB, 2G, or a bare number of bytes. Units are
// powers of 1024, with or without "iB".
type amount struct{ n *int64 }

func (a amount) Type() string { return "size" }

func (a amount) String() string {
	if a.n == nil || *a.n == 0 {
		return ""
	}
	return strconv.FormatInt(*a.n, 10)
}

func (a amount) Set(text string) error {
	n, err := parseBytes(text)
	if err == nil {
		*a.n = n
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

// managementFlag binds what overrides the rule about which NIC the cluster talks over.
func managementFlag(fs *pflag.FlagSet, management *string) {
	fs.StringVar(management, "management", "", "interface or address to talk over (default: the wired NIC that is no ConnectX)")
}

// nodeFlags bind what a machine is told once, when it joins a cluster.
func nodeFlags(fs *pflag.FlagSet, c *node.Config) {
	fs.StringVar(&c.Host, "host", "", "this machine's name in the cluster (default: its host name)")
	managementFlag(fs, &c.Management)
	fabricPortFlag(fs, &c.FabricPorts)
	fs.IntVar(&c.RPCPort, "rpc-port", node.DefaultRPCPort, "port of the agent's calls and raft, TCP")
	fs.IntVar(&c.GossipPort, "gossip-port", node.DefaultGossipPort, "port of gossip, TCP and UDP")
}
