// Package exo decides, from what an exo node tells of its cluster, whether a model can be placed,
// where its parts should meet, and how far it has got. The gateway, a rank of its own in front of
// exo's API, acts on that.
//
// What is true of exo 1.0.71 (fd707de30), and why there is a gateway: its API listens on 0.0.0.0 and cannot be told
// otherwise, no path of it says whether a model answers (/state has each part's RunnerReady), a model is placed by a
// call (GET /instance/placement, POST /instance), and each node must have the API at one port. EXO_LIBP2P_NAMESPACE
// parts jobs. exo takes a node out after 30 s of silence and deletes its models; a part that fails is started five
// times. It is given no --bootstrap-peers: each of their connections begins an election, and a new master forgets the
// model. Later versions speak zenoh in place of libp2p and do not know these flags.
//
// It must not ask anybody, but by the gateway, or know a job. The names are those of exo's JSON (exo/shared/types,
// v1.0.71).
package exo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Instance is the id of the one model that sparkrun places.
const Instance = "sparkrun"

// tagged is how exo writes a value of several kinds: {"Kind": {...}}.
type tagged map[string]json.RawMessage

func (t tagged) kind() string {
	for k := range t {
		return k
	}
	return ""
}

// State is what is read of GET /state.
type State struct {
	Instances map[string]tagged   `json:"instances"`
	Runners   map[string]tagged   `json:"runners"`
	Downloads map[string][]tagged `json:"downloads"`
	Topology  struct {
		Nodes       []string                              `json:"nodes"`
		Connections map[string]map[string]json.RawMessage `json:"connections"`
	} `json:"topology"`
	Identities map[string]struct {
		Name string `json:"friendlyName"`
	} `json:"nodeIdentities"`
	Memory  map[string]json.RawMessage `json:"nodeMemory"`
	Network map[string]struct {
		Interfaces []struct {
			Address string `json:"ipAddress"`
		} `json:"interfaces"`
	} `json:"nodeNetwork"`
}

// host is a node's name for people.
func (s State) host(node string) string {
	if n := s.Identities[node].Name; n != "" && n != "Unknown" {
		return n
	}
	return node
}

// Waits says what keeps a cluster of so many nodes from taking a model; empty: nothing. exo
// places on a ring of nodes that have all reached each other's API.
func (s State) Waits(nodes int) string {
	if n := len(s.Topology.Nodes); n < nodes {
		return fmt.Sprintf("%d of %d machines have found each other", n, nodes)
	}
	for _, a := range s.Topology.Nodes {
		if _, known := s.Memory[a]; !known {
			return fmt.Sprintf("%s has not told its memory yet", s.host(a))
		}
		for _, b := range s.Topology.Nodes {
			if _, linked := s.Topology.Connections[a][b]; a != b && !linked {
				return fmt.Sprintf("%s has not reached %s yet", s.host(a), s.host(b))
			}
		}
	}
	return ""
}

// shards are the parts of a placed model.
type shards struct {
	Runners map[string]tagged `json:"runnerToShard"`
	Nodes   map[string]string `json:"nodeToRunner"`
}

// ranks are the nodes by the number of their part.
func (s shards) ranks() ([]string, error) {
	out := make([]string, len(s.Nodes))
	for node, runner := range s.Nodes {
		for _, shard := range s.Runners[runner] {
			var of struct {
				Rank *int `json:"deviceRank"`
			}
			if err := json.Unmarshal(shard, &of); err != nil {
				return nil, err
			}
			if of.Rank == nil || *of.Rank < 0 || *of.Rank >= len(out) || out[*of.Rank] != "" {
				return nil, fmt.Errorf("the part of node %s has no place of its own", node)
			}
			out[*of.Rank] = node
		}
	}
	return out, nil
}

// host is an address at which a part listens, or is found. One that listens has the address
// 0.0.0.0, one that is no neighbour the port 0.
type host struct {
	IP   string `json:"ip"`
	Port int    `json:"port"`
}

// Place makes the request that creates what GET /instance/placement proposed, under our id. Its
// parts meet on the network if each node has an address there; else where exo has chosen, which
// is the first address at which a node answered.
func Place(proposed []byte, s State, network netip.Prefix) ([]byte, error) {
	var instance map[string]map[string]json.RawMessage
	if err := json.Unmarshal(proposed, &instance); err != nil || len(instance) != 1 {
		return nil, fmt.Errorf("read exo's placement: its form is not that of exo 1.0.71: %.200s", proposed)
	}
	for _, of := range instance {
		id, err := json.Marshal(Instance)
		if err != nil {
			return nil, err
		}
		of["instanceId"] = id
		if len(of["hostsByNode"]) == 0 || !network.IsValid() {
			continue
		}
		if of["hostsByNode"], err = meet(of["shardAssignments"], of["hostsByNode"], s, network); err != nil {
			return nil, fmt.Errorf("read exo's placement: %w", err)
		}
	}
	return json.Marshal(map[string]any{"instance": instance})
}

