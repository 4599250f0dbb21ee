package netplan

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// folders are where netplan looks, in rising priority: of files with one name only the last is read.
var folders = []string{"/lib/netplan", "/etc/netplan", "/run/netplan"}

// InOrder sorts files as netplan reads them, by name regardless of their folder, and drops those hidden by a file
// of the same name in a folder of higher priority.
func InOrder(sources []Source) []Source {
	rank := func(p string) int { return slices.Index(folders, path.Dir(p)) }
	strongest := map[string]Source{}
	for _, s := range sources {
		name := path.Base(s.Path)
		if other, ok := strongest[name]; !ok || rank(s.Path) > rank(other.Path) {
			strongest[name] = s
		}
	}
	var out []Source
	for _, s := range strongest {
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(x, y Source) int { return strings.Compare(path.Base(x.Path), path.Base(y.Path)) })
	return out
}

// ParseAll reads a node's files in netplan's order. Files that it cannot read are left out and named by the errors:
// what they say of the fabric is unknown.
func ParseAll(sources []Source) (docs []Document, unread []error) {
	for _, s := range InOrder(sources) {
		d, err := Parse(s)
		if err != nil {
			unread = append(unread, err)
			continue
		}
		docs = append(docs, d)
	}
	return docs, unread
}

// Merge joins the definitions of files that are in netplan's order: single values of a later file win, lists add up
// (but for link-local, which is one value). Definitions come in order of first mention; Path and Line are the last.
//
// `netplan get` merges as well, and is no help: it does not say which file a value is from, which every mention names;
// it reads what lies on the disk, where a plan is checked before that; and it is a program of the machine's, where a
// plan is pure.
func Merge(docs []Document) []Definition {
	var out []Definition
	renderer := ""
	type key struct{ section, id string }
	at := map[key]int{}
	for _, doc := range docs {
		if doc.Renderer != "" {
			renderer = doc.Renderer
		}
		for _, d := range doc.Definitions {
			i, seen := at[key{d.Section, d.ID}]
			if !seen {
				i = len(out)
				at[key{d.Section, d.ID}] = i
				out = append(out, Definition{Section: d.Section, ID: d.ID})
			}
			out[i].add(d)
		}
	}
	for i := range out {
		if out[i].Renderer == "" {
			out[i].Renderer = renderer
		}
	}
	return out
}

func (d *Definition) add(o Definition) {
	d.Path, d.Line = o.Path, o.Line
	if o.Renderer != "" {
		d.Renderer = o.Renderer
	}
	if o.Match != nil {
		m := Match{}
		if d.Match != nil {
			m = *d.Match
		}
		if o.Match.Name != "" {
			m.Name = o.Match.Name
		}
		if o.Match.MAC != "" {
			m.MAC = o.Match.MAC
		}
		m.Drivers = append(slices.Clone(m.Drivers), o.Match.Drivers...)
		d.Match = &m
	}
	if o.SetName != "" {
		d.SetName = o.SetName
	}
	if o.Link != "" {
		d.Link = o.Link
	}
	if o.DHCP4 != nil {
		d.DHCP4 = o.DHCP4
	}
	if o.DHCP6 != nil {
		d.DHCP6 = o.DHCP6
	}
	if o.LinkLocal != nil {
		d.LinkLocal = o.LinkLocal
	}
	if o.MTU != nil {
		d.MTU = o.MTU
	}
	d.Addresses = union(d.Addresses, o.Addresses)
	d.Members = union(d.Members, o.Members)
	d.Others = union(d.Others, o.Others)
}

func union[T comparable](a, b []T) []T {
	out := slices.Clone(a)
	for _, x := range b {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}

// names says by what a definition names the interface: "by name", "by MAC 4c:bb:...", or empty if it does not. A
// match by driver is assumed to mean ConnectX.
func (d Definition) names(t Twin) string {
	if d.Match == nil {
		if d.ID == t.NIC || d.SetName == t.NIC {
			return "by name"
		}
		return ""
	}
	if d.SetName == t.NIC {
		return "by set-name"
	}
	m := *d.Match
	if m.MAC != "" && (t.MAC == "" || !strings.EqualFold(m.MAC, t.MAC)) {
		return ""
	}
	if m.Name != "" && !glob(m.Name, t.NIC) {
		return ""
	}
	if len(m.Drivers) > 0 && !slices.ContainsFunc(m.Drivers, func(g string) bool { return glob(g, "mlx5_core") }) {
		return ""
	}
	switch {
	case m.MAC != "":
		return "by MAC " + m.MAC
	case m.Name == t.NIC:
		return "by name"
	case m.Name != "":
		return "by the pattern " + m.Name
	case len(m.Drivers) > 0:
		return "by the driver " + strings.Join(m.Drivers, ", ")
	}
	return "by an empty match, which means every interface"
}

func glob(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}

// uses reports whether a virtual definition (bond, bridge, VRF, VLAN) is made of the one with that id.
func (d Definition) uses(id string) bool { return d.Link == id || slices.Contains(d.Members, id) }

// Settings are what an interface gets from all files together.
type Settings struct {
	DHCP4, DHCP6 bool
	// LinkLocal is sorted; netplan's default is only ipv6.
	LinkLocal []string
	// MTU is nil where no file sets it.
	MTU       *int
	Addresses []netip.Prefix
	// Others are further keys that are set.
	Others []string
	// ID is the definition the settings come from.
	ID string
}

// Effective returns the settings that the files, in netplan's order, give an interface; nil where none names it.
// Where several definitions name it, networkd uses the first by name and ignores the others.
func Effective(docs []Document, t Twin) *Settings {
	var best *Definition
	for _, d := range Merge(docs) {
		if d.names(t) != "" && (best == nil || d.ID < best.ID) {
			best = new(d)
		}
	}
	if best == nil {
		return nil
	}
	s := Settings{ID: best.ID, MTU: best.MTU, Addresses: best.Addresses, Others: best.Others, LinkLocal: []string{"ipv6"}}
	s.DHCP4 = best.DHCP4 != nil && *best.DHCP4
	s.DHCP6 = best.DHCP6 != nil && *best.DHCP6
	if best.LinkLocal != nil {
		s.LinkLocal = slices.Sorted(slices.Values(best.LinkLocal))
	}
	return &s
}

// touches returns the interface of the cluster's own that a file would reconfigure: mgmt itself, or what mgmt, a
// bond, bridge or VLAN, is made of. Empty means none.
func touches(file Document, all []Document, mgmt Twin) string {
	merged := Merge(all)
	for _, d := range file.Definitions {
		if how := whole(d, merged).names(mgmt); how != "" {
			return fmt.Sprintf("%s (%s)", mgmt.NIC, how)
		}
		// From d upwards: what is made of it, and so on.
		seen := map[string]bool{d.ID: true}
		for queue := []string{d.ID}; len(queue) > 0; queue = queue[1:] {
			for _, up := range merged {
				if !up.uses(queue[0]) || seen[up.ID] {
					continue
				}
				if up.names(mgmt) != "" {
					return fmt.Sprintf("%s, which %s is made of", d.ID, mgmt.NIC)
				}
				seen[up.ID] = true
				queue = append(queue, up.ID)
			}
		}
	}
	return ""
}
