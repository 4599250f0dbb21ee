package bench

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/bench"
	"github.com/sparkrun/sparkrun/workloads/nettest/nccltest"
)

// circumstances notes what the cluster and its machines are at this moment.
func circumstances(ctx context.Context, a *app.App, h *bench.Header) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil {
		h.Unlearned = err.Error()
		host, _ := os.Hostname() // what is not known is empty
		kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
		h.Nodes = []bench.Node{{Host: host, Kernel: strings.TrimSpace(string(kernel))}}
		return
	}
	h.Cluster = st.Cluster
	doctor, err := wire.Doctor.Call(ctx, b, wire.DoctorRequest{})
	if err != nil {
		a.Say("kernels and drivers are not known: " + err.Error())
	}
	for _, n := range st.Nodes {
		node := bench.Node{Host: n.Host, Sparkrun: n.Version}
		for _, d := range doctor.Nodes {
			if d.ID == n.ID && d.Facts != nil {
				node.Kernel, node.Driver = d.Facts.Kernel, d.Facts.Driver
			}
		}
		h.Nodes = append(h.Nodes, node)
	}
	dir, err := a.UserFolder("XDG_STATE_HOME", filepath.Join(".local", "state"))
	if err != nil {
		return
	}
	history, _ := os.ReadFile(filepath.Join(dir, nccltest.HistoryFile)) // without one there was no test
	if t := nccltest.LastOf(history, st.Cluster); t != nil {
		h.NCCLTest = &bench.NCCLTest{At: t.At, Op: t.Op, Bus: t.Bus, Grade: string(t.Grade)}
	}
}

// gpus are all machines' GPUs as they are now; none where nobody tells.
func gpus(ctx context.Context, a *app.App) (out []bench.GPU) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	b := a.Dial()
	defer b.Close()
	res, err := wire.Usage.Call(ctx, b, wire.Empty{})
	if err != nil {
		return nil
	}
	for _, n := range res.Nodes {
		for _, g := range n.GPUs {
			out = append(out, bench.GPU{Host: n.Host, Index: g.Index, Name: g.Name, MHz: g.MHz, Watts: g.Watts, Celsius: g.Celsius,
				Throttle: g.Throttle})
		}
	}
	return out
}
