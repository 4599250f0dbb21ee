package fabric

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A fixture is a txtar file with two parts of one fact a line, "#" for remarks:
//
//	-- tree --
//	card PCI [vendor=0x15b3] [gtps=32.0] [lanes=4] [physfn=PCI]
//	hca NAME [on=PCI] [parent=IF] [net=IF] [guid=G] [image=G] [fw=V] [type=T] [state="4: ACTIVE"] [phys="5: LinkUp"] [rate="200 Gb/sec (2X NDR)"] [layer=Ethernet] [table=256]
//	gid HCA INDEX v1|v2 ADDR [IF]
//	net IF [on=PCI] [virtio=N] [usb] [speed=200000] [port=p0] [wireless]
//	-- links --
//	IF [mac=M] [mtu=9000] [up] [carrier] [kind=device] [loopback] [default] [PREFIX ...]
//
// plantTree makes a folder of it with sysfs's own symbolic links. An underscore in a value is a space. What the
// kernel answers with EINVAL is a file with the text EINVAL, see kernelManners.
type fixture struct {
	root  string
	links []Link
}

const einval = "EINVAL\n"

func loadFixture(t testing.TB, name string) fixture {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	fx := fixture{root: t.TempDir()}
	part := "" // what stands before the first part says what the fixture is
	for i, line := range strings.Split(string(text), "\n") {
		if header, ok := strings.CutPrefix(line, "-- "); ok {
			part = strings.TrimSuffix(header, " --")
			continue
		}
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if part == "" || len(words) == 0 {
			continue
		}
		switch part {
		case "tree":
			err = plant(fx.root, words)
		case "links":
			var l Link
			l, err = parseLink(words)
			fx.links = append(fx.links, l)
		default:
			err = errors.New("no such part")
		}
		if err != nil {
			t.Fatalf("%s line %d, part %s: %v", name, i+1, part, err)
		}
	}
	return fx
}

