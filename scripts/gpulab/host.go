package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Spark's interfaces as a host has them: management, and the twins of port 0.
const (
	mgmtNIC = "enP7s7"
	primary = "enp1s0f0np0"
	twin    = "enP2p1s0f0np0"
)

// nicOf is one interface of host number i, from 1.
type nicOf struct {
	name   string
	bridge string
	mtu    int
	subnet byte // of 192.168/16; 0: management, 172.30.0/24
	mac    byte
}

var nics = []nicOf{
	{mgmtNIC, "br-mgmt", 1500, 0, 0},
	{primary, "br-fabric", 9000, 100, 1},
	{twin, "br-fabric", 9000, 101, 2},
}

func (n nicOf) addr(host int) string {
	if n.subnet == 0 {
		return fmt.Sprintf("172.30.0.%d", 10+host)
	}
	return fmt.Sprintf("192.168.%d.%d", n.subnet, 10+host)
}

func (n nicOf) hwaddr(host int) []byte { return []byte{0x02, 0x5a, 0x52, 0, byte(host), n.mac} }

// hostMain is PID 1 of a host, in namespaces that its parent has made: NUMBER, its
// folder, its GPU's device node or "none", its cgroup or "none". It says "ready" twice:
// when its view of the files is made, and, told "go", when its network is.
func hostMain(args []string) error {
	if len(args) != 4 {
		return errors.New("usage: gpulab host NUMBER DIR GPU CGROUP")
	}
	number, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	dir, gpu, cgroup := args[1], args[2], args[3]
	if err := view(number, dir, gpu, cgroup); err != nil {
		return fmt.Errorf("make the view of host %d: %w", number, err)
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return fmt.Errorf("wait for the network: %w", err)
	}
	if err := configure(number); err != nil {
		return fmt.Errorf("set up the network of host %d: %w", number, err)
	}
	fmt.Println("ready")
	go func() { // the end of its input is the power going off
		_, _ = in.ReadString('\n')
		os.Exit(0)
	}()
	for { // as PID 1 it reaps what is orphaned
		if _, err := syscall.Wait4(-1, nil, 0, nil); errors.Is(err, syscall.ECHILD) {
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func hostName(number int) string { return fmt.Sprintf("spark%d", number) }

// view makes the host's own name, /proc, /run, /dev, state folder, boot id and cgroups.
func view(number int, dir, gpu, cgroup string) error {
	name := hostName(number)
	if err := unix.Sethostname([]byte(name)); err != nil {
		return err
	}
	bind := func(from, to string) error { return unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "") }
	if cgroup != "none" {
		own := filepath.Join(cgroup, "gpulab", name)
		if err := os.MkdirAll(filepath.Join(own, "system.slice", "sparkrun.service"), 0o755); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(own, "init.scope"), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(own, "init.scope", "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return err
		}
		if err := bind(own, cgroup); err != nil {
			return err
		}
	}
	for _, m := range []struct{ kind, to, opts string }{{"proc", "/proc", ""}, {"tmpfs", "/run", "mode=755"}} {
		if err := unix.Mount(m.kind, m.to, m.kind, 0, m.opts); err != nil {
			return fmt.Errorf("mount %s: %w", m.to, err)
		}
	}
	if err := devices(gpu); err != nil {
		return err
	}
	boot := filepath.Join(dir, "boot_id")
	id := fmt.Sprintf("5a52%04x-0000-4000-8000-%012x\n", number, time.Now().UnixNano()&0xffffffffffff)
	if err := os.WriteFile(boot, []byte(id), 0o444); err != nil {
		return err
	}
	if err := bind(boot, "/proc/sys/kernel/random/boot_id"); err != nil {
		return err
	}
	lib := filepath.Join(dir, "lib")
	for _, d := range []string{lib, "/var/lib/sparkrun"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return bind(lib, "/var/lib/sparkrun")
}

// devices gives the host a /dev as a container has one: what every program needs, and
// of the GPUs its own.
func devices(gpu string) error {
	const old = "/run/dev"
	if err := os.MkdirAll(old, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev", old, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "nvidiactl", "nvidia-uvm",
		"nvidia-uvm-tools", "nvidia-modeset", filepath.Base(gpu)} {
		from, to := filepath.Join(old, name), filepath.Join("/dev", name)
		if _, err := os.Stat(from); err != nil {
			continue
		}
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", to, err)
		}
	}
	for _, name := range []string{"pts", "nvidia-caps"} {
		from, to := filepath.Join(old, name), filepath.Join("/dev", name)
		if _, err := os.Stat(from); err != nil {
			continue
		}
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s: %w", to, err)
		}
	}
	if err := os.MkdirAll("/dev/shm", 0o1777); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID, "mode=1777"); err != nil {
		return err
	}
	for to, from := range map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "fd/0",
		"stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(from, filepath.Join("/dev", to)); err != nil {
			return err
		}
	}
	if err := unix.Unmount(old, unix.MNT_DETACH); err != nil {
		return err
	}
	// NVIDIA's library makes the nodes of all GPUs where it may.
	return unix.Mount("", "/dev", "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_RDONLY, "mode=755")
}

