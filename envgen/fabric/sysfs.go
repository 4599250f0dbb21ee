package fabric

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/envgen"
)

// sysfs reads a tree with the layout of /sys. A file that is missing or unreadable (many give EINVAL while a link
// is down) means that the fact is absent; it is never an error.
type sysfs struct{ fsys fs.ReadLinkFS }

// rdmaPort is the only port of every device that matters: mlx5 makes one device for each port, rxe
// has one.
const rdmaPort = "ports/1"

// text returns a file's content without the trailing newline; ok is false when it cannot be read or is
// empty.
func (s sysfs) text(name string) (text string, ok bool) {
	data, err := fs.ReadFile(s.fsys, name)
	text = strings.TrimSpace(string(data))
	return text, err == nil && text != ""
}

func (s sysfs) word(name string) string {
	text, _ := s.text(name)
	return text
}

// fact returns what parse makes of a file; nil when there is no file or parse fails.
func fact[T any](s sysfs, name string, parse func(string) (T, error)) *T {
	text, ok := s.text(name)
	if !ok {
		return nil
	}
	value, err := parse(text)
	if err != nil {
		return nil
	}
	return &value
}

// linkPCI returns the PCI function that a symbolic link leads to, also for virtio, which is one step below it; nil
// where the link leads elsewhere: a USB adapter is not identified by its controller.
func (s sysfs) linkPCI(name string) *envgen.PCIAddress {
	target, err := fs.ReadLink(s.fsys, name)
	if err != nil {
		return nil
	}
	addr, err := parsePCITarget(target)
	if err != nil {
		// The target's last element says nothing: virtio2, or ".." in a tree that no kernel made.
		if target, err = s.realpath(name); err != nil {
			return nil
		}
		if strings.HasPrefix(path.Base(target), "virtio") {
			target = path.Dir(target)
		}
		if addr, err = parsePCITarget(target); err != nil {
			return nil
		}
	}
	return &addr
}

