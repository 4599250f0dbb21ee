package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

const (
	gib = 1 << 30
	mib = 1 << 20
)

// machines runs every rule on each node with facts, and on all of them together. The order of the nodes changes
// only the order of the findings.
func machines(nodes []Node, shape envgen.Shape) []envgen.Finding {
	ch := &checker{shape: shape}
	for i := range nodes {
		ch.node = &nodes[i]
		if !ch.node.Witness {
			ch.limits()
			ch.docker()
			ch.conf()
			ch.versions()
			ch.leftovers()
			ch.models()
			ch.gpus()
		}
		ch.files()
		ch.resources()
		ch.power()
		ch.clock()
	}
	ch.compare(nodes)
	return ch.found
}

// checker collects what the rules find.
type checker struct {
	shape envgen.Shape // only a ring has needs of its own
	node  *Node
	found []envgen.Finding
}

// add records a finding about the current node.
func (ch *checker) add(code string, s envgen.Severity, text, evidence, remedy string) {
	ch.about(*ch.node, code, s, text, evidence, remedy)
}

func (ch *checker) about(n Node, code string, s envgen.Severity, text, evidence, remedy string) {
	ch.found = append(ch.found,
		envgen.Finding{Code: code, Severity: s, Node: n.ID, Host: n.Host, Text: text, Evidence: evidence, Remedy: remedy})
}

// gpu reports whether the node has an NVIDIA driver: without one no finding about a GPU makes
// sense.
func (ch *checker) gpu() bool { return ch.node.Facts.Driver != "" && !ch.node.Witness }

const (
	// leastMemlock, in bytes, is far more than NCCL's buffers of one rank with two devices
	// need.
	leastMemlock = gib
	leastFiles   = 4096
)

func (ch *checker) limits() {
	f := ch.node.Facts
	if l := f.Limits.Memlock; l != nil && !l.Unlimited && f.RDMA > 0 {
		severity, who := envgen.SeverityWarning, "ranks"
		switch {
		case f.User == "root":
			who = "ranks of other users than root"
		case l.Value < leastMemlock:
			severity = envgen.SeverityError
		}
		evidence := fmt.Sprintf("the agent's limit is %s; LimitMEMLOCK of its unit is %s", size(l.Value),
			or(f.Limits.Unit, "not set"))
		if len(f.Limits.PAM) > 0 {
			evidence += "; " + f.Limits.PAM[0] + " does not hold for services"
		}
		ch.add(codeMemlock, severity,
			fmt.Sprintf("%s on %s may lock %s of memory: RDMA has to lock all it sends from", who, ch.node.Host,
				size(l.Value)), evidence,
			`sudo mkdir -p /etc/systemd/system/sparkrun.service.d && printf '[Service]\nLimitMEMLOCK=infinity\n' | sudo tee /etc/systemd/system/sparkrun.service.d/memlock.conf && sudo systemctl daemon-reload && sudo systemctl restart sparkrun`)
	}
	if l := f.Limits.Files; l != nil && !l.Unlimited && l.Value < leastFiles {
		ch.add(codeOpenFiles, envgen.SeverityWarning, fmt.Sprintf("ranks on %s may open %d files", ch.node.Host, l.Value),
			fmt.Sprintf("the agent's limit is %d", l.Value),
			`sudo mkdir -p /etc/systemd/system/sparkrun.service.d && printf '[Service]\nLimitNOFILE=1048576\n' | sudo tee /etc/systemd/system/sparkrun.service.d/files.conf && sudo systemctl daemon-reload && sudo systemctl restart sparkrun`)
	}
}

func (ch *checker) docker() {
	d := ch.node.Facts.Docker
	switch {
	case d.Installed == "":
		ch.add(codeDockerMissing, envgen.SeverityInfo,
			ch.node.Host+" has no Docker: jobs in containers cannot run there",
			"no docker in /usr/bin or /usr/local/bin", "sudo apt-get install docker.io")
	case d.Version == "":
		ch.add(codeDockerDown, envgen.SeverityWarning,
			"Docker's engine on "+ch.node.Host+" does not answer: jobs in containers cannot run there",
			or(d.Trouble, "docker info tells no version"), "sudo systemctl start docker")
	case ch.gpu() && !slices.Contains(d.Runtimes, "nvidia") && !slices.Contains(d.CDI, "nvidia.com/gpu"):
		ch.add(codeDockerGPU, envgen.SeverityWarning,
			"containers on "+ch.node.Host+" get no GPU: Docker has neither the nvidia runtime nor a CDI device",
			fmt.Sprintf("Docker %s has runtimes %s; CDI kinds: %s", d.Version,
				or(strings.Join(d.Runtimes, ", "), "none"), or(strings.Join(d.CDI, ", "), "none")),
			"sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker")
	}
}

