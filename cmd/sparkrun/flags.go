package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/node"
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

// fabricPortFlag binds what overrides the rules about which ports are for jobs.
func fabricPortFlag(fs *pflag.FlagSet, ports *[]string) {
	fs.StringSliceVar(ports, "fabric-port", nil, "a port for jobs: number, PCI slot, device or interface; repeat for more, no others are used")
}

// nodeFlags bind what a machine is told once, when it joins a cluster.
func nodeFlags(fs *pflag.FlagSet, c *node.Config) {
	fs.StringVar(&c.Host, "host", "", "this machine's name in the cluster (default: its host name)")
	fs.StringVar(&c.Management, "management", "", "interface or address to talk over (default: the wired NIC that is no ConnectX)")
	fabricPortFlag(fs, &c.FabricPorts)
	fs.IntVar(&c.RPCPort, "rpc-port", node.DefaultRPCPort, "port of the agent's calls and raft, TCP")
	fs.IntVar(&c.GossipPort, "gossip-port", node.DefaultGossipPort, "port of gossip, TCP and UDP")
}