// realpath follows every symbolic link on the way to name. Links out of the root are an error.
func (s sysfs) realpath(name string) (string, error) {
	real := "."
	rest := strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		if part == ".." && real == "." {
			return "", fmt.Errorf("resolve %s: leads out of the root", name)
		}
		next := path.Join(real, part)
		target, err := fs.ReadLink(s.fsys, next)
		if err != nil { // no link: a folder, or missing, which the caller's read will find
			real = next
			continue
		}
		if links++; links > 40 || path.IsAbs(target) {
			return "", fmt.Errorf("resolve %s: too many links, or one out of the root", name)
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return real, nil
}

func (s sysfs) exists(name string) bool {
	_, err := fs.Lstat(s.fsys, name)
	return err == nil
}

// devicesAtOnce bounds how many devices are read in parallel, each on a thread of its own: a Spark has four, a
// server with virtual functions hundreds.
const devicesAtOnce = 4

// devices reads class/infiniband. A machine without RDMA has no such folder. Nearly all of a read's time is system
// calls for the rows of GID tables, one table for each device, so that two processors halve it.
func (s sysfs) devices() ([]envgen.HCA, error) {
	entries, err := fs.ReadDir(s.fsys, "class/infiniband")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	read := make([]*envgen.HCA, len(entries))
	var group errgroup.Group
	group.SetLimit(devicesAtOnce)
	for i, e := range entries {
		group.Go(func() error {
			h := s.device(e.Name())
			if s.exists("class/infiniband/" + e.Name()) { // otherwise it was removed while it was being read
				read[i] = &h
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	devices := make([]envgen.HCA, 0, len(entries))
	for _, h := range read {
		if h != nil {
			devices = append(devices, *h)
		}
	}
	return envgen.SortedDevices(devices), nil
}

func (s sysfs) device(name string) envgen.HCA {
	dir := "class/infiniband/" + name
	port := dir + "/" + rdmaPort
	h := envgen.HCA{
		Name:         name,
		PCI:          s.linkPCI(dir + "/device"),
		PhysFn:       s.linkPCI(dir + "/device/physfn"),
		NodeGUID:     s.word(dir + "/node_guid"),
		SysImageGUID: s.word(dir + "/sys_image_guid"),
		Firmware:     s.word(dir + "/fw_ver"),
		Type:         s.word(dir + "/hca_type"),
		RateMbps:     fact(s, port+"/rate", parseRate),
		LinkLayer:    s.word(port + "/link_layer"),
		GIDs:         s.gids(port),
		PCIeGTps:     fact(s, dir+"/device/current_link_speed", parseLinkSpeed),
		PCIeLanes:    fact(s, dir+"/device/current_link_width", parseLinkWidth),
	}
	if state := fact(s, port+"/state", parseState); state != nil {
		h.State = *state
	}
	if state := fact(s, port+"/phys_state", parseState); state != nil {
		h.PhysState = *state
	}
	h.Netdev = s.netdev(dir, port)
	return h
}

// netdev finds the interface of a device's port. Row 0 of the GID table is the port's own link-local address and
// names it, also for a bond. Before the table is filled the PCI function's interfaces tell; there are several when
// representors exist, whose phys_port_name has the form pf0vf1. rxe has a `parent` file.
func (s sysfs) netdev(dir, port string) string {
	if name, ok := s.text(port + "/gid_attrs/ndevs/0"); ok {
		return name
	}
	if entries, err := fs.ReadDir(s.fsys, dir+"/device/net"); err == nil {
		names := make([]string, 0, len(entries))
		for _, e := range entries {
			names = append(names, e.Name())
		}
		slices.Sort(names)
		for _, name := range names {
			if !strings.HasPrefix(s.word(dir+"/device/net/"+name+"/phys_port_name"), "pf") {
				return name
			}
		}
	}
	return s.word(dir + "/parent")
}

// gids reads the filled rows. An empty row reads as zero, and its type and netdev give EINVAL; a row can also
// become empty between the reads. Empty rows lie between filled ones, so all must be read.
func (s sysfs) gids(port string) []envgen.GID {
	entries, err := fs.ReadDir(s.fsys, port+"/gids")
	if err != nil {
		return nil
	}
	read, closeFolder := s.folder(port + "/gids")
	defer closeFolder()
	var gids []envgen.GID
	for _, e := range entries {
		index, err := strconv.Atoi(e.Name())
		if err != nil || index < 0 {
			continue
		}
		text, err := read(e.Name())
		if err != nil {
			continue
		}
		addr, filled, err := parseGID(string(text))
		if err != nil || !filled {
			continue
		}
		kind, ok := s.text(port + "/gid_attrs/types/" + e.Name())
		if !ok {
			continue
		}
		gids = append(gids, envgen.GID{
			Index: index, Type: kind, Addr: addr,
			Netdev: s.word(port + "/gid_attrs/ndevs/" + e.Name()), // InfiniBand rows have none
		})
	}
	slices.SortStableFunc(gids, func(a, b envgen.GID) int { return cmp.Compare(a.Index, b.Index) })
	return gids
}

// folder gives a reader of one folder's files, the fast one where the tree has it.
func (s sysfs) folder(name string) (read func(file string) ([]byte, error), close func()) {
	if fast, ok := s.fsys.(dirFS); ok {
		if read, close, err := fast.openFolder(name); err == nil {
			return read, close
		}
	}
	return func(file string) ([]byte, error) { return fs.ReadFile(s.fsys, name+"/"+file) }, func() {}
}

// nic adds to the kernel's description of a link what sysfs says of the hardware under it. A link that is not in
// the tree is virtual.
func (s sysfs) nic(l Link) envgen.NIC {
	dir := "class/net/" + l.Name
	n := envgen.NIC{
		Name: l.Name, MAC: l.MAC, MTU: l.MTU, Up: l.Up, Carrier: l.Carrier, OperState: l.OperState, Kind: l.Kind,
		Loopback: l.Loopback, Addresses: l.Addresses, DefaultRoute: l.DefaultRoute,
		Physical: s.exists(dir + "/device"),
	}
	if !n.Physical {
		return n
	}
	n.PCI = s.linkPCI(dir + "/device")
	if n.PCI != nil {
		n.PCIVendor = s.word(dir + "/device/vendor")
	}
	n.PortName = s.word(dir + "/phys_port_name")
	n.Wireless = s.exists(dir+"/phy80211") || s.exists(dir+"/wireless")
	if l.Carrier != nil && *l.Carrier {
		n.SpeedMbps = fact(s, dir+"/speed", parseSpeed)
	}
	return n
}
