package agent

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sparkrun/sparkrun/launcher"
)

// fakeFilter stands in for nftables.
type fakeFilter struct {
	mu   sync.Mutex
	err  error
	jobs map[launcher.Key]launcher.Filter // as last told
}

func (f *fakeFilter) apply(jobs map[launcher.Key]launcher.Filter) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.jobs = jobs
	return f.err
}

func (f *fakeFilter) now() map[launcher.Key]launcher.Filter {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.jobs
}

// The filter is there before the ranks, in the next incarnation of the agent, and gone
// with the ranks.
func TestFilterLastsAsLongAsItsRanks(t *testing.T) {
	f := &fakeFilter{}
	n := newNode(t, func(c *Config) { c.Filter = f.apply })
	as := n.as("sleep 600")
	as.Members = []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")}
	as.Spec.Publish = []launcher.Ports{{First: 8000, Last: 8001}}
	n.prepare(as)
	ev := n.hear(launcher.Prepared)
	if ev.Text != "" && !strings.Contains(ev.Text, "cgroup v2") {
		t.Errorf("warned: %s", ev.Text)
	}
	want := map[launcher.Key]launcher.Filter{key: {Members: as.Members, Published: as.Spec.Publish}}
	same := func(when string) {
		t.Helper()
		if diff := cmp.Diff(want, f.now(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
			cmpopts.IgnoreFields(launcher.Filter{}, "Cgroup", "Ports")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	same("prepared")
	if cg := f.now()[key].Cgroup; cg != "" {
		if _, err := os.Stat(cg); err != nil {
			t.Errorf("its cgroup: %v", err)
		}
	}
	n.start(key, ev.Port)
	n.hear(launcher.Started)
	n.drop()
	f.jobs = nil
	n.open()
	same("in the next incarnation")
	n.end(key, 0)
	n.hear(launcher.Ended)
	if left := f.now(); len(left) > 0 {
		t.Errorf("after its end: %v", left)
	}
}

// A member that gets another address, before the attempt is prepared or later, is let in, in the agent's next
// incarnation as well; one that has no part in the job is not.
func TestFilterFollowsItsNodes(t *testing.T) {
	f := &fakeFilter{}
	n := newNode(t, func(c *Config) { c.Filter = f.apply })
	addr := netip.MustParseAddr
	type addrs = map[launcher.NodeID][]netip.Addr
	n.a.Readdress(addrs{"b": {addr("10.0.0.7")}, "c": {addr("10.0.0.3")}})
	as := n.as("sleep 600")
	as.Members, as.Nodes = []netip.Addr{addr("10.0.0.1"), addr("10.0.0.2")}, []launcher.NodeID{"a", "b"}
	n.prepare(as)
	ev := n.hear(launcher.Prepared)
	admits := func(when string, want ...netip.Addr) {
		t.Helper()
		if diff := cmp.Diff(append(as.Members[:2:2], want...), f.now()[key].Admits(),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	admits("prepared", addr("10.0.0.7"))
	n.start(key, ev.Port)
	n.hear(launcher.Started)
	n.a.Readdress(addrs{"a": {addr("10.0.0.1"), addr("192.168.0.1")}, "b": {addr("10.0.0.8")}, "c": {addr("10.0.0.4")}})
	admits("running", addr("192.168.0.1"), addr("10.0.0.8"))
	n.drop()
	f.jobs = nil
	n.open()
	admits("in the next incarnation", addr("192.168.0.1"), addr("10.0.0.8"))
	n.end(key, 0)
	n.hear(launcher.Ended)
}

// What cannot be filtered is told, and refuses nothing.
func TestFilterWarns(t *testing.T) {
	f := &fakeFilter{err: errors.New("no nftables here")}
	n := newNode(t, func(c *Config) { c.Filter = f.apply })
	as := n.as("true")
	as.Members = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	n.prepare(as)
	if ev := n.hear(launcher.Prepared); !strings.Contains(ev.Text, "other hosts may reach") ||
		!strings.Contains(ev.Text, "no nftables here") {
		t.Errorf("told: %q", ev.Text)
	}
}
