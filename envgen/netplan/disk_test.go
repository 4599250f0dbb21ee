package netplan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDisk(t *testing.T) {
	d := Disk{t.TempDir()}
	if _, _, err := d.Read(Path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read what is not there: %v", err)
	}
	if names, err := d.List("/etc/netplan"); err != nil || len(names) > 0 {
		t.Errorf("list what is not there: %v %v", names, err)
	}
	for _, mode := range []fs.FileMode{0o600, 0o644} {
		if err := d.Write(Path, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
		if data, got, err := d.Read(Path); err != nil || string(data) != "x" || got != mode {
			t.Errorf("%q %v %v", data, got, err)
		}
	}
	// Nothing else is left where netplan looks.
	if names, err := d.List("/etc/netplan"); err != nil || !slices.Equal(names, []string{"40-cx7.yaml"}) {
		t.Errorf("%v %v", names, err)
	}
	for range 2 {
		if err := d.Remove(Path); err != nil {
			t.Error(err)
		}
	}
	if err := os.WriteFile(d.at("/etc/netplan/big.yaml"), make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Read("/etc/netplan/big.yaml"); err == nil {
		t.Error("a file of more than 1 MiB was read")
	}
	// A file that a link to /dev/null masks is empty, as it is for netplan; other devices are no files.
	for name, target := range map[string]string{"masked.yaml": os.DevNull, "zero.yaml": "/dev/zero"} {
		link := d.at("/etc/netplan/" + name)
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		data, _, err := d.Read("/etc/netplan/" + name)
		if masked := err == nil && len(data) == 0; masked != (target == os.DevNull) {
			t.Errorf("link to %s: %q %v", target, data, err)
		}
		if err := os.Remove(link); err != nil {
			t.Fatal(err)
		}
	}
	// A write that cannot take place leaves nothing.
	if err := os.MkdirAll(d.at("/etc/netplan/sub.yaml/x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := d.Write("/etc/netplan/sub.yaml", []byte("x"), 0o600); err == nil {
		t.Error("a folder was written over")
	}
	if names, _ := d.List("/etc/netplan"); !slices.Equal(names, []string{"big.yaml"}) {
		t.Errorf("left: %v", names)
	}
}

// The whole way on a real folder, with Debian's netplan to check and a shell to apply.
func TestTryOnDisk(t *testing.T) {
	needNetplan(t)
	d := Disk{t.TempDir()}
	for p, text := range installer() {
		if err := d.Write(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(nil)
	cfg := w.applier(t).cfg
	cfg.Files, cfg.Check = d, Command{}.Check
	a, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	o := order(t)
	if out, err := a.Try(t.Context(), o); err != nil || out.State != StateCommitted {
		t.Fatal(out.State, err)
	}
	if _, mode, err := d.Read(Path); err != nil || mode != 0o600 {
		t.Errorf("mode %v, %v", mode, err)
	}
	// What netplan refuses is not written; its message names the file a person knows.
	o.Text = new("network: {ethernets: {enp1s0f1np1: {colour: red}}}")
	_, err = a.Try(t.Context(), o)
	if err == nil || !strings.Contains(err.Error(), " /etc/netplan/40-cx7.yaml:1:") && !strings.Contains(err.Error(), "\n/etc/netplan/40-cx7.yaml:1:") || !strings.Contains(err.Error(), "colour") {
		t.Errorf("got %v", err)
	}
	o.Text = nil
	if _, err := a.Try(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if names, _ := d.List("/etc/netplan"); !slices.Equal(names, []string{"00-installer-config.yaml"}) {
		t.Errorf("left: %v", names)
	}
}

func TestCommand(t *testing.T) {
	program := filepath.Join(t.TempDir(), "netplan")
	script := "#!/bin/sh\n[ \"$*\" = apply ] && exit 0\necho \"$3$5: wrong\" >&2; ls -l \"$3/etc/netplan\" >&2; exit 3\n"
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := Command{Program: program}
	if err := c.Apply(t.Context()); err != nil {
		t.Error(err)
	}
	err := c.Check(t.Context(), []Source{{Path, []byte("x")}})
	if err == nil || !strings.Contains(err.Error(), "generate: exit status 3") || !strings.Contains(err.Error(), "-rw------- ") || strings.Contains(err.Error(), os.TempDir()+"/sparkrun") {
		t.Errorf("got %v", err)
	}
	if err := (Command{Program: "netplan-that-is-not-there"}).Apply(t.Context()); err == nil || !strings.Contains(err.Error(), "apt-get install netplan.io") {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho begun >&2; exec sleep 300\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := c.Apply(ctx); err == nil || !strings.Contains(err.Error(), "apply had not ended after ") {
		t.Errorf("a netplan that hangs: got %v", err)
	}
}

// needNetplan fails where Debian's netplan is missing: a plan it refuses would be found on somebody's machine.
func needNetplan(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("netplan"); err != nil {
		t.Fatalf("%v: this test asks Debian's own netplan; install it: apt-get install netplan.io", err)
	}
}

func TestNetplanAcceptsEveryFile(t *testing.T) {
	needNetplan(t)
	asked := map[string]bool{} // a pair's file is also a switch's
	for _, topo := range topologies {
		for _, f := range mustMake(t, topo.in).Files {
			if asked[f.Text] {
				continue
			}
			asked[f.Text] = true
			if err := (Command{}).Check(t.Context(), []Source{{Path, []byte(f.Text)}}); err != nil {
				t.Errorf("%s, %s: %v\n%s", topo.name, f.Host, err, f.Text)
			}
		}
	}
	// Names that YAML takes for something else.
	in := pair1()
	for i, name := range []string{"on", "0123", "1e5", "null"} {
		in.Nodes[0].Ports[i/2].Twins[i%2].NIC = name
	}
	in.Nodes[0].Ports[1].Twins[0].NIC = "y"
	f := mustMake(t, in).Files[0]
	if got := networks(t, []Source{{Path, []byte(f.Text)}}); !strings.Contains(got["y"], "192.168.177.11/24") {
		t.Errorf("netplan made %v of\n%s", got, f.Text)
	}
}

// networks gives what the real netplan makes for networkd, by definition.
func networks(t *testing.T, files []Source) map[string]string {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		if err := (Disk{root}).Write(f.Path, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := (Command{}).run(context.Background(), "generate", "--root-dir", root); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	found, err := filepath.Glob(filepath.Join(root, "run/systemd/network/10-netplan-*.network"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		id := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "10-netplan-"), ".network")
		out[id] = string(data)
	}
	return out
}

// Our reading of several files is netplan's: what Effective says is what stands in the files for networkd.
func TestReadingAgreesWithNetplan(t *testing.T) {
	needNetplan(t)
	ours := Source{Path, []byte(mustMake(t, pair1()).Files[0].Text)}
	for _, tc := range []struct {
		name  string
		files []Source
	}{
		{"ours alone", []Source{ours}},
		{"addresses add up, later values win", []Source{ours, {"/etc/netplan/99-x.yaml", []byte("network: {ethernets: {enp1s0f1np1: {dhcp4: Yes, link-local: [ipv4], mtu: 1500, addresses: [10.0.0.1/24, 192.168.177.11/24]}}}")}}},
		{"earlier values give way", []Source{ours, {"/etc/netplan/10-x.yaml", []byte("network: {ethernets: {enp1s0f1np1: {dhcp4: on, dhcp6: y, link-local: [ipv4], mtu: 1500, addresses: [10.0.0.1/24]}}}")}}},
		{"one folder hides another", []Source{{"/lib/netplan/40-cx7.yaml", []byte("network: {ethernets: {enp1s0f1np1: {addresses: [10.0.0.1/24]}}}")}, ours,
			{"/run/netplan/50.yaml", []byte("network: {ethernets: {enp1s0f1np1: {mtu: 4200}}}")}, {"/etc/netplan/50.yaml", []byte("network: {ethernets: {enp1s0f1np1: {mtu: 1500}}}")}}},
		{"a key twice, two documents", []Source{{"/etc/netplan/10-x.yaml", []byte("network:\n  ethernets:\n    enp1s0f1np1: {addresses: [10.0.0.1/24], mtu: 1500, mtu: 4200}\n    enp1s0f1np1: {addresses: [10.0.0.2/24]}\n---\nnetwork: {ethernets: {enp1s0f1np1: {mtu: 9000}}}\n")}}},
		{"a match in another file", []Source{ours, {"/etc/netplan/10-x.yaml", []byte(`network: {ethernets: {enp1s0f1np1: {match: {macaddress: "4c:bb:47:2e:01:01"}, dhcp6: on}}}`)}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			real := networks(t, tc.files)["enp1s0f1np1"]
			docs, unread := ParseAll(tc.files)
			if len(unread) > 0 {
				t.Fatal(unread)
			}
			s := Effective(docs, spark(1).Ports[1].Twins[0])
			if s == nil {
				t.Fatal("nothing names it")
			}
			var want []string
			for line := range strings.Lines(real) {
				line = strings.TrimSpace(line)
				if key, _, _ := strings.Cut(line, "="); slices.Contains([]string{"Address", "MTUBytes", "DHCP", "LinkLocalAddressing"}, key) {
					want = append(want, line)
				}
			}
			slices.Sort(want)
			if diff := cmp.Diff(want, networkd(*s)); diff != "" {
				t.Errorf("(-netplan +ours):\n%s\nall of it:\n%s", diff, real)
			}
		})
	}
}

// networkd says settings in networkd's words.
func networkd(s Settings) (lines []string) {
	for _, a := range s.Addresses {
		lines = append(lines, "Address="+a.String())
	}
	if s.MTU != nil {
		lines = append(lines, fmt.Sprintf("MTUBytes=%d", *s.MTU))
	}
	switch {
	case s.DHCP4 && s.DHCP6:
		lines = append(lines, "DHCP=yes")
	case s.DHCP4:
		lines = append(lines, "DHCP=ipv4")
	case s.DHCP6:
		lines = append(lines, "DHCP=ipv6")
	}
	lines = append(lines, "LinkLocalAddressing="+map[string]string{"": "no", "ipv4": "ipv4", "ipv6": "ipv6", "ipv4 ipv6": "yes"}[strings.Join(s.LinkLocal, " ")])
	slices.Sort(lines)
	return lines
}

// The remedy we print does what it says.
func TestRemedyTakesTheDefinitionOut(t *testing.T) {
	needNetplan(t)
	d := Disk{t.TempDir()}
	text := "network: {version: 2, ethernets: {enp1s0f1np1: {addresses: [10.0.0.1/24]}, other: {mtu: 1400}}}"
	if err := d.Write("/etc/netplan/99-x.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	doc, err := Parse(Source{"/etc/netplan/99-x.yaml", []byte(text)})
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Fields(remedy(doc.Definitions[0]))
	if words[0] != "sudo" || words[1] != "netplan" || words[2] != "set" {
		t.Fatalf("remedy %q", words)
	}
	args := append([]string{"set", "--root-dir", d.Root}, words[3:]...)
	if err := (Command{}).run(t.Context(), args...); err != nil {
		t.Fatal(err)
	}
	data, _, err := d.Read("/etc/netplan/99-x.yaml")
	if err != nil || strings.Contains(string(data), "enp1s0f1np1") || !strings.Contains(string(data), "other") {
		t.Errorf("%v, left:\n%s", err, data)
	}
}
