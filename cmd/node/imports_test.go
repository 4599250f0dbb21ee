package node

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/sparkrun/sparkrun"

// Between trees imports point down. A tree that is not listed may be imported
// by cmd only.
var mayImportTree = map[string][]string{
	"launcher":   nil,
	"envgen":     nil,
	"rendezvous": {"launcher", "envgen"},
	"workloads":  {"launcher", "envgen"},
	"cmd":        {"launcher", "envgen", "rendezvous", "workloads", "scripts"}, // of scripts the unit's text
	"scripts":    {"launcher"},                                                 // scripts/hfjudge has a model pulled without a node
}

// Leaves are for all trees, and import nothing of ours.
var leaves = map[string]string{
	"launcher/durable": "a file is replaced in one way, whoever writes it",
	"launcher/plain":   "text from elsewhere is made safe for a terminal in one way, whoever shows it",
	"launcher/proc":    "the kernel's process table is read in one way, whoever asks",
	"workloads/chart":  "figures are drawn in one way, whoever has some",
}

// Within a tree a child imports its parent, never the reverse, and siblings do
// not import each other, but for these.
var mayImportSibling = map[string]string{
	"launcher/agent -> launcher/scope":         "the agent has systemd keep the shims it starts",
	"launcher/agent -> launcher/shim":          "the agent drives the shims it starts",
	"launcher/agent -> launcher/container":     "what containers need is found out before the shim has ranks run there",
	"launcher/agent -> launcher/modeldir":      "what a machine has of a model is read in one way, for the agent and for the command line",
	"launcher/agent -> launcher/logs":          "the agent answers for its ranks' output, and has old output removed",
	"launcher/agent -> launcher/diagnose":      "the agent has an exit explained before it tells of it",
	"launcher/agent -> launcher/login":         "whom ranks run as is looked up in one way, and what is theirs looked at with their rights",
	"launcher/container -> launcher/login":     "mounts are looked at, and made, with the rights of whom the ranks run as",
	"launcher/agent -> launcher/preflight":     "the agent has it checked whether ranks could run here before it prepares them",
	"launcher/preflight -> launcher/login":     "what a job names is looked for with the rights of whom its ranks run as",
	"launcher/preflight -> launcher/container": "what lies on a mount of a container is looked for on the host, the rest in its image",
	"launcher/preflight -> launcher/mpi":       "which MPI a program is linked to is read from its file",
	"launcher/preflight -> launcher/shim":      "which limits the shim can set, and what it leaves of a disk, is the shim's to say",
	"launcher/diagnose -> launcher/logs":       "the end of a rank's output says most of why it ended",
	"launcher/diagnose -> launcher/shim":       "long output lies in parts, which the shim names",
	"launcher/agent -> launcher/readiness":     "the agent has probes asked and services watched, and tells what is seen",
	"launcher/readiness -> launcher/logs":      "a probe may wait for a line of a rank's output",
	"launcher/readiness -> launcher/shim":      "long output lies in parts, which the shim names",
	"launcher/logs -> launcher/shim":           "what the shim writes, logs reads: the names of its parts, its stamps, its gaps",
	"launcher/agent -> launcher/mpi":           "the agent carries MPI's barriers between nodes",
	"launcher/shim -> launcher/container":      "a container stands in place of a rank that the shim forks",
	"launcher/shim -> launcher/mpi":            "the shim holds MPI ranks' sockets and their space, which have to outlive the agent",
	"envgen/doctor -> envgen/arp":              "who else has an address is asked as the virtual IP asks",
	"envgen/doctor -> envgen/topology":         "what is wrong with cables is told, and mended, with all the rest",
	"workloads/engine -> workloads/exo":        "the row of exo starts its gateway",
	"workloads/recipe -> workloads/engine":     "a recipe's command is read by the flags of the engine that it starts",
	"rendezvous/dial -> rendezvous/gossip":     "where a member is now is what it gossips",
	"rendezvous/dial -> rendezvous/trust":      "who is at the other end is proven by the gate",
	"rendezvous/dial -> rendezvous/wire":       "what a member is dialled for is its calls",
	"cmd/node/jobs -> cmd/node/survey":         "a dry run tells of this node's memory as its survey knows it",
	"cmd/node/checkup -> cmd/node/survey":      "this node's part of a checkup is what its survey knows",
	"cmd/node/why -> cmd/node/checkup":         "what inventories show is evaluated as doctor evaluates it",
	"cmd/node/why -> cmd/node/survey":          "a running job's links are judged as its launch would be",
	"cmd/node/web -> cmd/node/checkup":         "a machine's state is evaluated as doctor evaluates it",
	"cmd/node/metrics -> cmd/node/gateway":     "requests, and what is told of them, are the gateway's",

	"cmd/sparkrun -> cmd/node":                    "the program is the command line of a node",
	"cmd/sparkrun/app -> cmd/node":                "the program is the command line of a node",
	"cmd/sparkrun/app -> cmd/sparkrun/help":       "a flag's group and whether it is common are said where it is bound",
	"cmd/sparkrun/apptest -> cmd/node":            "the program is the command line of a node",
	"cmd/sparkrun/apptest -> cmd/sparkrun/app":    "what all commands share",
	"cmd/sparkrun/bench -> cmd/sparkrun/app":      "what all commands share",
	"cmd/sparkrun/cluster -> cmd/node":            "the program is the command line of a node",
	"cmd/sparkrun/cluster -> cmd/sparkrun/app":    "what all commands share",
	"cmd/sparkrun/follow -> cmd/node":             "the program is the command line of a node",
	"cmd/sparkrun/follow -> cmd/sparkrun/app":     "what all commands share",
	"cmd/sparkrun/gateway -> cmd/node/gateway":    "keys begin as the gateway knows them",
	"cmd/sparkrun/gateway -> cmd/sparkrun/app":    "what all commands share",
	"cmd/sparkrun/image -> cmd/sparkrun/app":      "what all commands share",
	"cmd/sparkrun/image -> cmd/sparkrun/pull":     "what machines fetch is shown in one way",
	"cmd/sparkrun/job -> cmd/node":                "the program is the command line of a node",
	"cmd/sparkrun/job -> cmd/sparkrun/app":        "what all commands share",
	"cmd/sparkrun/job -> cmd/sparkrun/follow":     "a job is followed again, and its output shown, by the same rules",
	"cmd/sparkrun/job -> cmd/sparkrun/image":      "an update's image is brought to its machines as a launch's is",
	"cmd/sparkrun/job -> cmd/sparkrun/launch":     "a program is a workload",
	"cmd/sparkrun/launch -> cmd/sparkrun/app":     "what all commands share",
	"cmd/sparkrun/launch -> cmd/sparkrun/follow":  "what is sent is followed",
	"cmd/sparkrun/launch -> cmd/sparkrun/help":    "a flag's group and whether it is common are said where it is bound",
	"cmd/sparkrun/launch -> cmd/sparkrun/image":   "a job's image is brought to its machines before it is given",
	"cmd/sparkrun/model -> cmd/sparkrun/app":      "what all commands share",
	"cmd/sparkrun/model -> cmd/sparkrun/follow":   "an engine is asked by a job whose output is read",
	"cmd/sparkrun/model -> cmd/sparkrun/help":     "a flag's group and whether it is common are said where it is bound",
	"cmd/sparkrun/model -> cmd/sparkrun/launch":   "an engine is a workload",
	"cmd/sparkrun/model -> cmd/sparkrun/pull":     "what machines fetch is shown in one way",
	"cmd/sparkrun/notify -> cmd/sparkrun/app":     "what all commands share",
	"cmd/sparkrun/pull -> cmd/sparkrun/app":       "what all commands share",
	"cmd/sparkrun/network -> cmd/node":            "the program is the command line of a node",
	"cmd/sparkrun/network -> cmd/node/survey":     "a job's places and variables are previewed as a leader and a node work them out",
	"cmd/sparkrun/network -> cmd/sparkrun/app":    "what all commands share",
	"cmd/sparkrun/network -> cmd/sparkrun/follow": "a test's events are read as they are written",
	"cmd/sparkrun/network -> cmd/sparkrun/launch": "a test of the links is a workload",

	"cmd/sparkrun/job -> cmd/sparkrun/figures":      "what machines and ranks use is put into words in one way",
	"cmd/sparkrun/overview -> cmd/node/checkup":     "a status is evaluated as doctor evaluates it",
	"cmd/sparkrun/overview -> cmd/sparkrun/app":     "what all commands share",
	"cmd/sparkrun/overview -> cmd/sparkrun/figures": "what machines and ranks use is put into words in one way",
	"cmd/sparkrun/overview -> cmd/sparkrun/follow":  "what is watched is drawn in one way",
	"cmd/sparkrun/overview -> cmd/sparkrun/job":     "a job's state is told as ps tells it",

	"rendezvous/audit -> rendezvous/lead":          "what the end of a leadership breaks off has no outcome",
	"rendezvous/audit -> rendezvous/wire":          "a line says whose call it was, and how it ended",
	"rendezvous/clone -> rendezvous/dial":          "it is looked for where this node and members were last",
	"rendezvous/clone -> rendezvous/gossip":        "who claims to be this node is heard by gossip",
	"rendezvous/clone -> rendezvous/trust":         "a clone has this node's key, and proves it",
	"rendezvous/clone -> rendezvous/wire":          "members are asked where they see this node",
	"rendezvous/control -> rendezvous/dial":        "a leader dials every member",
	"rendezvous/control -> rendezvous/gossip":      "whom gossip hears is dialled at once",
	"rendezvous/control -> rendezvous/lead":        "what comes up by a stream goes to the leader's brain",
	"rendezvous/control -> rendezvous/failover":    "a leader of a later epoch has this side give way",
	"rendezvous/control -> rendezvous/wire":        "a control stream is a call",
	"rendezvous/failover -> rendezvous/consensus":  "who leads and votes is raft's word",
	"rendezvous/failover -> rendezvous/dial":       "other members are asked before an epoch begins",
	"rendezvous/failover -> rendezvous/gossip":     "who gossips is not dead",
	"rendezvous/failover -> rendezvous/lead":       "the leader's brain writes by the recorder, and knows its errors",
	"rendezvous/failover -> rendezvous/trust":      "who restores has to have the CA's key",
	"rendezvous/failover -> rendezvous/wire":       "a take-over, a restore and what others object are calls",
	"rendezvous/membership -> rendezvous/audit":    "who is let in, or refused, is written down",
	"rendezvous/membership -> rendezvous/dial":     "members are told over the connections that there are, and a listener asks the list",
	"rendezvous/membership -> rendezvous/failover": "what changes who belongs to the cluster is recorded, and who leaves hands on its part in the vote",
	"rendezvous/membership -> rendezvous/gossip":   "gossip has a key before it is acknowledged",
	"rendezvous/membership -> rendezvous/lead":     "a member on which jobs run is not taken out",
	"rendezvous/membership -> rendezvous/trust":    "certificates, tokens and keys are trust's; whose they may be is decided here",
	"rendezvous/membership -> rendezvous/wire":     "members and newcomers ask by calls",
	"rendezvous/remote -> rendezvous/dial":         "members' calls are one protocol",
	"rendezvous/remote -> rendezvous/membership":   "a login, and a certificate that has ended, are asked for as a newcomer's",
	"rendezvous/remote -> rendezvous/trust":        "a client has a certificate, and knows its members",
	"rendezvous/remote -> rendezvous/wire":         "its calls are those of the local socket",
}

