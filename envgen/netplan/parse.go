package netplan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds a netplan file, in bytes: real ones have some hundreds.
const maxFile = 1 << 20

// Source is a netplan file as it lies on the disk.
type Source struct {
	Path string
	Data []byte
}

// Document is what one netplan file says of interfaces. Absent facts are nil or empty.
type Document struct {
	Path string
	// Renderer is the file's own, for all its definitions: networkd or NetworkManager.
	Renderer    string
	Definitions []Definition
}

// Definition is one entry below ethernets, bonds, vlans, ...
type Definition struct {
	Path string
	// Line is where it begins, from 1.
	Line int
	// Section is the kind of device: ethernets, wifis, bonds, bridges, vlans, ...
	Section string
	// ID is the interface's name where there is no match.
	ID       string
	Renderer string
	Match    *Match
	SetName  string
	DHCP4    *bool
	DHCP6    *bool
	// LinkLocal is nil where it is absent, and empty where it is set to none.
	LinkLocal []string
	// MTU in bytes.
	MTU       *int
	Addresses []netip.Prefix
	// Members are the interfaces of a bond, bridge or VRF; Link is the interface below
	// a VLAN.
	Members []string
	Link    string
	// Others are the keys that this package does not interpret: routes, nameservers,
	// ...
	Others []string
}

// Match chooses interfaces by their properties; all that are set must hold. Empty, it matches
// all.
type Match struct {
	// Name is a glob.
	Name string
	MAC  string
	// Drivers are globs, one of which must match.
	Drivers []string
}

// Parse reads one netplan file as netplan does: of several YAML documents the first, and a repeated key is merged
// into the first. Only YAML aliases, which no netplan file has, are refused. Unknown keys are listed in Others,
// since each version of netplan adds some.
func Parse(src Source) (Document, error) {
	doc := Document{Path: src.Path}
	if len(src.Data) > maxFile {
		return doc, fmt.Errorf("parse %s: %d bytes, more than %d", src.Path, len(src.Data), maxFile)
	}
	var root yaml.Node
	err := yaml.NewDecoder(bytes.NewReader(src.Data)).Decode(&root)
	if errors.Is(err, io.EOF) {
		return doc, nil // only comments
	}
	if err != nil {
		return doc, fmt.Errorf("parse %s: %w", src.Path, err)
	}
	r := reader{path: src.Path}
	if err := r.plain(&root, 0); err != nil {
		return doc, err
	}
	if len(root.Content) == 0 || isNull(root.Content[0]) {
		return doc, nil
	}
	err = r.pairs(root.Content[0], func(key string, value *yaml.Node) error {
		if key != "network" {
			return r.fail(value, "%q beside network: netplan refuses it", key)
		}
		return r.network(value, &doc)
	})
	return doc, err
}

// reader walks the nodes of one file.
type reader struct {
	path  string
	nodes int
}

func (r reader) fail(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("parse %s: line %d: %s", r.path, n.Line, fmt.Sprintf(format, args...))
}

// maxDepth bounds the nesting (netplan's own deepest value is at 8), maxNodes the number of values: merging takes
// the square of it.
const (
	maxDepth = 32
	maxNodes = 20_000
)

