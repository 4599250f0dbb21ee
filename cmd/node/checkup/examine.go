package checkup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/envgen/netplan"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Examine reads the state of this node now, and runs its part of the checks.
func (u *Checkup) Examine(ctx context.Context, _ wire.Caller, r wire.ExamineRequest) (wire.ExamineResponse, error) {
	res := wire.ExamineResponse{Received: time.Now()}
	if r.Facts != nil {
		var gpus []doctor.GPU
		var silent string
		var read sync.WaitGroup
		read.Go(func() { gpus, silent = u.gpus(ctx) }) // a second or three, which a slow docker leaves no time for
		facts := u.cfg.Machine.Read(ctx, *r.Facts)
		read.Wait()
		inv := u.cfg.Survey.Inventory.Load()
		facts.Netplan = netplanMentions(netplan.Disk{Root: "/"}, inv)
		facts.GPUs, facts.GPUSilent, facts.CacheKept = gpus, silent, cacheKept()
		res.Facts = &facts
	}
	if r.Orders != nil {
		report := doctor.Probe(ctx, *r.Orders)
		res.Report = &report
	}
	res.Inventory = u.cfg.Survey.Inventory.Load()
	res.Counters = u.cfg.Survey.Counted()
	res.Sent = time.Now()
	return res, ctx.Err()
}

// netplanMentions are the netplan files that name a fabric NIC which another file names
// too; that other file is sparkrun's own where it exists.
func netplanMentions(disk netplan.Disk, inv envgen.Inventory) []doctor.Mention {
	var sources []netplan.Source
	for _, dir := range []string{"/lib/netplan", "/etc/netplan", "/run/netplan"} {
		names, _ := disk.List(dir)
		for _, name := range names {
			path := filepath.Join(dir, name)
			if !strings.HasSuffix(name, ".yaml") || strings.HasPrefix(name, ".") {
				continue
			}
			if data, _, err := disk.Read(path); err == nil {
				sources = append(sources, netplan.Source{Path: path, Data: data})
			}
		}
	}
	docs, _ := netplan.ParseAll(sources)
	var nics []netplan.Twin
	ours := netplan.Document{Path: netplan.Path}
	for _, nic := range inv.NICs {
		if inv.FabricNIC(nic) {
			nics = append(nics, netplan.Twin{NIC: nic.Name, MAC: nic.MAC})
			ours.Definitions = append(ours.Definitions, netplan.Definition{ID: nic.Name, Section: "ethernets"})
		}
	}
	own := slices.IndexFunc(docs, func(d netplan.Document) bool { return d.Path == netplan.Path })
	if own >= 0 {
		ours = docs[own]
	}
	var out []doctor.Mention
	mentions := netplan.Mentions(docs, ours, nics)
	for _, m := range mentions {
		effect := strings.Join(m.Effects, "; ")
		if own < 0 {
			// No file of ours to compare with: two foreign files may contradict each
			// other.
			i := slices.IndexFunc(mentions, func(o netplan.Mention) bool { return o.NIC == m.NIC && o.Path != m.Path })
			if i < 0 {
				continue
			}
			effect, m.Blocks = "so does "+mentions[i].Path+", and netplan adds their address lists up", false
		}
		out = append(out, doctor.Mention{
			NIC: m.NIC, Path: m.Path, Line: m.Line, Effect: effect, Remedy: m.Remedy, Blocks: m.Blocks,
		})
	}
	return out
}

// hands are the repairs that a node may make on its machine.
type hands struct {
	up    func(nic string) error
	mtu   func(nic string, bytes int) error
	cache func() error
}

var realHands = hands{
	up: func(nic string) error {
		link, err := netlink.LinkByName(nic)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	},
	mtu: func(nic string, bytes int) error {
		link, err := netlink.LinkByName(nic)
		if err != nil {
			return err
		}
		return netlink.LinkSetMTU(link, bytes)
	},
	cache: func() error {
		unix.Sync() // dirty pages cannot be dropped
		return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3\n"), 0o200)
	},
}

// Mend makes the few repairs that doctor --fix may make here. It runs on behalf of root,
// since the NICs serve the whole cluster.
func (u *Checkup) Mend(ctx context.Context, c wire.Caller, r wire.MendRequest) (wire.MendResponse, error) {
	if c.User == nil {
		return wire.MendResponse{}, fmt.Errorf("mend %s: %w: no user asks for it", u.cfg.Host, wire.ErrDenied)
	}
	if err := c.MustBeRoot("mend " + u.cfg.Host); err != nil {
		return wire.MendResponse{}, err
	}
	inv := u.cfg.Survey.Inventory.Load()
	mgmt := ""
	if choice, err := envgen.Management(inv, u.cfg.Management); err == nil {
		mgmt = choice.NIC
	}
	var res wire.MendResponse
	for _, m := range r.Mends {
		done := wire.Mended{Host: u.cfg.Host, Mend: m, Command: m.Command()}
		err := realHands.mend(inv, mgmt, m)
		if err != nil {
			done.Error = err.Error()
		} else if m.Kind == doctor.MendUp {
			u.awaitCarrier(ctx, m.NIC)
		}
		u.cfg.Logger.Info("mend", "command", done.Command, "user", c.User.Name, "from", c.Host, "error", err)
		res.Mended = append(res.Mended, done)
	}
	return res, nil
}

// mend makes one repair, or says why it will not.
func (h hands) mend(inv envgen.Inventory, mgmt string, m doctor.Mend) error {
	if m.Kind == doctor.MendCache {
		return h.cache()
	}
	nic, ok := inv.NIC(m.NIC)
	switch {
	case !ok:
		return fmt.Errorf("there is no NIC %q", m.NIC)
	case mgmt == "" || nic.Name == mgmt:
		return fmt.Errorf("%s may carry management: the cluster does not change what it talks over", m.NIC)
	case !inv.FabricNIC(nic):
		return fmt.Errorf("%s is no NIC of the fabric", m.NIC)
	case m.Kind == doctor.MendUp:
		return h.up(m.NIC)
	case m.Kind == doctor.MendMTU:
		return h.mtu(m.NIC, envgen.JumboMTU)
	}
	return errors.New("unknown mend " + m.Kind)
}

// carrierWithin is how long a ConnectX may take to train its link.
const carrierWithin = 5 * time.Second

// awaitCarrier waits until a NIC that was set up has its link, or until carrierWithin has
// passed.
func (u *Checkup) awaitCarrier(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(ctx, carrierWithin)
	defer cancel()
	for {
		inv, changed := u.cfg.Survey.Inventory.Watch()
		if nic, ok := inv.NIC(name); ok && nic.HasCarrier() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