// reader reads the fixture in place of the machine; nil means by the package's own dirFS.
func (fx fixture) reader(t testing.TB, tree fs.ReadLinkFS) *Reader {
	t.Helper()
	if tree == nil {
		tree = dirFS(fx.root)
	}
	r, err := New(Config{
		FS:       kernelManners{tree},
		Hostname: func() (string, error) { return "spark1", nil },
		Links:    func(context.Context) ([]Link, error) { return fx.links, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// kernelManners answers as sysfs does where a plain folder cannot.
type kernelManners struct{ fs.ReadLinkFS }

func (k kernelManners) ReadFile(name string) ([]byte, error) {
	data, err := fs.ReadFile(k.ReadLinkFS, name)
	if string(data) == einval {
		return nil, &fs.PathError{Op: "read", Path: name, Err: syscall.EINVAL}
	}
	return data, err
}

type planter struct {
	root string
	err  error
}

func (p *planter) file(name, content string) {
	if p.err == nil && content != "" {
		full := filepath.Join(p.root, name)
		if p.err = os.MkdirAll(filepath.Dir(full), 0o755); p.err == nil {
			p.err = os.WriteFile(full, []byte(strings.ReplaceAll(content, "_", " ")+"\n"), 0o644)
		}
	}
}

func (p *planter) dir(name string) {
	if p.err == nil {
		p.err = os.MkdirAll(filepath.Join(p.root, name), 0o755)
	}
}

// link makes a relative link as sysfs has them: its last word is the target's name, even where that is a parent.
func (p *planter) link(name, target string) {
	if p.err != nil {
		return
	}
	full := filepath.Join(p.root, name)
	if p.err = os.MkdirAll(filepath.Dir(full), 0o755); p.err != nil {
		return
	}
	relative, err := filepath.Rel(filepath.Dir(full), filepath.Join(p.root, filepath.Dir(target)))
	if err != nil {
		p.err = err
		return
	}
	p.err = os.Symlink(filepath.Join(relative, filepath.Base(target)), full)
}

func cardDir(pci string) string { return "devices/pci" + pci[:strings.Index(pci, ":")] + ":00/" + pci }

func plant(root string, words []string) error {
	p := &planter{root: root}
	name := words[1]
	opt := map[string]string{}
	for _, w := range words[2:] {
		k, v, _ := strings.Cut(w, "=")
		opt[k] = v
	}
	has := func(k string) bool { _, ok := opt[k]; return ok }
	or := func(k, preset string) string {
		if has(k) {
			return opt[k]
		}
		return preset
	}
	switch words[0] {
	case "card":
		dir := cardDir(name)
		p.file(dir+"/vendor", or("vendor", "0x15b3"))
		if has("gtps") {
			p.file(dir+"/current_link_speed", opt["gtps"]+"_GT/s_PCIe")
		}
		p.file(dir+"/current_link_width", opt["lanes"])
		if has("physfn") {
			p.link(dir+"/physfn", cardDir(opt["physfn"]))
		}
	case "hca":
		dir := "devices/virtual/infiniband/" + name
		if has("on") {
			card := cardDir(opt["on"])
			dir = card + "/infiniband/" + name
			p.dir(dir)
			p.link(dir+"/device", card)
			if has("net") {
				p.dir(card + "/net/" + opt["net"])
			}
		}
		p.link("class/infiniband/"+name, dir)
		p.file(dir+"/parent", opt["parent"])
		p.file(dir+"/node_guid", opt["guid"])
		p.file(dir+"/sys_image_guid", or("image", opt["guid"]))
		p.file(dir+"/fw_ver", opt["fw"])
		p.file(dir+"/hca_type", opt["type"])
		port := dir + "/ports/1"
		p.file(port+"/state", or("state", "4:_ACTIVE"))
		p.file(port+"/phys_state", or("phys", "5:_LinkUp"))
		p.file(port+"/rate", or("rate", "200_Gb/sec_(2X_NDR)"))
		p.file(port+"/link_layer", or("layer", "Ethernet"))
		var rows int
		fmt.Sscan(or("table", "8"), &rows)
		for i := range rows {
			p.file(fmt.Sprintf("%s/gids/%d", port, i), gidText(netip.IPv6Unspecified()))
			p.file(fmt.Sprintf("%s/gid_attrs/types/%d", port, i), strings.TrimSpace(einval))
			p.file(fmt.Sprintf("%s/gid_attrs/ndevs/%d", port, i), strings.TrimSpace(einval))
		}
	case "gid":
		port, index := "class/infiniband/"+name+"/ports/1", words[2]
		addr, err := netip.ParseAddr(words[4])
		if err != nil {
			return err
		}
		p.file(port+"/gids/"+index, gidText(addr))
		p.file(port+"/gid_attrs/types/"+index, map[string]string{"v1": "IB/RoCE_v1", "v2": "RoCE_v2"}[words[3]])
		if len(words) > 5 {
			p.file(port+"/gid_attrs/ndevs/"+index, words[5])
		}
	case "net":
		dir := "devices/virtual/net/" + name
		switch {
		case has("virtio"):
			dir = cardDir(opt["on"]) + "/virtio" + opt["virtio"] + "/net/" + name
		case has("usb"):
			dir = cardDir(opt["on"]) + "/usb1/1-1/1-1:1.0/net/" + name
		case has("on"):
			dir = cardDir(opt["on"]) + "/net/" + name
		}
		p.dir(dir)
		if has("on") {
			p.link(dir+"/device", filepath.Dir(filepath.Dir(dir)))
		}
		p.link("class/net/"+name, dir)
		p.file(dir+"/speed", or("speed", "-1"))
		p.file(dir+"/phys_port_name", opt["port"])
		if has("wireless") {
			p.dir(dir + "/wireless")
		}
	default:
		return fmt.Errorf("unknown fact %q", words[0])
	}
	return p.err
}

// gidText writes all eight groups in full, as the kernel does.
func gidText(addr netip.Addr) string {
	raw := addr.As16()
	groups := make([]string, 8)
	for i := range groups {
		groups[i] = fmt.Sprintf("%02x%02x", raw[2*i], raw[2*i+1])
	}
	return strings.Join(groups, ":")
}

func parseLink(words []string) (Link, error) {
	l := Link{Name: words[0], MTU: 1500, Kind: "device", OperState: "down"}
	carrier := false
	for _, w := range words[1:] {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "mac":
			l.MAC = v
		case "mtu":
			fmt.Sscan(v, &l.MTU)
		case "kind":
			l.Kind = v
		case "up":
			l.Up = true
		case "carrier":
			carrier = true
			l.OperState = "up"
		case "loopback":
			l.Loopback = true
		case "default":
			l.DefaultRoute = true
		default:
			prefix, err := netip.ParsePrefix(w)
			if err != nil {
				return l, err
			}
			l.Addresses = append(l.Addresses, prefix)
		}
	}
	if l.Up {
		l.Carrier = &carrier
	}
	return l, nil
}
