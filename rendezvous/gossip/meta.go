package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"unicode/utf8"

	"github.com/google/uuid"
)

// Limits of what a node says about itself. memberlist panics above 512 bytes in total,
// and sends it in every message about the node.
const (
	maxMeta    = 512
	maxHost    = 64 // Linux's own limit
	maxVersion = 64
	maxHash    = 64
	// MaxFabric is how many fabric addresses a node advertises.
	MaxFabric = 8
)

// ErrMetaTooLarge: a field is over its limit.
var ErrMetaTooLarge = errors.New("gossip metadata is too large")

// Meta is what a node says about itself; everything else is fetched from it by RPC.
type Meta struct {
	ID      string // the node's UUID
	Host    string // the host's name, 1-64 letters, digits, '-', '_', '.'
	RPCPort uint16 // the node's single TLS port
	Epoch   uint64 // of the cluster's record, as the node knows it
	Version string // of sparkrun, "" if unknown
	// InventoryHash changes with the node's hardware facts; "" if unknown.
	InventoryHash string
	// Fabric are the addresses at which the node listens beside the management
	// one, on RPCPort, without zones; the rest is invalid. An array, so that two
	// Metas can be compared.
	Fabric [MaxFabric]netip.Addr
	// Leaving is set by Leave: memberlist does not tell its listeners whether a node left
	// or died.
	Leaving bool
}

// Fields are tag, length, value, in ascending order of tags. A reader skips tags that it
// does not know, so that a newer node can say more.
const (
	tagID = 1 + iota
	tagHost
	tagRPCPort
	tagEpoch
	tagVersion
	tagInventory
	tagLeaving
	tagFabric4 // 4 bytes each
	tagFabric6 // 16
)

// Encode returns the bytes to gossip, or an error that names the field.
func (m Meta) Encode() ([]byte, error) {
	id, err := uuid.Parse(m.ID)
	if err != nil || id.String() != m.ID {
		return nil, fmt.Errorf("encode gossip metadata: node id %q is not a UUID", m.ID)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("encode gossip metadata: %w", err)
	}
	var b []byte
	put := func(tag byte, v []byte) {
		if len(v) > 0 {
			b = append(append(b, tag, byte(len(v))), v...)
		}
	}
	put(tagID, id[:])
	put(tagHost, []byte(m.Host))
	put(tagRPCPort, binary.BigEndian.AppendUint16(nil, m.RPCPort))
	put(tagEpoch, binary.AppendUvarint(nil, m.Epoch))
	put(tagVersion, []byte(m.Version))
	put(tagInventory, []byte(m.InventoryHash))
	if m.Leaving {
		put(tagLeaving, []byte{1})
	}
	var fabric4, fabric6 []byte
	for _, a := range m.Fabric {
		if a.Is4() {
			fabric4 = append(fabric4, a.AsSlice()...)
		} else {
			fabric6 = append(fabric6, a.AsSlice()...)
		}
	}
	put(tagFabric4, fabric4)
	put(tagFabric6, fabric6)
	if len(b) > maxMeta {
		return nil, fmt.Errorf("encode gossip metadata: %w: %d bytes of %d", ErrMetaTooLarge, len(b), maxMeta)
	}
	return b, nil
}

// WithFabric returns m with the first MaxFabric of these addresses, IPv4 before IPv6, as
// in the encoding.
func (m Meta) WithFabric(addrs []netip.Addr) Meta {
	m.Fabric = [MaxFabric]netip.Addr{}
	i := 0
	for _, is4 := range []bool{true, false} {
		for _, a := range addrs {
			if a = a.Unmap().WithZone(""); a.IsValid() && a.Is4() == is4 && i < MaxFabric {
				m.Fabric[i] = a
				i++
			}
		}
	}
	return m
}

// FabricAddrs lists them.
func (m Meta) FabricAddrs() (out []netip.Addr) {
	for _, a := range m.Fabric {
		if a.IsValid() {
			out = append(out, a)
		}
	}
	return out
}

// addFabric reads addresses of one size; false if they are none.
func (m *Meta) addFabric(v []byte, size int) bool {
	at := len(m.FabricAddrs())
	if len(v)%size != 0 || len(v)/size > MaxFabric-at {
		return false
	}
	for ; len(v) > 0; v = v[size:] {
		a, _ := netip.AddrFromSlice(v[:size])
		if a.IsUnspecified() || a.IsMulticast() || a.Is4In6() {
			return false
		}
		m.Fabric[at] = a
		at++
	}
	return true
}

// check refuses what is too long or could be harmful in a terminal or log.
func (m Meta) check() error {
	switch {
	case len(m.Host) > maxHost:
		return fmt.Errorf("%w: host name of %d bytes, at most %d", ErrMetaTooLarge, len(m.Host), maxHost)
	case len(m.Version) > maxVersion:
		return fmt.Errorf("%w: version of %d bytes, at most %d", ErrMetaTooLarge, len(m.Version), maxVersion)
	case len(m.InventoryHash) > maxHash:
		return fmt.Errorf("%w: inventory hash of %d bytes, at most %d", ErrMetaTooLarge, len(m.InventoryHash), maxHash)
	case m.Host == "" || !hostName(m.Host):
		return fmt.Errorf("host name %q: only letters, digits, '-', '_' and '.' are allowed", m.Host)
	case !printable(m.Version) || !printable(m.InventoryHash):
		return errors.New("version or inventory hash is not plain text")
	}
	return nil
}

func hostName(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return s[0] != '-' && s[0] != '.' // must not look like an option or a hidden file
}

func printable(s string) bool {
	for _, c := range s {
		if c <= ' ' || c == utf8.RuneError || c > '~' {
			return false
		}
	}
	return true
}

// decodeMeta reads what a peer says about itself and applies the limits of Encode.
func decodeMeta(b []byte) (m Meta, err error) {
	if len(b) > maxMeta {
		return m, fmt.Errorf("decode gossip metadata: %w: %d bytes", ErrMetaTooLarge, len(b))
	}
	last := byte(0)
	for len(b) > 0 {
		if len(b) < 2 || len(b)-2 < int(b[1]) {
			return Meta{}, errors.New("decode gossip metadata: it is cut short")
		}
		tag, v := b[0], b[2:2+int(b[1])]
		b = b[2+int(b[1]):]
		if tag <= last {
			return Meta{}, fmt.Errorf("decode gossip metadata: field %d after field %d", tag, last)
		}
		last = tag
		bad := false
		switch tag {
		case tagID:
			id, err := uuid.FromBytes(v)
			bad, m.ID = err != nil, id.String()
		case tagHost:
			m.Host = string(v)
		case tagRPCPort:
			if bad = len(v) != 2; !bad {
				m.RPCPort = binary.BigEndian.Uint16(v)
			}
		case tagEpoch:
			var n int
			m.Epoch, n = binary.Uvarint(v)
			bad = n != len(v) || (n > 1 && v[n-1] == 0)
		case tagVersion:
			m.Version = string(v)
		case tagInventory:
			m.InventoryHash = string(v)
		case tagLeaving:
			bad, m.Leaving = len(v) != 1 || v[0] != 1, true
		case tagFabric4:
			bad = !m.addFabric(v, 4)
		case tagFabric6:
			bad = !m.addFabric(v, 16)
		}
		if bad {
			return Meta{}, fmt.Errorf("decode gossip metadata: field %d: bad value", tag)
		}
	}
	if m.ID == "" {
		return Meta{}, errors.New("decode gossip metadata: it has no node id")
	}
	if err := m.check(); err != nil {
		return Meta{}, fmt.Errorf("decode gossip metadata: %w", err)
	}
	return m, nil
}