// configure gives the host's interfaces, which the switch has made, what netplan would.
func configure(number int) error {
	for _, path := range []string{"/proc/sys/net/ipv4/conf/all/rp_filter", "/proc/sys/net/ipv4/conf/default/rp_filter"} {
		if err := os.WriteFile(path, []byte("2"), 0o644); err != nil { // loose, as Ubuntu has it
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, n := range nics {
		link, err := netlink.LinkByName(n.name)
		if err != nil {
			return fmt.Errorf("find %s: %w", n.name, err)
		}
		addr, err := netlink.ParseAddr(n.addr(number) + "/24")
		if err != nil {
			return err
		}
		if err := errors.Join(netlink.LinkSetMTU(link, n.mtu), netlink.AddrAdd(link, addr),
			netlink.LinkSetUp(link)); err != nil {
			return fmt.Errorf("set up %s: %w", n.name, err)
		}
	}
	return nil
}

// switchMain keeps the network between hosts, in a network namespace of its own: two
// bridges, and the veth pairs whose other ends are the hosts' interfaces. Its arguments
// are the hosts' PIDs.
func switchMain(args []string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	bridges := map[string]int{}
	for _, n := range nics {
		if _, there := bridges[n.bridge]; there {
			continue
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = n.bridge, n.mtu
		b := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(b); err != nil {
			return fmt.Errorf("add bridge %s: %w", n.bridge, err)
		}
		if err := netlink.LinkSetUp(b); err != nil {
			return err
		}
		bridges[n.bridge] = b.Index
		if n.subnet == 0 { // mpirun, for comparison, is started from here
			addr, err := netlink.ParseAddr("172.30.0.1/24")
			if err != nil {
				return err
			}
			if err := netlink.AddrAdd(b, addr); err != nil {
				return err
			}
		}
	}
	for i, text := range args {
		pid, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		for j, n := range nics {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.MTU, attrs.MasterIndex = fmt.Sprintf("h%dn%d", i+1, j), n.mtu, bridges[n.bridge]
			veth := &netlink.Veth{LinkAttrs: attrs, PeerName: n.name, PeerNamespace: netlink.NsPid(pid),
				PeerHardwareAddr: n.hwaddr(i + 1)}
			if err := netlink.LinkAdd(veth); err != nil {
				return fmt.Errorf("add %s of host %d: %w", n.name, i+1, err)
			}
			if err := netlink.LinkSetUp(veth); err != nil {
				return err
			}
		}
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	return nil
}

// sent gives the bytes that an interface of a host has sent, as the kernel counts them.
func sent(pid int, nic string) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		name, counts, ok := strings.Cut(line, ":")
		if f := strings.Fields(counts); ok && strings.TrimSpace(name) == nic && len(f) > 8 {
			return strconv.ParseInt(f[8], 10, 64)
		}
	}
	return 0, fmt.Errorf("no interface %s", nic)
}
