package netplan

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
)

// Mention is another file that names one of our interfaces.
type Mention struct {
	// Path and Line say where, from line 1.
	Path string
	Line int
	// NIC is the interface, ID the definition that names it, How by what.
	NIC string
	ID  string
	How string
	// Effects are sentences about its effect together with our file.
	Effects []string
	// Blocks is true where the interface would not get what our file says.
	Blocks bool
	// Remedy is a command that removes the definition from that file.
	Remedy string
}

// String is one line for people.
func (m Mention) String() string {
	return fmt.Sprintf("%s:%d names %s %s: %s (remedy: %s)", m.Path, m.Line, m.NIC, m.How,
		strings.Join(m.Effects, "; "), m.Remedy)
}

// Mentions lists every file besides Path that names one of our interfaces, with its effect. others are the
// node's files in netplan's order (ours may be among them and is skipped), ours is the file to be written, and
// nics are the node's fabric interfaces: a match by MAC is found where their MAC is known.
func Mentions(others []Document, ours Document, nics []Twin) []Mention {
	rest := slices.DeleteFunc(slices.Clone(others), func(d Document) bool { return d.Path == Path })
	merged := Merge(rest)
	var out []Mention
	for _, own := range ours.Definitions {
		t := Twin{NIC: own.ID}
		if i := slices.IndexFunc(nics, func(n Twin) bool { return n.NIC == own.ID }); i >= 0 {
			t = nics[i]
		}
		for _, doc := range rest {
			if path.Base(doc.Path) == path.Base(Path) {
				if path.Dir(doc.Path) == "/run/netplan" { // a file in /lib is hidden by ours
					out = append(out, Mention{Path: doc.Path, Line: 1, NIC: t.NIC, How: "by its own name", Blocks: true,
						Effects: []string{"hides our file: of files with one name netplan reads the one in /run"},
						Remedy:  "sudo rm " + doc.Path})
				}
				continue
			}
			for _, d := range doc.Definitions {
				m := Mention{Path: doc.Path, Line: d.Line, NIC: t.NIC, ID: d.ID, Remedy: remedy(d)}
				m.How = whole(d, merged).names(t)
				switch {
				case m.How != "" && d.ID == own.ID:
					m.sameID(d, own)
				case m.How != "":
					m.otherID(whole(d, merged), own)
				case d.ID == own.ID:
					// Our definition would be merged into one that is for another
					// interface.
					m.How, m.Blocks = "as the id of another interface", true
					m.Effects = []string{"its match would give our settings to whatever it matches"}
				default:
					if !m.member(d, merged, t) {
						continue
					}
				}
				out = append(out, m)
			}
		}
	}
	return out
}

// whole returns the merged definition that d is a part of: its match may be in another file.
func whole(d Definition, merged []Definition) Definition {
	for _, m := range merged {
		if m.ID == d.ID && m.Section == d.Section {
			return m
		}
	}
	return d
}

func (m *Mention) effect(blocks bool, format string, args ...any) {
	m.Effects = append(m.Effects, fmt.Sprintf(format, args...))
	m.Blocks = m.Blocks || blocks
}

// sameID describes what merging does: later files win, lists are concatenated.
func (m *Mention) sameID(d, own Definition) {
	later := path.Base(m.Path) > path.Base(Path)
	// over describes the result for a single value.
	over := func(what, theirs, mine string) {
		if theirs == mine {
			return
		}
		if later {
			m.effect(true, "sets %s to %s after our %s, and wins", what, theirs, mine)
		} else {
			m.effect(false, "its %s %s gives way to our %s", what, theirs, mine)
		}
	}
	if d.Section != own.Section {
		m.effect(true, "defines it under %s: netplan refuses both", d.Section)
	}
	var added []string
	for _, a := range d.Addresses {
		if !slices.Contains(own.Addresses, a) {
			added = append(added, a.String())
		}
	}
	if len(added) > 0 {
		m.effect(true, "adds %s to %s, for netplan adds address lists up", strings.Join(added, ", "), orNone(own.Addresses))
	}
	if d.DHCP4 != nil {
		over("dhcp4", word(*d.DHCP4), word(own.DHCP4 != nil && *own.DHCP4))
	}
	if d.DHCP6 != nil {
		over("dhcp6", word(*d.DHCP6), word(own.DHCP6 != nil && *own.DHCP6))
	}
	if d.LinkLocal != nil && own.LinkLocal != nil {
		over("link-local", bracket(d.LinkLocal), bracket(own.LinkLocal))
	}
	if d.MTU != nil {
		mine := "default"
		if own.MTU != nil {
			mine = fmt.Sprint(*own.MTU)
		}
		if own.MTU == nil && !later {
			m.effect(false, "sets mtu %d, which ours leaves alone", *d.MTU)
		} else {
			over("mtu", fmt.Sprint(*d.MTU), mine)
		}
	}
	if len(d.Others) > 0 {
		m.effect(false, "its %s stay in force", strings.Join(d.Others, ", "))
	}
	if len(m.Effects) == 0 {
		m.effect(false, "repeats what ours says")
	}
}

// otherID describes what two definitions of one interface do: netplan writes a file for each, and networkd uses
// the first by name.
func (m *Mention) otherID(d, own Definition) {
	switch {
	case strings.EqualFold(d.Renderer, "NetworkManager"):
		m.effect(true, "NetworkManager gets two profiles for it (%s and %s) and may choose either", d.ID, own.ID)
	case d.ID < own.ID:
		m.effect(true, "networkd takes 10-netplan-%s before 10-netplan-%s and ignores ours", d.ID, own.ID)
	default:
		m.effect(false, "networkd takes our 10-netplan-%s before 10-netplan-%s and ignores the latter here", own.ID, d.ID)
	}
	if d.SetName != "" && d.SetName != own.ID {
		m.effect(true, "renames it to %s, which ours does not name", d.SetName)
	}
}

// member describes what a virtual device made of the interface does to it.
func (m *Mention) member(d Definition, merged []Definition, t Twin) bool {
	by := ""
	for _, below := range merged {
		if below.names(t) != "" && d.uses(below.ID) {
			by = below.ID
		}
	}
	if by == "" && d.uses(t.NIC) {
		by = t.NIC // our own definition's id will be the interface's name
	}
	switch {
	case by == "":
		return false
	case d.Link == by:
		m.How = "as what " + d.ID + " lies on"
		m.effect(false, "%s stays on top of it", d.ID)
	default:
		m.How = "as a member of " + d.ID
		m.effect(true, "makes it a part of %s, and addresses on a part are not used", d.ID)
	}
	return true
}

// remedy removes the definition from its file. netplan's own command only knows files in /etc/netplan.
func remedy(d Definition) string {
	if path.Dir(d.Path) != "/etc/netplan" || strings.ContainsAny(d.ID, ".'\" \\") {
		return "sudoedit " + d.Path
	}
	return fmt.Sprintf("sudo netplan set --origin-hint %s %s.%s=NULL", strings.TrimSuffix(path.Base(d.Path), ".yaml"),
		d.Section, d.ID)
}

func word(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func bracket(words []string) string { return "[" + strings.Join(words, ", ") + "]" }

func orNone(addrs []netip.Prefix) string {
	if len(addrs) == 0 {
		return "none of ours"
	}
	var words []string
	for _, a := range addrs {
		words = append(words, a.String())
	}
	return strings.Join(words, ", ")
}
