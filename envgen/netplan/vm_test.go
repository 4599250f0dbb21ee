//go:build vm

package netplan

// These run as root on a machine whose fabric netplan configures, and change its addresses: scripts/vm_test builds them
// with -tags vm and runs them on spark1 of a VM lab (topology pair or pair2), with real netplan, networkd and a
// neighbour that answers.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	vmNIC   = "enp1s0f0np0" // cabled to the neighbour
	vmOwn   = "192.168.100.11/24"
	vmWrong = "10.97.0.11/24"
	vmState = "/var/lib/netplan-vm-test"
	// vmChild makes this program the one that is killed.
	vmChild = "NETPLAN_VM_TEST_CHILD"
)

var vmPeer = Peer{Node: "2", Host: "spark2", NIC: vmNIC, Addr: netip.MustParseAddr("192.168.100.12")}

// vmText is a file for that one interface.
func vmText(addresses string) string {
	return fmt.Sprintf(`network:
  version: 2
  ethernets:
    %s:
      dhcp4: false
      mtu: 9000
      optional: true
      addresses: [%s]
`, vmNIC, addresses)
}

func vmOrder(text string) Order {
	return Order{Text: &text, NICs: []Twin{{NIC: vmNIC}}, Management: Twin{NIC: "enP7s7"}, Peers: []Peer{vmPeer}}
}