// plain refuses aliases, so that no file is larger than it looks; netplan files have none.
func (r *reader) plain(n *yaml.Node, depth int) error {
	if r.nodes++; r.nodes > maxNodes {
		return r.fail(n, "more than %d values", maxNodes)
	}
	if n.Kind == yaml.AliasNode {
		return r.fail(n, "an alias (*%s): write the value out", n.Value)
	}
	if depth > maxDepth {
		return r.fail(n, "nested deeper than %d", maxDepth)
	}
	for _, c := range n.Content {
		if err := r.plain(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func (r reader) pairs(n *yaml.Node, each func(key string, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return r.fail(n, "want a mapping (check the indentation)")
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind != yaml.ScalarNode {
			return r.fail(n.Content[i], "want a plain key")
		}
		if err := each(n.Content[i].Value, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func (r reader) scalar(n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode {
		return "", r.fail(n, "want one value")
	}
	return n.Value, nil
}

func (r reader) list(n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, r.fail(n, "want a list")
	}
	out := []string{} // empty is not absent
	for _, c := range n.Content {
		s, err := r.scalar(c)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

func (r reader) network(n *yaml.Node, doc *Document) error {
	return r.pairs(n, func(key string, value *yaml.Node) error {
		if key == "renderer" {
			var err error
			doc.Renderer, err = r.scalar(value)
			return err
		}
		if value.Kind != yaml.MappingNode || key == "openvswitch" {
			return nil // version, and anything else that is no list of devices
		}
		return r.pairs(value, func(id string, def *yaml.Node) error {
			d := Definition{Path: r.path, Line: def.Line, Section: key, ID: id}
			if key == "renderer" || def.Kind != yaml.MappingNode {
				if key == "ethernets" {
					return r.fail(def, "%s: want a mapping (check the indentation)", id)
				}
				return nil
			}
			// A block mapping's line is that of its first key; the reader of a message wants the
			// line above.
			if def.Style&yaml.FlowStyle == 0 {
				d.Line = max(1, lineOf(value, def))
			}
			if err := r.definition(def, &d); err != nil {
				return err
			}
			doc.Definitions = append(doc.Definitions, d)
			return nil
		})
	})
}

// lineOf returns the line of the key whose value is def.
func lineOf(mapping, def *yaml.Node) int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i+1] == def {
			return mapping.Content[i].Line
		}
	}
	return def.Line
}

func (r reader) definition(n *yaml.Node, d *Definition) error {
	return r.pairs(n, func(key string, value *yaml.Node) (err error) {
		switch key {
		case "renderer":
			d.Renderer, err = r.scalar(value)
		case "set-name":
			d.SetName, err = r.scalar(value)
		case "link":
			d.Link, err = r.scalar(value)
		case "interfaces":
			var members []string
			members, err = r.list(value)
			d.Members = append(d.Members, members...)
		case "link-local":
			d.LinkLocal, err = r.list(value)
		case "dhcp4":
			d.DHCP4, err = r.truth(value)
		case "dhcp6":
			d.DHCP6, err = r.truth(value)
		case "mtu":
			var s string
			if s, err = r.scalar(value); err == nil {
				var mtu uint64
				if mtu, err = strconv.ParseUint(s, 10, 31); err != nil {
					return r.fail(value, "mtu %q: want a number", s)
				}
				d.MTU = new(int(mtu))
			}
		case "match":
			err = r.match(value, d)
		case "addresses":
			err = r.addresses(value, d)
		default:
			if !slices.Contains(d.Others, key) {
				d.Others = append(d.Others, key)
			}
		}
		return err
	})
}

// truth reads what netplan accepts as a boolean: YAML 1.1's words in any case.
func (r reader) truth(n *yaml.Node) (*bool, error) {
	s, err := r.scalar(n)
	if err != nil {
		return nil, err
	}
	switch strings.ToLower(s) {
	case "true", "on", "yes", "y":
		return new(true), nil
	case "false", "off", "no", "n":
		return new(false), nil
	}
	return nil, r.fail(n, "%q: want yes or no", s)
}

func (r reader) match(n *yaml.Node, d *Definition) error {
	if d.Match == nil {
		d.Match = &Match{}
	}
	return r.pairs(n, func(key string, value *yaml.Node) (err error) {
		switch key {
		case "name":
			d.Match.Name, err = r.scalar(value)
		case "macaddress":
			d.Match.MAC, err = r.scalar(value)
		case "driver":
			if value.Kind == yaml.SequenceNode {
				d.Match.Drivers, err = r.list(value)
				return err
			}
			var s string
			s, err = r.scalar(value)
			d.Match.Drivers = []string{s}
		}
		return err
	})
}

// addresses reads both forms: "10.0.0.1/24", and {"10.0.0.1/24": {label: x}}.
func (r reader) addresses(n *yaml.Node, d *Definition) error {
	if n.Kind != yaml.SequenceNode {
		return r.fail(n, "addresses: want a list")
	}
	for _, c := range n.Content {
		item := c
		if c.Kind == yaml.MappingNode && len(c.Content) == 2 {
			item = c.Content[0]
		}
		s, err := r.scalar(item)
		if err != nil {
			return err
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return r.fail(item, "address %q: want X.X.X.X/NN or X:X::X/NN", s)
		}
		if !slices.Contains(d.Addresses, p) {
			d.Addresses = append(d.Addresses, p)
		}
	}
	return nil
}