// bogus are names that guides give and that NCCL does not know.
var bogus = map[string]string{"NCCL_TIMEOUT": "a time limit is PyTorch's",
	"NCCL_NCHANNELS": "NCCL has MIN_NCHANNELS and MAX_NCHANNELS"}

// steering are settings that change which way a job's data takes.
var steering = append(envgen.NCCLVariables(),
	"NCCL_IB_TC", "NCCL_IB_SL", "NCCL_PROTO", "NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_HOSTID")

// conf evaluates the files that NCCL reads. A job's environment overrides them (NCCL reads only what is not set),
// so they affect what sparkrun leaves to NCCL, and programs started by hand.
func (ch *checker) conf() {
	for _, c := range ch.node.Facts.NCCLConf {
		var hurts, words, nothing []string
		for _, s := range c.Settings {
			if why, is := bogus[s.Name]; is {
				nothing = append(nothing, fmt.Sprintf("%s (%s)", s.Name, why))
				continue
			}
			words = append(words, fmt.Sprintf("%d: %s=%s", s.Line, s.Name, s.Value))
			if slices.Contains(steering, s.Name) {
				hurts = append(hurts, s.Name)
			}
		}
		if len(nothing) > 0 {
			ch.add(codeNCCLConfBogus, envgen.SeverityWarning,
				fmt.Sprintf("%s of %s sets %s, which NCCL does not have", c.Path, ch.node.Host, strings.Join(nothing, ", ")),
				"read in "+c.Path, "sudoedit "+c.Path)
		}
		switch {
		case len(hurts) > 0:
			ch.add(codeNCCLConf, envgen.SeverityWarning,
				fmt.Sprintf("%s of %s sets %s for every job there, beside what sparkrun works out", c.Path,
					ch.node.Host, strings.Join(hurts, ", ")),
				strings.Join(words, "; "), fmt.Sprintf("sudo mv %[1]s %[1]s.off", c.Path))
		case len(words) > 0:
			ch.add(codeNCCLConf, envgen.SeverityInfo,
				fmt.Sprintf("%s of %s is read by NCCL in every job there", c.Path, ch.node.Host),
				strings.Join(words, "; "), "cat "+c.Path)
		}
	}
}

// Versions of NCCL that matter: the first that chooses GIDs itself, and the first that knows
// rings.
const (
	ncclChoosesGID = "2.21"
	ncclKnowsRings = "2.30.7"
)

func (ch *checker) versions() {
	least, why := ncclChoosesGID, "it takes GID 0, which is RoCE v1, unless NCCL_IB_GID_INDEX is set"
	if ch.shape == envgen.ShapeRing {
		least, why = ncclKnowsRings, "in a ring without a switch it does not know which device leads where"
	}
	var old []Package
	newest := ""
	for _, p := range ch.node.Facts.Packages {
		if p.Name != "nccl" {
			continue
		}
		if newest == "" || compareVersions(p.Version, newest) > 0 {
			newest = p.Version
		}
		if compareVersions(p.Version, least) < 0 {
			old = append(old, p)
		}
	}
	if len(old) > 0 && compareVersions(newest, least) < 0 { // a machine with a newer one as well may use that
		ch.add(codeNCCLOld, envgen.SeverityWarning, fmt.Sprintf("NCCL on %s is older than %s: %s", ch.node.Host, least, why),
			fmt.Sprintf("%s in %s", old[0].Version, old[0].Where), "pip install --upgrade nvidia-nccl-cu13")
	}
}

// files looks for files that should not be where they are.
func (ch *checker) files() {
	f := ch.node.Facts
	for i, p := range f.Programs {
		if p.Ours {
			continue
		}
		what := "another program"
		if p.Python {
			what = "the Python tool of that name, which has nothing to do with this one,"
		}
		first := !slices.ContainsFunc(f.Programs[:i], func(o Program) bool { return o.Ours })
		if first {
			ch.add(codeOtherProgram, envgen.SeverityWarning,
				fmt.Sprintf("%s comes first where %s types sparkrun on %s", what, or(f.User, "a user"), ch.node.Host),
				p.Path, "sudo ln -sf "+ours(f.Programs)+" /usr/local/bin/sparkrun && hash -r && type -a sparkrun")
		} else {
			ch.add(codeOtherProgram, envgen.SeverityInfo,
				fmt.Sprintf("%s is on %s as well, behind this one in PATH", what, ch.node.Host), p.Path, "type -a sparkrun")
		}
	}
	for _, m := range f.Netplan {
		severity := envgen.SeverityWarning
		if m.Blocks {
			severity = envgen.SeverityError
		}
		ch.add(codeNetplanTwice, severity,
			fmt.Sprintf("%s of %s is named by more than one netplan file: %s", m.NIC, ch.node.Host, m.Effect),
			fmt.Sprintf("%s:%d", m.Path, m.Line), m.Remedy)
		ch.found[len(ch.found)-1].Device = m.NIC
	}
	if w := f.Firewall; w != nil && len(w.Drops) > 0 && len(w.Accepts) == 0 {
		ch.add(codeFirewall, envgen.SeverityInfo,
			"the packet filter of "+ch.node.Host+" may keep other nodes away: no rule names the agent's ports",
			strings.Join(w.Drops, "; "), "sudo ufw allow 7940:7941/tcp && sudo ufw allow 7941/udp")
	}
	if len(f.Trouble) > 0 {
		ch.add(codeFactsMissing, envgen.SeverityInfo, "not everything could be read on "+ch.node.Host,
			strings.Join(f.Trouble, "; "), "sudo sparkrun doctor --json")
	}
}