// vmApplier is one with the machine's own files and netplan. Undone needs less than Grace here: the neighbour is a
// cable away.
func vmApplier(t *testing.T) *Applier {
	t.Helper()
	a, err := New(Config{
		Files: Disk{"/"}, State: vmState,
		Check: Command{}.Check, Apply: Command{}.Apply,
		Reachable: func(ctx context.Context, p Peer) error {
			out, err := exec.CommandContext(ctx, "ping", "-c1", "-W2", "-I", p.NIC, p.Addr.String()).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		},
		Busy:         func(context.Context, []string) (string, error) { return "", nil },
		ApplyTimeout: 5 * time.Minute, // netplan is Python, the machine emulated
		Log:          slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// vmAddresses are the interface's IPv4 addresses as the kernel has them.
func vmAddresses(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ip", "-4", "-o", "addr", "show", "dev", vmNIC).Output()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		found = append(found, words[slices.Index(words, "inet")+1])
	}
	slices.Sort(found)
	return found
}

// wantAddresses waits for them: networkd sets them after netplan has returned.
func wantAddresses(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	for deadline := time.Now().Add(60 * time.Second); ; {
		got := vmAddresses(t)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has %v, want %v", vmNIC, got, want)
		}
	}
}

func vmFile(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(Path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// vmRestore brings the machine back to how it was, whatever a test that failed has left.
func vmRestore(t *testing.T) {
	before := vmFile(t)
	wantAddresses(t, vmOwn)
	t.Cleanup(func() {
		if vmFile(t) != before {
			if err := os.WriteFile(Path, []byte(before), 0o600); err != nil {
				t.Error(err)
			}
			if out, err := exec.Command("netplan", "apply").CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}
		if err := os.RemoveAll(vmState); err != nil {
			t.Error(err)
		}
	})
}

func TestVMAppliesAndUndoes(t *testing.T) {
	vmRestore(t)
	before := vmFile(t)
	a := vmApplier(t)
	o := vmOrder(vmText(vmOwn + ", 10.98.0.11/24"))
	start := time.Now()
	out, err := a.Try(t.Context(), o)
	if err != nil || out.State != StateCommitted {
		t.Fatalf("state %q, %v; want it committed", out.State, err)
	}
	t.Logf("applied in %d ms", time.Since(start).Milliseconds())
	wantAddresses(t, vmOwn, "10.98.0.11/24")
	if vmFile(t) != *o.Text {
		t.Errorf("%s is not what was ordered:\n%s", Path, vmFile(t))
	}
	if info, err := os.Stat(Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v; want mode 0600", Path, info.Mode(), err)
	}
	if out, err := a.Try(t.Context(), o); err != nil || out.State != StateUnchanged {
		t.Errorf("the same again: state %q, %v; want it unchanged", out.State, err)
	}
	if _, err := a.Undo(t.Context(), Order{NICs: o.NICs, Management: o.Management, Peers: o.Peers}); err != nil {
		t.Fatal(err)
	}
	wantAddresses(t, vmOwn)
	if vmFile(t) != before {
		t.Errorf("after the undo %s is not what it was:\n%s", Path, vmFile(t))
	}
}

// The planted mistake: a subnet that the neighbour is not in. (The subnet of the other twin would not do: the neighbour
// is on that one wire too, and answers a ping that only names the interface.)
func TestVMMistakeIsRolledBack(t *testing.T) {
	vmRestore(t)
	before := vmFile(t)
	start := time.Now()
	out, err := vmApplier(t).Try(t.Context(), vmOrder(vmText(vmWrong)))
	if !errors.Is(err, ErrRolledBack) || out.State != StateRolledBack {
		t.Fatalf("state %q, %v; want it rolled back", out.State, err)
	}
	t.Logf("back after %.0f s: %v", time.Since(start).Seconds(), err)
	if !strings.Contains(err.Error(), "spark2") {
		t.Errorf("%v does not name the peer", err)
	}
	wantAddresses(t, vmOwn)
	if vmFile(t) != before {
		t.Errorf("%s is not what it was:\n%s", Path, vmFile(t))
	}
	if err := vmApplier(t).cfg.Reachable(t.Context(), vmPeer); err != nil {
		t.Errorf("after the roll-back: %v", err)
	}
}

func TestVMRefusesBeforeAnythingIsTouched(t *testing.T) {
	vmRestore(t)
	before := vmFile(t)
	for name, text := range map[string]string{
		"no address":           vmText("192.168.100.300/24"),
		"an unknown key":       vmText(vmOwn) + "      adresses: [10.1.1.1/24]\n",
		"management's own NIC": strings.ReplaceAll(vmText("172.30.0.11/24"), vmNIC, "enP7s7"),
	} {
		t.Run(name, func(t *testing.T) {
			out, err := vmApplier(t).Try(t.Context(), vmOrder(text))
			if err == nil || errors.Is(err, ErrRolledBack) {
				t.Errorf("state %q, %v; want a refusal", out.State, err)
			}
			t.Log(err)
			if vmFile(t) != before {
				t.Errorf("%s was touched:\n%s", Path, vmFile(t))
			}
			wantAddresses(t, vmOwn)
		})
	}
}

// A program killed between netplan apply and the verdict leaves a mistake in force; the next start undoes it.
func TestVMKilledHalfWayIsUndone(t *testing.T) {
	if os.Getenv(vmChild) != "" {
		_, err := vmApplier(t).Try(t.Context(), vmOrder(vmText(vmWrong)))
		t.Fatalf("not killed in time: %v", err)
	}
	vmRestore(t)
	before := vmFile(t)
	child := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
	child.Env = append(os.Environ(), vmChild+"=yes")
	stderr, err := child.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	applied := false
	for lines := bufio.NewScanner(stderr); !applied && lines.Scan(); {
		applied = strings.Contains(lines.Text(), "state=applied")
	}
	_ = child.Process.Kill()
	_ = child.Wait()
	if !applied {
		t.Fatal("it ended before the change was applied")
	}
	wantAddresses(t, vmWrong)
	if got, err := vmApplier(t).Recover(t.Context()); err != nil || got != RecoveredRolledBack {
		t.Fatalf("recovered: %q, %v; want it rolled back", got, err)
	}
	wantAddresses(t, vmOwn)
	if vmFile(t) != before {
		t.Errorf("%s is not what it was:\n%s", Path, vmFile(t))
	}
}
