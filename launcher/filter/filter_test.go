package filter

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// The test binary is also a rank that listens: on the addresses that it is given.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "listen" {
		for _, addr := range os.Args[2:] {
			l, err := net.Listen("tcp", addr)
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			go answer(l)
		}
		fmt.Println("listening")
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
		return
	}
	os.Exit(m.Run())
}

func answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = c.Write([]byte("hi\n"))
		c.Close()
	}
}

// wire is two network namespaces on one cable: the node's, and one with a member
// of the job and a stranger in it, by their addresses.
type wire struct {
	t          testing.TB
	node, peer string // names of namespaces
	cgroups    string
	opt        nftables.ConnOption
	table      Table
}

const (
	nodeAddr, member4, stranger4 = "10.99.0.1", "10.99.0.2", "10.99.0.3"
	nodeAddr6, member6, strange6 = "fd99::1", "fd99::2", "fd99::3"
)

func newWire(t testing.TB) *wire {
	t.Helper()
	w := &wire{t: t, node: fmt.Sprintf("sprk-f%d-n", os.Getpid()), peer: fmt.Sprintf("sprk-f%d-p", os.Getpid())}
	for _, ns := range []string{w.node, w.peer} {
		w.ip("netns", "add", ns)
		t.Cleanup(func() { w.ip("netns", "del", ns) })
		w.ip("-n", ns, "link", "set", "lo", "up")
	}
	w.ip("link", "add", "eth0", "netns", w.node, "type", "veth", "peer", "name", "eth0", "netns", w.peer)
	for _, a := range []string{nodeAddr + "/24", nodeAddr6 + "/64"} {
		w.ip("-n", w.node, "addr", "add", a, "dev", "eth0", "nodad")
	}
	for _, a := range []string{member4 + "/24", stranger4 + "/24", member6 + "/64", strange6 + "/64"} {
		w.ip("-n", w.peer, "addr", "add", a, "dev", "eth0", "nodad")
	}
	w.ip("-n", w.node, "link", "set", "eth0", "up")
	w.ip("-n", w.peer, "link", "set", "eth0", "up")
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if isGroup(root) {
			w.cgroups = filepath.Join(root, w.node)
		}
	}
	if w.cgroups == "" {
		t.Fatal("no cgroup v2 is mounted below /sys/fs/cgroup")
	}
	fd, err := os.Open("/run/netns/" + w.node)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fd.Close() })
	w.opt = nftables.WithNetNSFd(int(fd.Fd()))
	w.table.opts = []nftables.ConnOption{w.opt}
	t.Cleanup(func() {
		if w.table.conn != nil {
			_ = w.table.conn.CloseLasting()
		}
	})
	return w
}

func (w *wire) ip(args ...string) {
	w.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		w.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// rank listens on the node, in a cgroup of its own, whose path it gives.
func (w *wire) rank(name string, ports ...string) string {
	w.t.Helper()
	path := filepath.Join(w.cgroups, name, "ranks")
	if err := os.MkdirAll(path, 0o755); err != nil {
		w.t.Fatal(err)
	}
	dir, err := os.Open(path)
	if err != nil {
		w.t.Fatal(err)
	}
	defer dir.Close()
	args := []string{"netns", "exec", w.node, os.Args[0], "listen"}
	for _, p := range ports {
		args = append(args, ":"+p) // [::]: both families, as torch's store
	}
	cmd := exec.Command("ip", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	in, err := cmd.StdinPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
		for dir := path; dir != filepath.Dir(w.cgroups); dir = filepath.Dir(dir) {
			_ = os.Remove(dir) // those above while they are empty
		}
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "listening\n" {
		w.t.Fatalf("rank %s: %q, %v", name, line, err)
	}
	return path
}

// in runs f in a namespace, in a thread that ends with it.
func (w *wire) in(ns string, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		fd, err := os.Open("/run/netns/" + ns)
		if err == nil {
			err = unix.Setns(int(fd.Fd()), unix.CLONE_NEWNET)
			fd.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// refused is how long an answer is waited for that must not come: a cable in
// memory carries one in a fraction of a millisecond.
const refused = 700 * time.Millisecond

// reaches tells whether somebody at an address gets an answer of the node's port.
func (w *wire) reaches(ns, from, to, port string) bool {
	w.t.Helper()
	got := ""
	err := w.in(ns, func() error {
		d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0)),
			Timeout: refused}
		c, err := d.DialContext(context.Background(), "tcp", net.JoinHostPort(to, port))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(30 * time.Second))
		b, err := io.ReadAll(c)
		got = string(b)
		return err
	})
	if slow := net.Error(nil); err != nil && !(errors.As(err, &slow) && slow.Timeout()) {
		w.t.Fatalf("%s to port %s: %v; a packet that is dropped is answered by nobody", from, port, err)
	}
	return got == "hi\n"
}