func meet(assigned, hosts json.RawMessage, s State, network netip.Prefix) (json.RawMessage, error) {
	var of shards
	var byNode map[string][]host
	if err := json.Unmarshal(assigned, &of); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(hosts, &byNode); err != nil {
		return nil, err
	}
	nodes, err := of.ranks()
	if err != nil {
		return nil, err
	}
	var addrs []string
	for _, node := range nodes {
		addr := s.on(node, network)
		if addr == "" {
			return hosts, nil
		}
		addrs = append(addrs, addr)
	}
	for _, list := range byNode {
		for i := range list {
			if i < len(addrs) && list[i].IP != "0.0.0.0" && list[i].Port != 0 {
				list[i].IP = addrs[i]
			}
		}
	}
	return json.Marshal(byNode)
}

// on is a node's address on a network; empty: it has none.
func (s State) on(node string, network netip.Prefix) string {
	for _, i := range s.Network[node].Interfaces {
		if a, err := netip.ParseAddr(i.Address); err == nil && network.Contains(a) {
			return a.String()
		}
	}
	return ""
}

// Progress is how far the model is that was placed.
type Progress struct {
	Placed bool // exo has it
	Ready  bool // each part of it answers
	// Failed is what one of the parts says that failed; exo tries it again a few times, and
	// gives the model up then. Empty: none has.
	Failed string
	// Lines tell of each part, by machine.
	Lines []string
}

// Progress looks at the placed model.
func (s State) Progress() (p Progress) {
	placed, found := s.Instances[Instance]
	if !found {
		return Progress{}
	}
	unknown := Progress{Placed: true, Lines: []string{"exo tells of it in a form that is not known"}}
	p.Placed, p.Ready = true, true
	for _, body := range placed {
		var of struct {
			Shards struct {
				shards
				Model string `json:"modelId"`
			} `json:"shardAssignments"`
		}
		if err := json.Unmarshal(body, &of); err != nil {
			return unknown
		}
		for node, runner := range of.Shards.Nodes {
			status := s.Runners[runner]
			kind := status.kind()
			if kind != "RunnerReady" && kind != "RunnerRunning" {
				p.Ready = false
			}
			line := s.host(node) + ": " + s.does(node, of.Shards.Model, kind, status[kind])
			if p.Lines = append(p.Lines, line); kind == "RunnerFailed" && (p.Failed == "" || line < p.Failed) {
				p.Failed = line
			}
		}
	}
	if len(p.Lines) == 0 { // no part of it was found
		return unknown
	}
	slices.Sort(p.Lines)
	return p
}

// does says what a part is at.
func (s State) does(node, model, kind string, body json.RawMessage) string {
	var of struct {
		Loaded int    `json:"layersLoaded"`
		Total  int    `json:"totalLayers"`
		Error  string `json:"errorMessage"`
	}
	if len(body) > 0 && json.Unmarshal(body, &of) != nil {
		return kind
	}
	switch kind {
	case "", "RunnerIdle":
		return s.fetches(node, model)
	case "RunnerLoading":
		if of.Total > 0 {
			return fmt.Sprintf("loads layer %d of %d", of.Loaded, of.Total)
		}
		return "loads the model"
	case "RunnerFailed":
		return "failed: " + of.Error
	}
	return cmp.Or(map[string]string{
		"RunnerConnecting": "meets the other machines", "RunnerConnected": "has met the other machines",
		"RunnerLoaded":    "has loaded its part",
		"RunnerWarmingUp": "warms up", "RunnerReady": "is ready", "RunnerRunning": "is at work",
		"RunnerShuttingDown": "ends", "RunnerShutdown": "has ended",
	}[kind], kind)
}

// fetches tells of the model's weights on a node.
func (s State) fetches(node, model string) string {
	for _, d := range s.Downloads[node] {
		body := d[d.kind()]
		var of struct {
			Shard map[string]struct {
				Card struct {
					Model string `json:"modelId"`
				} `json:"modelCard"`
			} `json:"shardMetadata"`
			Error    string `json:"errorMessage"`
			Progress struct {
				Total, Downloaded struct {
					Bytes int64 `json:"inBytes"`
				}
			} `json:"downloadProgress"`
		}
		if json.Unmarshal(body, &of) != nil || !slices.ContainsFunc(slices.Collect(maps.Keys(of.Shard)),
			func(k string) bool { return of.Shard[k].Card.Model == model }) {
			continue
		}
		switch d.kind() {
		case "DownloadOngoing":
			const mib = 1 << 20
			return fmt.Sprintf("fetches weights, %d of %d MiB", of.Progress.Downloaded.Bytes/mib, of.Progress.Total.Bytes/mib)
		case "DownloadFailed":
			return "cannot fetch the weights: " + of.Error
		}
	}
	return "begins"
}

// Reason is why exo refuses, of the body of an answer that is no success.
func Reason(body []byte) string {
	var of struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &of) == nil {
		if of.Error.Message != "" {
			return of.Error.Message
		}
		if len(of.Detail) > 0 {
			return strings.Trim(string(of.Detail), `"`)
		}
	}
	return strings.TrimSpace(string(body[:min(len(body), 200)]))
}
