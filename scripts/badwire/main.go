// Command badwire is a cable on which all takes longer.
//
//	badwire DELAY JITTER NIC...
//
// What leaves these interfaces does so DELAY later, and as much as JITTER more, drawn for
// each packet: later ones overtake. It runs until its standard input ends, and needs root
// and tc: a filter of each interface (clsact) gives the packets to one of its own, w.NIC.
// netem does the same where the kernel has it.
package main

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "badwire:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 3 {
		return fmt.Errorf("want DELAY JITTER NIC...")
	}
	w := wire{}
	var err error
	if w.delay, err = time.ParseDuration(args[0]); err != nil {
		return fmt.Errorf("read DELAY: %w", err)
	}
	if w.jitter, err = time.ParseDuration(args[1]); err != nil {
		return fmt.Errorf("read JITTER: %w", err)
	}
	for _, nic := range args[2:] {
		if err := w.begin(nic); err != nil {
			return err
		}
		defer func() { _ = command("tc", "filter", "del", "dev", nic, "egress") }() // it may have gone with its host
	}
	fmt.Println("delays")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

type wire struct{ delay, jitter time.Duration }

// begin has one interface's packets come to a tap, and from there late to where they were going.
func (w wire) begin(nic string) error {
	to, err := net.InterfaceByName(nic)
	if err != nil {
		return err
	}
	tap, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open tun: %w", err)
	}
	name := "w." + nic
	ask, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	ask.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(tap, unix.TUNSETIFF, ask); err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	// Past the filter that brings packets here.
	out, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptInt(out, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1)
	}
	if err != nil {
		return fmt.Errorf("open a socket to %s: %w", nic, err)
	}
	_ = command("tc", "qdisc", "add", "dev", nic, "clsact") // it may have one
	for _, c := range []string{
		"ip link set " + name + " mtu 9216 up",
		"tc filter add dev " + nic + " egress protocol all u32 match u32 0 0 action mirred egress redirect dev " + name,
	} {
		if err := command(strings.Fields(c)...); err != nil {
			return err
		}
	}
	go w.carry(tap, out, &unix.SockaddrLinklayer{Ifindex: to.Index}) // ends with the program
	return nil
}

func (w wire) carry(tap, out int, to unix.Sockaddr) {
	frame := make([]byte, 1<<16)
	for {
		n, err := unix.Read(tap, frame)
		if err != nil {
			return // the tap is gone
		}
		own := bytes.Clone(frame[:n])
		time.AfterFunc(w.delay+time.Duration(rand.Int64N(int64(w.jitter)+1)), func() {
			_ = unix.Sendto(out, own, 0, to) // lost, as on a cable that is pulled
		})
	}
}

func command(args ...string) error {
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
