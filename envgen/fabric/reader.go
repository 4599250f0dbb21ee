// Package fabric decides what this node's network hardware is at this moment: it reads sysfs and asks the kernel
// (netlink), gives an envgen.Inventory, and says when that has changed. Its Probe decides, by what the NICs hear,
// which ports of which members that hardware is cabled to.
//
// It must not evaluate what it finds (envgen does), must not change anything on the node, and must not know devices
// by their names. A device or fact that cannot be read is left out of the inventory; it never keeps the rest from
// being read. Nothing that arrives over a cable is believed unless a key of the cluster signed it and it is proven
// to be recent.
package fabric

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// Config says where the facts come from. The zero value reads the machine it runs on.
type Config struct {
	// Sysfs is the root of the sysfs tree; empty means /sys. With another root (a simulated host, a captured tree)
	// the hardware is that of the tree, while links, addresses and routes are still those of the process's network
	// namespace.
	Sysfs string
	// FS is read in place of Sysfs when not nil. It must implement fs.ReadLinkFS: the PCI address of a device is the
	// target of a symbolic link.
	FS fs.FS
	// BootIDPath is the file with the kernel's boot id; empty means /proc/sys/kernel/random/boot_id.
	BootIDPath string
	// Hostname names the node in its inventory; nil means os.Hostname.
	Hostname func() (string, error)
	// Links lists the interfaces; nil means the kernel's, by netlink.
	Links func(context.Context) ([]Link, error)
	// Routes lists the routes of all tables, only for Capture; nil means the kernel's, by netlink.
	Routes func(context.Context) ([]Route, error)
	// Events calls poke after each change of a link, an address or a route, until ctx ends (then it returns nil) or
	// the source breaks. poke never blocks. nil means the kernel's, by netlink.
	Events func(ctx context.Context, poke func()) error
	// Debounce is how long Run waits after an event before it reads, so that a burst costs one read; 0 means 100
	// ms. Run reports changes that much later.
	Debounce time.Duration
	// Settle is when Run reads again after an event, and then after twice as long each time up to Reread: the
	// kernel fills the GID table from a queue, after it has announced the address. 0 means 1 s.
	Settle time.Duration
	// Reread is how often Run reads without any event, for what causes none (GIDs, port states); 0 means 10
	// s.
	Reread time.Duration
	// Log gets reads that failed; nil discards.
	Log *slog.Logger
}

// Link is what the kernel's network stack says of one interface.
type Link struct {
	Name         string         `json:"name"`
	MAC          string         `json:"mac,omitempty"`
	MTU          int            `json:"mtu"` // bytes
	Up           bool           `json:"up"`
	Carrier      *bool          `json:"carrier,omitempty"` // nil while the interface is set down
	OperState    string         `json:"operstate,omitempty"`
	Kind         string         `json:"kind,omitempty"`
	Loopback     bool           `json:"loopback,omitempty"`
	Addresses    []netip.Prefix `json:"addresses,omitempty"`
	DefaultRoute bool           `json:"default_route,omitempty"`
}

// Route is one of the kernel's routes.
type Route struct {
	// Dst is 0.0.0.0/0 or ::/0 for a default route.
	Dst netip.Prefix `json:"dst"`
	// Via are the gateways and Dev the interfaces; several for a multipath route.
	Via []netip.Addr `json:"via,omitempty"`
	Dev []string     `json:"dev,omitempty"`
	Src netip.Addr   `json:"src,omitzero"`
	// Table is 254 for the main table.
	Table  int `json:"table"`
	Metric int `json:"metric,omitempty"`
	// Type is the kernel's RTN_ number: 1 is unicast.
	Type int `json:"type"`
}

// Reader reads one node. It keeps no state between reads and may be used by several goroutines.
type Reader struct {
	cfg   Config
	sysfs sysfs
}

// New checks the configuration and fills its defaults.
func New(cfg Config) (*Reader, error) {
	if cfg.Sysfs == "" {
		cfg.Sysfs = "/sys"
	}
	if cfg.FS == nil {
		// A wrong root would look like a machine without any hardware: report it.
		if info, err := os.Stat(cfg.Sysfs); err != nil {
			return nil, fmt.Errorf("open sysfs root: %w", err)
		} else if !info.IsDir() {
			return nil, fmt.Errorf("open sysfs root %s: not a directory", cfg.Sysfs)
		}
		cfg.FS = dirFS(cfg.Sysfs)
	}
	links, ok := cfg.FS.(fs.ReadLinkFS)
	if !ok {
		return nil, fmt.Errorf("open sysfs root %T: cannot read symbolic links", cfg.FS)
	}
	if cfg.BootIDPath == "" {
		cfg.BootIDPath = proc.BootIDFile
	}
	if cfg.Hostname == nil {
		cfg.Hostname = os.Hostname
	}
	if cfg.Links == nil {
		cfg.Links = kernelLinks
	}
	if cfg.Routes == nil {
		cfg.Routes = kernelRoutes
	}
	if cfg.Events == nil {
		cfg.Events = kernelEvents
	}
	for _, d := range []struct {
		value  *time.Duration
		preset time.Duration
	}{{&cfg.Debounce, 100 * time.Millisecond}, {&cfg.Settle, time.Second}, {&cfg.Reread, 10 * time.Second}} {
		if *d.value < 0 {
			return nil, fmt.Errorf("configure fabric reader: %v is a negative time", *d.value)
		}
		if *d.value == 0 {
			*d.value = d.preset
		}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Reader{cfg: cfg, sysfs: sysfs{links}}, nil
}

// Read gives the node's inventory as it is now. A node without RDMA devices is no error; its list is empty.
func (r *Reader) Read(ctx context.Context) (envgen.Inventory, error) {
	host, err := r.cfg.Hostname()
	if err != nil {
		return envgen.Inventory{}, fmt.Errorf("read hostname: %w", err)
	}
	links, err := r.cfg.Links(ctx)
	if err != nil {
		return envgen.Inventory{}, fmt.Errorf("read interfaces of %s: %w", host, err)
	}
	inv := envgen.Inventory{Host: host, NICs: make([]envgen.NIC, 0, len(links))}
	for _, l := range links {
		inv.NICs = append(inv.NICs, r.sysfs.nic(l))
	}
	if inv.Devices, err = r.sysfs.devices(); err != nil {
		return envgen.Inventory{}, fmt.Errorf("read RDMA devices of %s: %w", host, err)
	}
	return inv, nil
}

// BootID returns the kernel's id of the current boot: it differs after each restart of the node.
func (r *Reader) BootID() (string, error) {
	text, err := os.ReadFile(r.cfg.BootIDPath)
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	id := strings.TrimSpace(string(text))
	if id == "" {
		return "", fmt.Errorf("read boot id %s: %w", r.cfg.BootIDPath, errors.New("the file is empty"))
	}
	return id, nil
}