// leftovers looks for settings that harm jobs.
func (ch *checker) leftovers() {
	f := ch.node.Facts
	if f.RemoveIPC != nil && *f.RemoveIPC && f.User != "" && f.User != "root" && f.Lingers != nil && !*f.Lingers {
		ch.add(codeRemoveIPC, envgen.SeverityWarning,
			fmt.Sprintf("when %s logs out of %s, logind removes his shared memory, and that of his running jobs "+
				"with it", f.User, ch.node.Host),
			"RemoveIPC is on and "+f.User+" does not linger", "sudo loginctl enable-linger "+f.User)
	}
	if len(f.PeerMem) > 0 {
		ch.add(codePeerMem, envgen.SeverityInfo,
			"nvidia-peermem is to be loaded when "+ch.node.Host+" boots: on GB10 that fails, and no job needs it",
			strings.Join(f.PeerMem, ", "), "sudo sed -i '/nvidia.peermem/d' "+strings.SplitN(f.PeerMem[0], ":", 2)[0])
	}
}

func ours(programs []Program) string {
	for _, p := range programs {
		if p.Ours {
			return p.Path
		}
	}
	return "$(readlink -f /proc/$(pgrep -o -x sparkrun)/exe)"
}

const (
	// A full state folder stops the agent, since raft writes there.
	diskError   = 100 * mib
	diskWarning = gib
	dropCache   = "sync && echo 3 | sudo tee /proc/sys/vm/drop_caches"
)

func (ch *checker) resources() {
	f := ch.node.Facts
	for _, d := range f.Disks {
		evidence := fmt.Sprintf("%s of %s free", size(d.Free), size(d.Total))
		text := fmt.Sprintf("the disk of %s (%s) on %s is nearly full", d.Path, d.What, ch.node.Host)
		switch {
		case d.Free < diskError:
			ch.add(codeDiskFull, envgen.SeverityError, text, evidence, "sudo du -xh --max-depth=2 "+d.Path+" | sort -h | tail")
		case d.Free < diskWarning:
			ch.add(codeDiskFull, envgen.SeverityWarning, text, evidence, "sudo du -xh --max-depth=2 "+d.Path+" | sort -h | tail")
		}
	}
	m := f.Memory
	if m == nil || !ch.gpu() {
		return
	}
	evidence := fmt.Sprintf("%s of %s available, %s in the page cache", size(m.Available), size(m.Total), size(m.Cached))
	switch {
	case m.Cached > m.Total/4 && m.Free < m.Total/2:
		ch.add(codePageCache, envgen.SeverityWarning,
			fmt.Sprintf("the page cache of %s holds %s, which the GPU cannot have", ch.node.Host, size(m.Cached)),
			evidence, dropCache)
	case m.Available < m.Total/8:
		ch.add(codeMemoryLow, envgen.SeverityWarning,
			fmt.Sprintf("%s has %s of memory left: a model that does not fit can freeze it", ch.node.Host,
				size(m.Available)), evidence, "ps -eo rss,user,args --sort=-rss | head")
	}
	if m.SwapUsed > m.Total/20 {
		ch.add(codeSwapUsed, envgen.SeverityWarning,
			fmt.Sprintf("%s has swapped out %s", ch.node.Host, size(m.SwapUsed)),
			fmt.Sprintf("%s of %s swap in use", size(m.SwapUsed), size(m.Swap)), "sudo swapoff -a")
	}
	ch.pages(*m)
}

func (ch *checker) clock() {
	c := ch.node.Facts.Clock
	if c.Synchronised != nil && !*c.Synchronised {
		ch.add(codeClockUnsynched, envgen.SeverityWarning, "nothing keeps the clock of "+ch.node.Host,
			"the kernel says that its clock is not synchronised", "sudo timedatectl set-ntp true")
	}
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// size writes a number of bytes for people.
func size(n uint64) string {
	switch {
	case n >= 10*gib:
		return fmt.Sprintf("%d GiB", n/gib)
	case n >= gib:
		return fmt.Sprintf("%.1f GiB", float64(n)/gib)
	case n >= mib:
		return fmt.Sprintf("%d MiB", n/mib)
	}
	return fmt.Sprintf("%d KiB", n/1024)
}
