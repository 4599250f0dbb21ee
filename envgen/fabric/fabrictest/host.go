// Package fabrictest makes what a machine's kernel shows of its network hardware from a few lines of text: a sysfs
// tree, in memory or on disk, and the listings of netlink. Tests give both to fabric.New in place of the machine.
//
// It must not be imported by anything that is shipped, and must not decide what a tree means: it imitates the
// kernel, and where it differs from the kernel, every test built on it is wrong.
package fabrictest

import (
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
)

// Host is a machine in the making: Line adds to it, and later lines win. Its words, one a line, "#" for remarks and an
// underscore in a value for a space:
//
//	card PCI [vendor=0x15b3] [gtps=32.0] [lanes=4] [physfn=PCI]
//	hca NAME [on=PCI] [parent=IF] [net=IF] [guid=G] [image=G] [fw=V] [type=T] [state=4:_ACTIVE] [phys=5:_LinkUp]
//	    [rate=200_Gb/sec_(2X_NDR)] [layer=Ethernet] [table=8]
//	gid HCA INDEX v1|v2 ADDR [IF]
//	count HCA FILE VALUE                       FILE is counters/NAME or hw_counters/NAME
//	net IF [on=PCI] [virtio=N] [usb] [speed=200000] [port=p0] [wireless]
//	link IF [mac=M] [mtu=9000] [up] [carrier] [kind=device] [loopback] [default] [PREFIX ...]
//	file PATH CONTENT                          any file of the tree; gone PATH takes one away, or a folder
//
// and, for whole machines:
//
//	spark MAC MGMT [rdma=A,B,C,D] [net=A,B,C,D] a GB10 machine with nothing plugged in; MAC is two bytes, 2e:bf, and the
//	                                           names are those of port 0, its twin, port 1, its twin
//	port N ADDR [ADDR]                         plug in port N of a spark: the addresses of its twins, - for none
//	nic RDMA PCI IF ADDR [word ...]            one port of a server's card, plugged in; the words are those of card and hca
//	lose PCI                                   a PCI function that does not show itself
//	address IF [PREFIX ...]                    in place of what a plugged-in interface has, in its GID table too
//	pull IF ...                                take the cable out: addresses stay
//	off IF ...                                 set down by its owner: ip link set down
//	unlist IF                                  an interface that is in another network namespace
type Host struct {
	// Files is the tree, to be read as /sys.
	Files fstest.MapFS
	// Links are what netlink lists, in the order in which they were first named.
	Links []Link

	devices map[string]*device // by PCI address
	spark   bool
}

// Link has the fields of fabric.Link, to which it converts: fabric's own tests could not import a package that
// imports fabric.
type Link struct {
	Name         string
	MAC          string
	MTU          int
	Up           bool
	Carrier      *bool
	OperState    string
	Kind         string
	Loopback     bool
	Addresses    []netip.Prefix
	DefaultRoute bool
}

type device struct {
	rdma, net string
	rows      int // of the GID table that are filled
}

// New makes a host without hardware.
func New() *Host { return &Host{Files: fstest.MapFS{}, devices: map[string]*device{}} }

// Load makes a host from a file: the text before the first part describes it, "-- tree --" holds the words
// above, and "-- links --" the arguments of the word link.
func Load(t testing.TB, file string) *Host {
	t.Helper()
	h := New()
	for _, p := range Parts(t, file) {
		for i, line := range p.Lines {
			if p.Name == "links" && strings.TrimSpace(strings.SplitN(line, "#", 2)[0]) != "" {
				line = "link " + line
			}
			if err := h.Line(line); err != nil {
				t.Fatalf("%s, line %d of part %s: %v", file, i+1, p.Name, err)
			}
		}
	}
	return h
}

// Part is one "-- NAME --" of a txtar file.
type Part struct {
	Name  string
	Lines []string
}

// Parts splits a file at its headers. The text before the first one is dropped.
func Parts(t testing.TB, file string) []Part {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var parts []Part
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "-- "); ok {
			parts = append(parts, Part{Name: strings.TrimSuffix(name, " --")})
		} else if len(parts) > 0 {
			last := &parts[len(parts)-1]
			last.Lines = append(last.Lines, line)
		}
	}
	return parts
}

