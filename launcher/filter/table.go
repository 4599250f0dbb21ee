package filter

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// entryChain is the chain for incoming packets.
const entryChain = "input"

// reg is the one register that the rules use.
const reg = unix.NFT_REG_1

// write replaces the table: for each job a chain that accepts its own connections and drops
// the rest, and before them
//
//	iifname "lo" accept
//	meta l4proto != tcp accept
//	tcp flags & (syn | ack) != syn accept
//	socket cgroupv2 level L ID goto JOB.GEN
func (t *Table) write(guards []guard) (err error) {
	if t.conn == nil {
		if t.conn, err = nftables.New(append(t.opts, nftables.AsLasting(), nftables.WithSockOptions(roomy))...); err != nil {
			return err
		}
	}
	c := t.conn
	defer func() {
		if err != nil { // answers may be left in it
			_ = c.CloseLasting()
			t.conn = nil
		}
	}()
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: TableName}
	c.AddTable(table) // so that deleting it cannot fail
	c.DelTable(table)
	if len(guards) > 0 {
		w := writer{c, c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName})}
		if err := w.all(guards); err != nil {
			return err
		}
	}
	return c.Flush()
}

// A transaction is one message to the kernel, which answers each of its commands before the first answer is read: the
// 208 KB that a socket has by default suffice for the answers of some 25 jobs. The kernel takes this memory only while
// something is in it.
const (
	sendRoom   = 16 << 20
	answerRoom = 128 << 20
)

// roomy gives a connection buffers for thousands of jobs. Without CAP_NET_ADMIN it has what net.core.rmem_max and
// wmem_max allow.
func roomy(c *netlink.Conn) error {
	return errors.Join(c.SetWriteBuffer(sendRoom), c.SetReadBuffer(answerRoom))
}

type writer struct {
	c     *nftables.Conn
	table *nftables.Table
}

func (w writer) all(guards []guard) error {
	policy := nftables.ChainPolicyAccept
	entry := w.c.AddChain(&nftables.Chain{Name: entryChain, Table: w.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookInput, Priority: nftables.ChainPriorityFilter, Policy: &policy})
	w.rule(entry, meta(expr.MetaKeyIIFNAME), is(interfaceName("lo")), accept())
	w.rule(entry, meta(expr.MetaKeyL4PROTO), isNot(unix.IPPROTO_TCP), accept())
	// IPv6 is reassembled after this hook, but Linux drops a first fragment that lacks a
	// part of TCP's header (ipv6_frag_rcv, since 5.10): the flags are there.
	const flags, syn, ack = 13, 0x02, 0x10 // RFC 9293, section 3.1
	w.rule(entry, &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: 1, Mask: []byte{syn | ack}, Xor: []byte{0}},
		isNot(syn), accept())
	for _, g := range guards {
		chain, err := w.job(g)
		if err != nil {
			return err
		}
		jump := &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain.Name}
		if g.cgroup != nil {
			w.rule(entry, &expr.Socket{Key: expr.SocketKeyCgroupv2, Level: g.cgroup.level, Register: reg},
				is(binaryutil.NativeEndian.PutUint64(g.cgroup.id)), jump)
			continue // a process outside the job may listen on such a port
		}
		for _, p := range g.ports {
			w.rule(entry, destinationPort(), is(binaryutil.BigEndian.PutUint16(p)), jump)
		}
	}
	return nil
}

// families are IPv4 and IPv6, with the place and the size of a packet's source address (RFC 791, RFC 8200).
var families = [2]struct {
	suffix        string
	proto         byte
	key           nftables.SetDatatype
	offset, bytes uint32
}{
	{"-4", unix.NFPROTO_IPV4, nftables.TypeIPAddr, 12, 4},
	{"-6", unix.NFPROTO_IPV6, nftables.TypeIP6Addr, 8, 16},
}

// to matches packets to a range of ports.
func to(p launcher.Ports) []expr.Any {
	return []expr.Any{destinationPort(), &expr.Range{Op: expr.CmpOpEq, Register: reg,
		FromData: binaryutil.BigEndian.PutUint16(p.First), ToData: binaryutil.BigEndian.PutUint16(p.Last)}}
}

// job makes the chain of one job.
func (w writer) job(g guard) (*nftables.Chain, error) {
	chain := w.c.AddChain(&nftables.Chain{Name: g.name, Table: w.table})
	from := func(all addresses, suffix string, first ...expr.Any) error {
		for i, family := range families {
			if len(all[i]) == 0 {
				continue
			}
			set := &nftables.Set{Table: w.table, Name: g.name + suffix + family.suffix, KeyType: family.key}
			if err := w.c.AddSet(set, elements(all[i])); err != nil {
				return err
			}
			rules := slices.Concat([]expr.Any{meta(expr.MetaKeyNFPROTO), is([]byte{family.proto})}, first)
			w.rule(chain, append(rules,
				&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: family.offset, Len: family.bytes},
				&expr.Lookup{SourceRegister: reg, SetName: set.Name, SetID: set.ID}, accept())...)
		}
		return nil
	}
	if err := from(g.members, ""); err != nil {
		return nil, err
	}
	for i, p := range g.served {
		if err := from(g.cluster, fmt.Sprintf("-served%d", i), to(p)...); err != nil {
			return nil, err
		}
	}
	for _, p := range g.published {
		w.rule(chain, append(to(p), accept())...)
	}
	w.rule(chain, &expr.Counter{}, drop())
	return chain, nil
}

func (w writer) rule(chain *nftables.Chain, exprs ...expr.Any) {
	w.c.AddRule(&nftables.Rule{Table: w.table, Chain: chain, Exprs: exprs})
}

func elements(addrs []netip.Addr) []nftables.SetElement {
	var out []nftables.SetElement
	for _, a := range addrs {
		out = append(out, nftables.SetElement{Key: a.AsSlice()})
	}
	return out
}

func meta(key expr.MetaKey) *expr.Meta { return &expr.Meta{Key: key, Register: reg} }

func is(data []byte) *expr.Cmp { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data} }

func isNot(b byte) *expr.Cmp {
	return &expr.Cmp{Op: expr.CmpOpNeq, Register: reg, Data: []byte{b}}
}

func accept() *expr.Verdict { return &expr.Verdict{Kind: expr.VerdictAccept} }
func drop() *expr.Verdict   { return &expr.Verdict{Kind: expr.VerdictDrop} }

func destinationPort() *expr.Payload {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

// interfaceName is an interface's name as the kernel compares it: padded to full length.
func interfaceName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}
