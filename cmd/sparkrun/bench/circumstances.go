package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/bench"
	"github.com/sparkrun/sparkrun/workloads/nettest/nccltest"
)

// circumstances are what the cluster and its machines are at this moment.
func circumstances(ctx context.Context, a *app.App) (out []bench.Setting) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	set := func(name, value string) {
		if value != "" {
			out = append(out, bench.Setting{Name: name, Value: value})
		}
	}
	set("sparkrun", a.Version)
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil {
		a.Say("nothing is kept of the cluster: " + err.Error())
		set("cluster", "none: "+err.Error())
		host, _ := os.Hostname()
		kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
		set("machines", host)
		set("kernel of "+host, strings.TrimSpace(string(kernel)))
		return out
	}
	set("cluster", st.Cluster)
	doctor, err := wire.Doctor.Call(ctx, b, wire.DoctorRequest{})
	if err != nil {
		a.Say("kernels and drivers are not known: " + err.Error())
	}
	hosts := ""
	for _, n := range st.Nodes {
		hosts += " " + n.Host
	}
	set("machines", strings.TrimSpace(hosts))
	for _, n := range st.Nodes {
		set("agent of "+n.Host, n.Version)
		for _, d := range doctor.Nodes {
			if d.ID == n.ID && d.Facts != nil {
				set("kernel of "+n.Host, d.Facts.Kernel)
				set("NVIDIA driver of "+n.Host, d.Facts.Driver)
			}
		}
	}
	test := "none"
	if dir, err := stateFolder(a); err == nil {
		history, _ := os.ReadFile(filepath.Join(dir, nccltest.HistoryFile)) // without one there was no test
		if t := nccltest.LastOf(history, st.Cluster); t != nil {
			test = fmt.Sprintf("%s %.1f GB/s, %s, %s", t.Op, t.Bus, t.Grade, t.At.UTC().Format(time.DateOnly))
		}
	}
	set("last nccl-test", test)
	return out
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
