package e2e

import (
	"strings"
	"testing"
	"time"
)

// held are a host's IPv4 addresses on the fabric, as `ip -br` says them.
func (l *lab) held(host string) string {
	l.t.Helper()
	var out []string
	for line := range strings.Lines(l.on(host, "ip", "-br", "-4", "addr").must(l.t).out) {
		if f := strings.Fields(line); strings.Contains(f[0], "np") && len(f) > 2 {
			nic, _, _ := strings.Cut(f[0], "@")
			out = append(out, nic+" "+strings.Join(f[2:], " "))
		}
	}
	return strings.Join(out, "\n")
}

func (r result) says(t testing.TB, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(r.out+r.err, w) {
			t.Errorf("nothing of %q in %s", w, r)
		}
	}
}

// Addresses come from the cabling, in force on all machines or on none, and stay
// when one joins. Hosts of the lab have netplan itself to check the files, and
// lab.d/fake-netplan-apply in networkd's place.
func TestNetplan(t *testing.T) {
	const patience = time.Minute // on a busy machine
	l := up(t, 3, "--topology", "ring", "--no-addresses", "--no-agent")
	join := func(host string, members string) {
		t.Helper()
		token := strings.TrimSpace(l.on("spark1", "sparkrun", "token", "create").must(t).out)
		l.on(host, "sh", "-c", "echo "+token+" | sparkrun join 172.30.0.11 --token-file -").must(t)
		l.do("start", host, "--agent")
		l.on("spark1", "sparkrun", "status", "--wait-nodes", members, "--timeout", "60s").must(t)
	}
	l.on("spark1", "sparkrun", "init").must(t)
	l.do("start", "spark1", "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "1", "--timeout", "60s").must(t)
	join("spark2", "2")
	planned := func(host, addr string) {
		t.Helper()
		eventually(t, patience, "a plan with "+addr, func() bool {
			return strings.Contains(l.on("spark2", "sparkrun", "netplan", "show", "--node", host).out, addr)
		})
	}
	planned("spark1", "addresses: [192.168.177.11/24]")

	before := func() {
		t.Helper()
		for _, h := range []string{"spark1", "spark2"} {
			if got := l.held(h); got != "" {
				t.Errorf("%s is left with %s", h, got)
			}
			l.on(h, "test", "!", "-e", "/etc/netplan/40-cx7.yaml").must(t)
			l.on(h, "test", "!", "-e", "/var/lib/sparkrun/netplan/pending.json").must(t)
		}
	}
	// spark2 sends what is for spark1's first twin to nobody.
	mistake := []string{"ip", "neigh", "replace", "192.168.177.11", "lladdr", "02:00:00:00:00:01", "dev", "enp1s0f1np1", "nud", "permanent"}
	l.on("spark2", mistake...).must(t)
	r := l.on("spark2", "sparkrun", "netplan", "apply", "--yes", "--grace", "3s")
	if r.code != 1 {
		t.Errorf("with a mistake: %s", r)
	}
	r.says(t, "spark1: spark2 (192.168.177.12 over enp1s0f0np0) did not answer within 3s", "as it was, on all nodes")
	before()

	// An agent is killed in the middle of the same.
	l.on("spark2", mistake...).must(t)
	change := l.start("spark1", "sparkrun", "netplan", "apply", "--yes", "--grace", "5m")
	eventually(t, patience, "spark2 has written its file", func() bool {
		return l.on("spark2", "test", "-e", "/etc/netplan/40-cx7.yaml").code == 0 && l.held("spark2") != ""
	})
	l.do("kill", "spark2", "--agent")
	if r := change.wait(); r.code != 1 {
		t.Errorf("with a dead agent: %s", r)
	} else {
		r.says(t, "spark2 went silent")
	}
	if l.held("spark2") == "" {
		t.Error("spark2 went back without its agent")
	}
	l.do("start", "spark2", "--agent")
	before()
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "2", "--timeout", "60s").must(t)
	planned("spark1", "addresses: [192.168.177.11/24]")

	l.on("spark1", "sparkrun", "netplan", "apply", "--yes").must(t).says(t, "spark1: stays", "spark2: stays")
	pair := map[string]string{"spark1": l.held("spark1"), "spark2": l.held("spark2")}
	if want := "enp1s0f0np0 192.168.177.11/24\nenP2p1s0f0np0 192.168.178.11/24"; pair["spark1"] != want {
		t.Errorf("spark1 has\n%s\nwant\n%s", pair["spark1"], want)
	}
	l.on("spark1", "ping", "-c1", "-W5", "-M", "do", "-s", "8972", "-I", "enP2p1s0f0np0", "192.168.178.12").must(t)

	// Jobs meet there now, and while one does nobody takes the addresses away.
	for h := range pair {
		l.do("sync", h) // the lab's sysfs learns of new addresses by hand
	}
	eventually(t, patience, "a job meets on the new addresses", func() bool {
		return strings.Contains(l.on("spark2", "sparkrun", "launch", "exec", "--nodes", "2", "--dry-run", "--", "true").out, "head address 192.168.177.11")
	})
	l.on("spark2", "sparkrun", "launch", "exec", "-d", "--nodes", "2", "--name", "busy", "--", "sleep", "300").must(t)
	r = l.on("spark1", "sparkrun", "netplan", "rollback", "--yes")
	if r.code != 1 {
		t.Errorf("under a job: %s", r)
	}
	r.says(t, "uses enp1s0f0np0", "sparkrun stop ")
	l.on("spark2", "sparkrun", "stop", "busy").must(t)

	// A third one joins, with a file of its own for the same interface.
	join("spark3", "3")
	planned("spark3", "192.168.1")
	l.on("spark3", "sh", "-c", "umask 077; echo 'network: {ethernets: {enp1s0f0np0: {mtu: 1500}}}' > /etc/netplan/99-mine.yaml").must(t)
	eventually(t, patience, "the ring is whole", func() bool {
		return strings.Contains(l.on("spark1", "sparkrun", "netplan", "show").out, "are a ring")
	})
	r = l.on("spark1", "sparkrun", "netplan", "apply", "--yes")
	if r.code != 1 {
		t.Errorf("beside a file that spoils ours: %s", r)
	}
	r.says(t, "SPOILS ours: /etc/netplan/99-mine.yaml:1 names enp1s0f0np0", "sets mtu to 1500 after our 9000, and wins", "spark3 would refuse")
	l.on("spark3", "rm", "/etc/netplan/99-mine.yaml").must(t)
	l.on("spark3", "sparkrun", "netplan", "apply", "--yes").must(t)
	for h, had := range pair {
		if now := l.held(h); !strings.Contains(now, had) && !sameLines(now, had) {
			t.Errorf("%s had\n%s\nand has\n%s", h, had, now)
		}
	}
	if now := l.held("spark3"); strings.Count(now, "/24") != 4 {
		t.Errorf("spark3 has\n%s", now)
	}
	l.on("spark2", "sparkrun", "netplan", "diff").must(t).says(t, "spark1\n  as it should be", "spark3\n  as it should be")
	l.on("spark2", "sparkrun", "netplan", "rollback", "--yes").must(t)
	if now := l.held("spark3") + l.held("spark1"); now != pair["spark1"] {
		t.Errorf("after going back:\n%s\nwant\n%s", now, pair["spark1"])
	}
}

// sameLines tells whether every line of part is one of all.
func sameLines(all, part string) bool {
	for line := range strings.Lines(part + "\n") {
		if !strings.Contains(all+"\n", line) {
			return false
		}
	}
	return true
}
