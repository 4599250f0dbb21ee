package why

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// namedWithin bounds the question who is at the other ends: it is answered at once.
const namedWithin = time.Second

// ends tells who has some ends of connections on this node.
func (w *Why) ends(asked []wire.Ends, now map[uint64]*netlink.InetDiagTCPInfoResp) []wire.End {
	out, by := make([]wire.End, len(asked)), map[uint64][]int{}
	read := map[uint64]bool{}
	for i, a := range asked {
		var exact, listener uint64
		for inode, c := range now {
			s := c.InetDiagMsg
			at := addrPort(s.ID.Source, s.ID.SourcePort)
			switch {
			case at == a.Here && addrPort(s.ID.Destination, s.ID.DestinationPort) == a.There:
				exact, read[inode] = inode, s.RQueue == 0
			case s.State == netlink.TCP_LISTEN && at.Port() == a.Here.Port() &&
				(at.Addr() == a.Here.Addr() || at.Addr().IsUnspecified()):
				listener = inode
			}
		}
		if exact == 0 {
			exact, out[i].Listens = listener, listener != 0
		}
		by[exact] = append(by[exact], i)
	}
	for _, pid := range w.cfg.Proc.PIDs() {
		for _, inode := range w.cfg.Proc.Sockets(pid) {
			for _, i := range by[inode] {
				number, _ := w.cfg.Proc.Env(pid, "RANK")
				rank, _ := strconv.Atoi(number)
				is, _ := w.cfg.Proc.Stat(pid)
				out[i] = wire.End{PID: pid, Name: path.Base(w.cfg.Proc.Name(pid)), Job: w.jobOf(pid), Rank: rank,
					Listens: out[i].Listens, Read: read[inode] && !is.Stopped()}
			}
		}
	}
	return out
}

// name finds out who is at the other ends of the connections in which ranks wait.
func (w *Why) name(ctx context.Context, e *Evidence) {
	ctx, cancel := context.WithTimeout(ctx, namedWithin)
	defer cancel()
	asked, awaits := map[string][]wire.Ends{}, map[string][]*wire.Await{}
	for i := range e.Looks {
		for k := range e.Looks[i].Ranks {
			r := &e.Looks[i].Ranks[k]
			for n := range r.Awaits {
				a := &r.Awaits[n]
				if a.Host = e.hostOf(a.Remote.Addr()); a.Remote.Addr().IsLoopback() {
					a.Host = e.Looks[i].Host
				}
				if a.Host != "" {
					asked[a.Host] = append(asked[a.Host], wire.Ends{Here: a.Remote, There: a.Local})
					awaits[a.Host] = append(awaits[a.Host], a)
				}
			}
		}
	}
	var all sync.WaitGroup
	for _, n := range e.Nodes {
		if len(asked[n.Host]) == 0 || n.State == "away" || n.State == "joined" {
			continue
		}
		all.Go(func() {
			r := wire.LookRequest{Ends: asked[n.Host]}
			var l wire.NodeLook
			var err error
			if n.ID == w.cfg.Self {
				l, err = w.self(ctx, r)
			} else {
				l, err = wire.Look.Call(ctx, w.cfg.Dial.Client(n.ID), r)
			}
			for i, a := range awaits[n.Host] {
				if err == nil && i < len(l.Ends) {
					a.End = &l.Ends[i]
				}
			}
		})
	}
	all.Wait()
	for i := range e.Looks {
		for _, r := range e.Looks[i].Ranks {
			for n := range r.Awaits {
				e.call(r, &r.Awaits[n])
			}
		}
	}
}

// call puts in words who is at the other end.
func (e Evidence) call(r wire.RankLook, a *wire.Await) {
	a.Own = a.End != nil && a.End.Job == r.Job
	switch end := a.End; {
	case a.Host == "":
		a.Who = "outside the cluster"
	case end == nil || end.PID == 0:
		a.Who = "on " + a.Host
		if end != nil && !a.Asks {
			a.Who += ", where no process has it"
		}
	case a.Own:
		a.Who = fmt.Sprintf("rank %d on %s", end.Rank, a.Host)
	case end.Job != "":
		of := "job " + string(end.Job)
		if i := slices.IndexFunc(e.Open, func(j rendezvous.JobStatus) bool { return j.Spec.ID == end.Job }); i >= 0 {
			of = name(e.Open[i].Spec)
		}
		a.Who = fmt.Sprintf("rank %d of %s on %s", end.Rank, of, a.Host)
	default:
		a.Who = fmt.Sprintf("%s, pid %d on %s", end.Name, end.PID, a.Host)
	}
	if a.End != nil && a.End.PID != 0 && a.End.Listens && !a.Connects && !a.Asks {
		a.Who += ", which has not taken it"
	}
	if a.Setting != "" {
		a.Who += "; " + a.Setting
	}
}

// networks are the variables by which libraries choose a network, and the form of the values that are told of.
var (
	networks = []string{"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "UCX_NET_DEVICES",
		"OMPI_MCA_btl_tcp_if_include", "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_NET"}
	devices = plain.Pattern(`^[\w.:,=^/-]{1,80}$`)
)

// environment reads what the environments of a rank's processes say of networks and of its world.
func (w *Why) environment(k *watched) {
	l, fs := &k.look, w.cfg.Proc
	for _, name := range networks {
		if value, set := fs.Env(l.PID, name); set && devices().MatchString(value) {
			l.Network = append(l.Network, name+"="+value)
		}
	}
	for _, pid := range k.pids {
		text, _ := fs.Env(pid, "WORLD_SIZE")
		number, _ := fs.Env(pid, "RANK")
		world, _ := strconv.Atoi(text)
		rank, err := strconv.Atoi(number)
		if world > l.World {
			l.World, l.Has = world, nil
		}
		if world == l.World && world > 0 && err == nil && !slices.Contains(l.Has, rank) {
			l.Has = append(l.Has, rank)
		}
	}
	slices.Sort(l.Has)
}
