package fabrictest

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"path/filepath"
	"strings"
	"testing/fstest"
)

// file writes one file of the tree, replacing what was there; with no content it writes
// no file.
func (h *Host) file(name, content string) error {
	if content == "" {
		return nil
	}
	real, err := h.resolve(name)
	if err == nil {
		h.Files[real] = &fstest.MapFile{Data: []byte(strings.ReplaceAll(content, "_", " ") + "\n"), Mode: 0o644}
	}
	return err
}

// resolve follows the links in a name, as the kernel does: what is written through class/net belongs to the device.
func (h *Host) resolve(name string) (string, error) {
	real := "."
	for rest, links := strings.Split(name, "/"), 0; len(rest) > 0; {
		real, rest = path.Join(real, rest[0]), rest[1:]
		if f := h.Files[real]; f != nil && f.Mode&fs.ModeSymlink != 0 {
			if links++; links > 40 {
				return "", fmt.Errorf("%s: a loop of links", name)
			}
			real = path.Join(path.Dir(real), string(f.Data))
		}
	}
	return real, nil
}

// remove removes a file, a link or a folder with its contents.
func (h *Host) remove(name string) {
	maps.DeleteFunc(h.Files, func(file string, _ *fstest.MapFile) bool {
		return file == name ||
			strings.HasPrefix(file, name+"/")
	})
}

// files writes several files: name, content, name, content.
func (h *Host) files(dir string, pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if err := h.file(dir+"/"+pairs[i], pairs[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (h *Host) dir(name string) {
	if h.Files[name] == nil {
		h.Files[name] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
	}
}

// symlink makes a relative link as in sysfs: its last element is the target's name, even where that is a parent.
func (h *Host) symlink(name, target string) error {
	relative, err := filepath.Rel(path.Dir(name), path.Dir(target))
	if err == nil {
		h.Files[name] = &fstest.MapFile{Data: []byte(path.Join(relative, path.Base(target))), Mode: fs.ModeSymlink | 0o777}
	}
	return err
}

func cardDir(pci string) string {
	domain, _, _ := strings.Cut(pci, ":")
	return "devices/pci" + domain + ":00/" + pci
}

func (h *Host) card(pci string, o opts) error {
	dir := cardDir(pci)
	err := h.files(dir, "vendor", o.or("vendor", "0x15b3"), "current_link_width", o["lanes"])
	if o.has("gtps") {
		err = errors.Join(err, h.file(dir+"/current_link_speed", o["gtps"]+"_GT/s_PCIe"))
	}
	if o.has("physfn") {
		err = errors.Join(err, h.symlink(dir+"/physfn", cardDir(o["physfn"])))
	}
	return err
}

func (h *Host) hca(name string, o opts) error {
	dir := "devices/virtual/infiniband/" + name
	var err error
	if o.has("on") {
		card := cardDir(o["on"])
		dir = card + "/infiniband/" + name
		h.dir(dir)
		err = h.symlink(dir+"/device", card)
		if o.has("net") {
			h.dir(card + "/net/" + o["net"])
		}
	}
	err = errors.Join(err, h.symlink("class/infiniband/"+name, dir),
		h.files(dir, "parent", o["parent"], "node_guid", o["guid"],
			"sys_image_guid", o.or("image", o["guid"]), "fw_ver", o["fw"], "hca_type", o["type"]),
		h.files(dir+"/ports/1", "state", o.or("state", "4:_ACTIVE"), "phys_state", o.or("phys", "5:_LinkUp"),
			"rate", o.or("rate", "200_Gb/sec_(2X_NDR)"), "link_layer", o.or("layer", "Ethernet")))
	var rows int
	if _, bad := fmt.Sscan(o.or("table", "8"), &rows); bad != nil {
		return bad
	}
	for i := range rows {
		// An empty row can be read; its type and interface cannot.
		n := fmt.Sprint(i)
		err = errors.Join(err, h.files(dir+"/ports/1", "gids/"+n, gidText(netip.IPv6Unspecified()),
			"gid_attrs/types/"+n, einval, "gid_attrs/ndevs/"+n, einval))
	}
	return err
}

// gid fills a row: HCA INDEX v1|v2 ADDR [IF].
func (h *Host) gid(words []string) error {
	if len(words) < 4 {
		return errors.New("want HCA INDEX v1|v2 ADDR [IF]")
	}
	addr, err := netip.ParseAddr(words[3])
	if err != nil {
		return err
	}
	kind, ok := map[string]string{"v1": "IB/RoCE_v1", "v2": "RoCE_v2"}[words[2]]
	if !ok {
		return fmt.Errorf("no such type as %q", words[2])
	}
	err = h.files("class/infiniband/"+words[0]+"/ports/1", "gids/"+words[1], gidText(addr),
		"gid_attrs/types/"+words[1], kind)
	if len(words) > 4 {
		err = errors.Join(err, h.file("class/infiniband/"+words[0]+"/ports/1/gid_attrs/ndevs/"+words[1], words[4]))
	}
	return err
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

func (h *Host) net(name string, o opts) error {
	dir := "devices/virtual/net/" + name
	switch {
	case o.has("virtio"):
		dir = cardDir(o["on"]) + "/virtio" + o["virtio"] + "/net/" + name
	case o.has("usb"):
		dir = cardDir(o["on"]) + "/usb1/1-1/1-1:1.0/net/" + name
	case o.has("on"):
		dir = cardDir(o["on"]) + "/net/" + name
	}
	h.dir(dir)
	var err error
	if o.has("on") {
		err = h.symlink(dir+"/device", path.Dir(path.Dir(dir)))
	}
	err = errors.Join(err, h.symlink("class/net/"+name, dir),
		h.files(dir, "speed", o.or("speed", "-1"), "phys_port_name", o["port"]))
	if o.has("wireless") {
		h.dir(dir + "/wireless")
	}
	return err
}