// A composition root may import its children: it opens and joins them.
var compositionRoots = []string{"cmd/node", "cmd/sparkrun"}

func TestImportsPointDown(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports", module+"/...").Output()
	if err != nil {
		t.Fatal(err)
	}
	packages, unused := 0, maps.Clone(mayImportSibling)
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; packages++ {
		var p struct {
			ImportPath                         string
			Imports, TestImports, XTestImports []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		for _, imported := range p.Imports {
			if to, ours := strings.CutPrefix(imported, module+"/"); ours {
				delete(unused, from+" -> "+to)
				if why := refuse(from, to); why != "" {
					t.Errorf("%s imports %s: %s", from, to, why)
				}
			} else if from == "launcher" && strings.Contains(imported, ".") {
				t.Errorf("launcher imports %s: it holds words, and needs the standard library only", imported)
			}
		}
	}
	for edge := range unused {
		t.Errorf("%s: nothing imports that: take it off the list", edge)
	}
	if packages < 10 {
		t.Fatalf("go list told of %d packages only", packages)
	}
}

// refuse says why one package may not import another; empty where it may.
func refuse(from, to string) string {
	if leaves[to] != "" {
		return ""
	}
	if leaves[from] != "" {
		return "a leaf imports nothing of ours"
	}
	fromTree, _, _ := strings.Cut(from, "/")
	toTree, _, _ := strings.Cut(to, "/")
	if fromTree != toTree {
		for _, tree := range mayImportTree[fromTree] {
			if tree == toTree {
				return ""
			}
		}
		return "between these trees nothing may be imported that way"
	}
	switch {
	case strings.HasPrefix(from, to+"/"):
		return "" // a child takes its parent's words
	case strings.HasPrefix(to, from+"/") && slices.Contains(compositionRoots, from):
		return ""
	case strings.HasPrefix(to, from+"/"):
		return "a parent must not know its children"
	case mayImportSibling[from+" -> "+to] != "":
		return ""
	}
	return "siblings do not know each other: take what is needed as a func or a small interface, wired in cmd/node"
}

func TestImportRuleRefuses(t *testing.T) {
	for _, c := range [][2]string{
		{"launcher", "envgen"}, {"envgen/fabric", "rendezvous"}, {"rendezvous", "rendezvous/lead"},
		{"rendezvous/lead", "rendezvous/wire"}, {"launcher/shim", "launcher/agent"}, {"workloads", "rendezvous"}, {"rendezvous/wire", "cmd/node"},
		{"envgen", "launcher/shim"}, {"launcher/durable", "launcher"},
	} {
		if refuse(c[0], c[1]) == "" {
			t.Errorf("%s -> %s is let through", c[0], c[1])
		}
	}
}
