package why

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// flow is what a job's ranks on one machine have moved by TCP to and from those on others, over one interface.
type flow struct {
	host, nic string
	kind      string // fabric, management; empty: neither
	bps       float64
}

func (f flow) String() string {
	text := f.nic
	if f.kind != "" {
		text += " (" + f.kind + ")"
	}
	return fmt.Sprintf("%s of %s", text, f.host)
}

const (
	some = 1e6  // bytes a second: less than that tells nothing of where data go
	much = 50e6 // what a job exchanges, rather than what it says
)

// flows are those of the job, by its ranks' own connections.
func (e Evidence) flows() (out []flow) {
	if e.Job == nil || len(e.Job.Plan.Nodes) < 2 {
		return nil
	}
	for c, r := range between(e.ranks()) {
		i := slices.IndexFunc(e.Looks, func(l wire.NodeLook) bool { return l.Host == r.Host })
		if l := e.Looks[i]; l.Over > 0 && e.hostOf(c.Remote.Addr()) != r.Host {
			f := e.flowOf(r.Host, c.Local.Addr())
			k := slices.IndexFunc(out, func(o flow) bool { return o.host == f.host && o.nic == f.nic })
			if k < 0 {
				k, out = len(out), append(out, f)
			}
			out[k].bps += float64(c.Moved) / l.Over.Seconds()
		}
	}
	slices.SortFunc(out, func(a, b flow) int { return cmp.Or(cmp.Compare(a.host, b.host), cmp.Compare(b.bps, a.bps)) })
	return slices.DeleteFunc(out, func(f flow) bool { return f.bps < some })
}

// flowOf finds the interface that has an address of a machine, and what it is to the job.
func (e Evidence) flowOf(host string, at netip.Addr) flow {
	f := flow{host: host, nic: at.String()}
	for _, n := range e.Nodes {
		if n.Host != host {
			continue
		}
		if nic, ok := n.Inventory.Holder(at); ok {
			f.nic = nic.Name
		}
		if n.Addr == at {
			f.kind = string(envgen.NetworkManagement)
		}
	}
	for _, p := range e.Job.Plan.Nodes {
		if p.Host == host && slices.ContainsFunc(p.Entry.Paths, func(w envgen.Path) bool { return w.Addr == at || w.NIC == f.nic }) {
			f.kind = string(envgen.NetworkFabric)
		}
	}
	return f
}

// rdma is what goes over a machine's ports by RDMA, in and out together, by whomever.
func rdma(l wire.NodeLook) (bps float64, tells bool) {
	for _, p := range l.Machine.Ports {
		for _, v := range []*float64{p.RDMAIn, p.RDMAOut} {
			if v != nil {
				bps, tells = bps+*v, true
			}
		}
	}
	return bps, tells
}

// byNIC is a job that moves its bytes where it need not: over another network than the fabric that joins its machines;
// or, with GPUs, by TCP where there is RDMA. What goes by RDMA is that of all jobs: it may be this one's if it has GPUs.
func (e Evidence) byNIC() (out []wire.WhyFinding) {
	all := e.flows()
	if len(all) == 0 {
		return nil
	}
	var aside []flow
	for _, l := range e.Looks {
		byRDMA, _ := rdma(l)
		gpus, _ := e.holdGPU(l)
		if !gpus {
			byRDMA = 0
		}
		var fabric, other float64
		var first, off flow
		for _, f := range all {
			switch {
			case f.host != l.Host:
			case f.kind == string(envgen.NetworkFabric):
				fabric, first = fabric+f.bps, cmp.Or(first, f)
			default:
				other, off = other+f.bps, cmp.Or(off, f)
			}
		}
		if e.Job.Plan.Network == string(envgen.NetworkFabric) && other > fabric+byRDMA {
			aside = append(aside, off)
		}
		if gpus && fabric > much && byRDMA < fabric/10 && e.paths(l.Host) {
			out = append(out, wire.WhyFinding{Code: "no-rdma", Sure: 65, Host: l.Host, Port: first.nic,
				Remedy:   "sparkrun help nccl",
				Text:     fmt.Sprintf("its bytes go by TCP on %s, though there is RDMA%s", l.Host, e.told(l.Host, "NCCL_IB_DISABLE=1", "NCCL_NET=Socket")),
				Evidence: []string{fmt.Sprintf("%s: its ranks' connections %.0f MB/s, RDMA %.0f MB/s", first.nic, fabric/1e6, byRDMA/1e6)}})
		}
	}
	if len(aside) == 0 {
		return out
	}
	f := wire.WhyFinding{Code: "not-by-fabric", Sure: 50, Host: aside[0].host, Port: aside[0].nic, Remedy: "sparkrun help nccl"}
	var on []string
	for i, a := range aside {
		on = append(on, a.String())
		if i > 0 && a.nic == aside[0].nic {
			on[i] = a.host
		}
		f.Evidence = append(f.Evidence, fmt.Sprintf("%s: its ranks' connections %.0f MB/s", a, a.bps/1e6))
	}
	f.Text = fmt.Sprintf("its ranks talk over %s, though the fabric joins them%s", strings.Join(on, ", "),
		e.told(aside[0].host, aside[0].nic))
	f.Evidence = f.Evidence[:min(len(f.Evidence), 4)]
	return append(out, f)
}

func (e Evidence) paths(host string) bool {
	return slices.ContainsFunc(e.Job.Plan.Nodes, func(p rendezvous.Place) bool {
		return p.Host == host && len(p.Entry.Paths) > 0
	})
}

// told are the variables of the ranks on a machine that are as one of some texts, or choose an interface: after the name
// of one comes a list, in which NCCL takes what a name begins with.
func (e Evidence) told(host string, by ...string) string {
	var all []string
	for _, r := range e.ranks() {
		for _, v := range r.Network {
			_, value, _ := strings.Cut(v, "=")
			names := func(nic string) bool {
				return slices.ContainsFunc(strings.Split(strings.TrimPrefix(value, "="), ","), func(word string) bool {
					return word != "" && strings.HasPrefix(nic, word)
				})
			}
			if r.Host == host && !slices.Contains(all, v) && slices.ContainsFunc(by, func(is string) bool {
				return is == v || !strings.Contains(is, "=") && names(is)
			}) {
				all = append(all, v)
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return ": " + strings.Join(all, ", ") + " in its environment"
}

// moves says what a job's ranks on a machine move, and how.
func (e Evidence) moves(l wire.NodeLook, flows []flow) (out []string) {
	byRDMA, tells := rdma(l)
	gpus, _ := e.holdGPU(l)
	for _, f := range flows {
		if f.host != l.Host {
			continue
		}
		text := fmt.Sprintf("its ranks' connections over %s: %.0f MB/s by TCP", f, f.bps/1e6)
		if gpus && tells && f.kind == string(envgen.NetworkFabric) && byRDMA < f.bps/10 {
			text += ", though there is RDMA (sparkrun help nccl)"
		}
		out = append(out, text)
	}
	if e.Job != nil && len(e.Job.Plan.Nodes) > 1 && byRDMA >= some {
		out = append(out, fmt.Sprintf("all that goes by RDMA on %s: %.0f MB/s", l.Host, byRDMA/1e6))
	}
	return out
}