// Tree answers as sysfs does where a plain folder cannot: a file whose text is EINVAL cannot be read.
type Tree struct{ fs.ReadLinkFS }

// FS is the host's tree in memory.
func (h *Host) FS() Tree { return Tree{h.Files} }

// Plant writes the tree into a folder of the test, for readers of a real one. Files that cannot be read are
// left out.
func (h *Host) Plant(t testing.TB) (root string) {
	t.Helper()
	root = t.TempDir()
	readable := maps.Clone(h.Files)
	maps.DeleteFunc(readable, func(_ string, f *fstest.MapFile) bool { return string(f.Data) == einval+"\n" })
	if err := os.CopyFS(root, readable); err != nil {
		t.Fatal(err)
	}
	return root
}

// ReadFile implements fs.ReadFileFS.
func (t Tree) ReadFile(name string) ([]byte, error) {
	data, err := fs.ReadFile(t.ReadLinkFS, name)
	if string(data) == einval+"\n" {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EINVAL}
	}
	return data, err
}

const einval = "EINVAL"

// Line adds one line of text; an empty one has no effect.
func (h *Host) Line(line string) error {
	line, _, _ = strings.Cut(line, "#")
	words := strings.Fields(line)
	if len(words) == 0 {
		return nil
	}
	if len(words) == 1 {
		return fmt.Errorf("%s: of what?", words[0])
	}
	name, opts := words[1], options(words[2:])
	switch words[0] {
	case "card":
		return h.card(name, opts)
	case "hca":
		return h.hca(name, opts)
	case "gid":
		return h.gid(words[1:])
	case "count":
		return h.file("class/infiniband/"+name+"/ports/1/"+words[2], words[3])
	case "net":
		return h.net(name, opts)
	case "link":
		return h.link(name, words[2:])
	case "file":
		return h.file(name, strings.Join(words[2:], " "))
	case "gone":
		h.remove(name)
		return nil
	case "spark":
		return h.makeSpark(name, words[2], opts)
	case "port":
		return h.port(name, words[2:])
	case "nic":
		return h.nic(words[1:], opts)
	case "lose":
		return h.lose(name)
	case "address":
		return h.address(name, words[2:])
	case "pull":
		return h.cut("pulled", words[1:])
	case "off":
		return h.cut("down", words[1:])
	case "unlist":
		h.Links = slices.DeleteFunc(h.Links, func(l Link) bool { return l.Name == name })
		return nil
	}
	return fmt.Errorf("no such word as %q", words[0])
}

type opts map[string]string

func options(words []string) opts {
	o := opts{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		o[k] = v
	}
	return o
}

func (o opts) has(key string) bool { _, ok := o[key]; return ok }

func (o opts) or(key, preset string) string {
	if o.has(key) {
		return o[key]
	}
	return preset
}

// link adds an interface to netlink's listing, or changes the one of that name.
func (h *Host) link(name string, words []string) error {
	i := slices.IndexFunc(h.Links, func(l Link) bool { return l.Name == name })
	if i < 0 {
		i = len(h.Links)
		h.Links = append(h.Links, Link{Name: name, MTU: 1500, Kind: "device", OperState: "down"})
	}
	l := &h.Links[i]
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "mac":
			l.MAC = v
		case "mtu":
			if _, err := fmt.Sscan(v, &l.MTU); err != nil {
				return err
			}
		case "kind":
			l.Kind = v
		case "up":
			if l.Up = true; l.Carrier == nil {
				l.Carrier = new(false)
			}
		case "carrier":
			l.Up, l.Carrier, l.OperState = true, new(true), "up"
		case "down": // set down by its owner
			l.Up, l.Carrier, l.OperState = false, nil, "down"
		case "pulled": // no carrier; addresses stay
			l.Up, l.Carrier, l.OperState = true, new(false), "down"
		case "loopback":
			l.Loopback = true
		case "default":
			l.DefaultRoute = true
		case "bare":
			l.Addresses = nil
		default:
			prefix, err := netip.ParsePrefix(w)
			if err != nil {
				return err
			}
			l.Addresses = append(l.Addresses, prefix)
		}
	}
	return nil
}
