// Package filter keeps other hosts from the ports that ranks listen on: a torch store, Ray
// or vLLM executes what it receives there. It decides which nftables rules a node's jobs
// need, and writes them as one table of its own.
//
// It must not touch any other table, and must not use connection tracking: a job's traffic
// would pay for that with every packet. So it looks only at the first segment of a TCP
// connection.
package filter

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// TableName is the name of the table, of family inet.
const TableName = "sparkrun"

// errNoSocketMatch: the kernel was built without CONFIG_NFT_SOCKET, or cannot load it.
var errNoSocketMatch = errors.New("this kernel cannot tell sockets by their cgroup (nft_socket), so that of all " +
	"their ports only the rendezvous port is guarded")

// Table is the table of the network namespace that it is first used in; the zero value is
// ready. It keeps its connection to the kernel: when such a one is closed, nf_tables waits
// for what it has freed (nft_rcv_nl_event, net/netfilter/nf_tables_api.c), 5 to 15 ms of
// every launch.
type Table struct {
	mu   sync.Mutex
	conn *nftables.Conn
	opts []nftables.ConnOption // of tests
}

// Apply sets the table to what the jobs want, in one transaction: a connection meets the
// old rules or the new ones. Without jobs the table is removed. An error says what is not
// guarded.
func (t *Table) Apply(jobs map[launcher.Key]launcher.Filter) error {
	guards, err := guardsOf(jobs)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	err = t.write(guards)
	byCgroup := func(g guard) bool { return g.cgroup != nil }
	if err == nil || !slices.ContainsFunc(guards, byCgroup) || errors.Is(err, unix.EPERM) {
		return explained(err)
	}
	for i := range guards {
		guards[i].cgroup = nil
	}
	if again := t.write(guards); again != nil {
		return explained(err)
	}
	return fmt.Errorf("%w: %w", errNoSocketMatch, err)
}

func explained(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("set packet filter: %w: the agent needs CAP_NET_ADMIN", err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		return fmt.Errorf("set packet filter: %w: this kernel has no nftables (CONFIG_NF_TABLES_INET)", err)
	}
	return fmt.Errorf("set packet filter: %w", err)
}

// containersSuffix distinguishes the chain of an attempt's containers from that of its
// ranks.
const containersSuffix = ".boxes"

// guard is one job's part of the table.
type guard struct {
	name      string  // of the attempt, and of its chain
	cgroup    *cgroup // nil: by ports
	ports     []uint16
	members   addresses
	published []launcher.Ports
	served    []launcher.Ports // open to the cluster's members
	cluster   addresses
}

// addresses are those of IPv4 and those of IPv6, sorted, each once.
type addresses [2][]netip.Addr

func byFamily(addrs []netip.Addr) (out addresses) {
	for _, a := range addrs {
		if a = a.Unmap().WithZone(""); a.Is4() {
			out[0] = append(out[0], a)
		} else if a.Is6() {
			out[1] = append(out[1], a)
		}
	}
	for i := range out {
		slices.SortStableFunc(out[i], netip.Addr.Compare)
		out[i] = slices.Compact(out[i])
	}
	return out
}

// cgroup identifies a group for the kernel: its id, and its depth, the root being 0.
type cgroup struct {
	id    uint64
	level uint32
}

func guardsOf(jobs map[launcher.Key]launcher.Filter) ([]guard, error) {
	var out []guard
	for key, f := range jobs {
		g := guard{name: key.String(), ports: f.Ports, published: f.Published, served: f.Served,
			members: byFamily(f.Admits()), cluster: byFamily(f.Serves())}
		if f.Cgroup == "" {
			out = append(out, g)
		}
		for i, path := range []string{f.Cgroup, f.Containers} {
			if path == "" {
				continue
			}
			cg, err := lookAt(path)
			if errors.Is(err, os.ErrNotExist) {
				continue // its last process has gone
			}
			if err != nil {
				return nil, err
			}
			one := g
			one.cgroup = cg
			if i == 1 {
				one.name += containersSuffix
			}
			out = append(out, one)
		}
	}
	slices.SortStableFunc(out, func(x, y guard) int { return strings.Compare(x.name, y.name) })
	return out, nil
}

// lookAt finds a group's id, which is its inode number (since Linux 5.5), and its depth
// below the root of its tree.
func lookAt(path string) (*cgroup, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("look at cgroup: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("look at cgroup %s: %w", path, err)
	}
	level := uint32(0)
	for dir := filepath.Clean(path); isGroup(filepath.Dir(dir)); dir = filepath.Dir(dir) {
		level++
	}
	if !fi.IsDir() || level == 0 {
		return nil, fmt.Errorf("look at cgroup %s: %w: want a group of cgroup v2 below the root", path, launcher.ErrInvalid)
	}
	return &cgroup{id: st.Ino, level: level}, nil
}

func isGroup(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// Keys lists the attempts that have rules in the table; none if there is no table.
func Keys(opts ...nftables.ConnOption) ([]string, error) {
	c, err := nftables.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("read packet filter: %w", err)
	}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("read packet filter: %w", err)
	}
	found := map[string]bool{}
	for _, ch := range chains {
		if ch.Table.Name == TableName && ch.Name != entryChain {
			found[strings.TrimSuffix(ch.Name, containersSuffix)] = true
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}