func key(job string) launcher.Key { return launcher.Key{Job: launcher.JobID(job), Generation: 1} }

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func (w *wire) apply(jobs map[launcher.Key]launcher.Filter) {
	w.t.Helper()
	if err := w.table.Apply(jobs); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wire) keys() []string {
	w.t.Helper()
	got, err := Keys(w.opt)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// expect compares who gets an answer of which port.
func (w *wire) expect(what string, port string, want map[string]bool) {
	w.t.Helper()
	got := map[string]bool{}
	for from, reaches := range want {
		to, ns := nodeAddr, w.peer
		if strings.Contains(from, ":") {
			to = nodeAddr6
		}
		if from == nodeAddr || from == nodeAddr6 || netip.MustParseAddr(from).IsLoopback() {
			ns = w.node
		}
		got[from] = w.reaches(ns, from, to, port)
		for until := time.Now().Add(30 * time.Second); reaches && !got[from] && time.Now().Before(until); {
			got[from] = w.reaches(ns, from, to, port) // a cable that was just made may lose the first ones
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Errorf("%s: who reaches port %s (-want +got):\n%s", what, port, diff)
	}
}

func TestFilter(t *testing.T) {
	w := newWire(t)
	first, second := w.rank("first", "29500", "8000"), w.rank("second", "29501")
	w.rank("other", "7777")
	all := map[string]bool{nodeAddr: true, nodeAddr6: true, member4: true, member6: true, stranger4: true, strange6: true}
	own := map[string]bool{nodeAddr: true, nodeAddr6: true, member4: true, member6: true, stranger4: false,
		strange6: false}
	w.expect("without a filter", "29500", all)

	// Somebody else's table stays as it is.
	c, err := nftables.New(w.opt)
	if err != nil {
		t.Fatal(err)
	}
	c.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "docker"})
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}

	jobs := map[launcher.Key]launcher.Filter{
		key("first"): {Cgroup: first, Members: addrs(nodeAddr, nodeAddr6, member4, member6),
			Published: []launcher.Ports{{First: 8000, Last: 8009}}},
	}
	w.apply(jobs)
	w.expect("a member's", "29500", own)
	w.expect("published", "8000", all)
	w.expect("another job's, without a filter", "29501", all)
	w.expect("no job's", "7777", all)

	jobs[key("second")] = launcher.Filter{Cgroup: second, Members: addrs(nodeAddr)}
	w.apply(jobs)
	w.expect("of the second job, alone on its node", "29501",
		map[string]bool{nodeAddr: true, nodeAddr6: true, member4: false, member6: false, stranger4: false})
	w.expect("of the first, as before", "29500", own)
	if diff := cmp.Diff([]string{"first.1", "second.1"}, w.keys()); diff != "" {
		t.Error(diff)
	}

	// A service's port is open to the cluster's members, of which those of the job are some.
	jobs[key("first")] = launcher.Filter{Cgroup: first, Members: addrs(nodeAddr, nodeAddr6),
		Served: []launcher.Ports{{First: 8000, Last: 8000}}, Cluster: map[launcher.NodeID][]netip.Addr{"b": addrs(member4, member6)}}
	w.apply(jobs)
	w.expect("served", "8000", own)
	w.expect("beside it", "29500", map[string]bool{nodeAddr: true, nodeAddr6: true, member4: false, member6: false,
		stranger4: false, strange6: false})

	delete(jobs, key("first"))
	w.apply(jobs)
	w.expect("after the first job's end", "29500", all)
	kept := w.table.conn
	w.apply(nil)
	w.apply(nil) // nothing to remove
	if kept == nil || w.table.conn != kept {
		t.Error("each transaction has a connection of its own, whose end the kernel takes its time for")
	}
	tables, err := c.ListTables()
	if err != nil || len(tables) != 1 || tables[0].Name != "docker" {
		t.Errorf("tables after the last job's end: %v, %v", tables, err)
	}
}

// Without cgroup v2 the ports that are known are guarded, and no others.
func TestFilterByPorts(t *testing.T) {
	w := newWire(t)
	w.rank("first", "29500", "8000")
	w.apply(map[launcher.Key]launcher.Filter{key("first"): {Ports: []uint16{29500}, Members: addrs(member4)}})
	w.expect("known", "29500", map[string]bool{nodeAddr: true, member4: true, stranger4: false, strange6: false})
	w.expect("unknown", "8000", map[string]bool{stranger4: true})
}

// Hundreds of jobs are guarded as well as one: their rules, and what the kernel answers to
// each, are more than a socket takes by default.
func TestFilterOfManyJobs(t *testing.T) {
	w := newWire(t)
	first := w.rank("first", "29500", "8000")
	jobs := map[launcher.Key]launcher.Filter{key("first"): {Cgroup: first, Members: addrs(member4)}}
	for i := range 300 {
		jobs[key(fmt.Sprintf("other-%03d", i))] = launcher.Filter{Ports: []uint16{uint16(20000 + i)},
			Members: addrs(member4, member6)}
	}
	w.apply(jobs)
	if n := len(w.keys()); n != len(jobs) {
		t.Errorf("%d of %d jobs are guarded", n, len(jobs))
	}
	w.expect("of the first job, by its cgroup", "8000", map[string]bool{member4: true, stranger4: false})
}

// A job whose cgroup is gone has no processes: the others' rules are made.
func TestFilterOfGoneCgroup(t *testing.T) {
	w := newWire(t)
	first := w.rank("first", "29500")
	w.apply(map[launcher.Key]launcher.Filter{
		key("gone"):  {Cgroup: filepath.Join(w.cgroups, "gone"), Members: addrs(member4)},
		key("first"): {Cgroup: first, Members: addrs(member4)},
	})
	w.expect("of the living job", "29500", map[string]bool{member4: true, stranger4: false})
	if diff := cmp.Diff([]string{"first.1"}, w.keys()); diff != "" {
		t.Error(diff)
	}
	if _, err := lookAt("/proc"); !errors.Is(err, launcher.ErrInvalid) {
		t.Errorf("a folder that is no cgroup: %v", err)
	}
}

// Who may not change the filter is told so.
func TestFilterDenied(t *testing.T) {
	w := newWire(t)
	err := w.in(w.node, func() error { // without CAP_NET_ADMIN, in this thread
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			return err
		}
		return new(Table).Apply(map[launcher.Key]launcher.Filter{key("first"): {Ports: []uint16{29500}}})
	})
	if !errors.Is(err, unix.EPERM) || !strings.Contains(fmt.Sprint(err), "CAP_NET_ADMIN") {
		t.Errorf("got %v", err)
	}
}
