package e2e

import (
	"strings"
	"testing"
	"time"
)

// The virtual IP is on the machine that leads, and on no other; when that loses its power another has it within its
// lifetime and two seconds more.
func TestVirtualIP(t *testing.T) {
	l := up(t, 3)
	const addr = "172.30.0.100"
	on := func(host string) bool {
		return strings.Contains(l.on(host, "ip", "-4", "-o", "addr").out, " "+addr+"/")
	}
	holder := func() (hosts []string) {
		for _, h := range []string{"spark1", "spark2", "spark3"} {
			if on(h) {
				hosts = append(hosts, h)
			}
		}
		return hosts
	}
	if r := l.on("spark2", "sparkrun", "gateway", "virtual-ip", "set", "172.30.0.13/24"); r.code == 0 ||
		!strings.Contains(r.err, "it is an address of spark3") {
		t.Errorf("a machine's own address: %s", r)
	}
	l.on("spark2", "sparkrun", "gateway", "open").must(t)
	l.on("spark2", "sparkrun", "gateway", "virtual-ip", "set", addr+"/24").must(t)
	first := l.leader("spark2")
	eventually(t, 15*time.Second, "the leader has it", func() bool { return on(first) })
	if at := holder(); len(at) != 1 || at[0] != first {
		t.Errorf("it is on %v, and %s leads", at, first)
	}
	asks := func(host string) result {
		return l.on(host, "python3", "-c", "import urllib.request as u; print(u.urlopen('http://"+addr+":7942/v1/models', timeout=2).status)")
	}
	other := map[string]string{"spark1": "spark2", "spark2": "spark3", "spark3": "spark1"}[first]
	eventually(t, 10*time.Second, "it answers", func() bool { return asks(other).code == 0 })
	if r := l.on(other, "sparkrun", "gateway", "ls").must(t); !strings.Contains(r.out, "http://"+addr+":7942/v1 (virtual IP, on "+first+" now)") {
		t.Errorf("gateway ls: %s", r)
	}

	l.do("kill", first)
	began := time.Now()
	eventually(t, time.Minute, "it answers elsewhere", func() bool { return asks(other).code == 0 })
	t.Logf("it answered elsewhere %s after the power cut", time.Since(began).Round(10*time.Millisecond))
	l.do("start", first)
	l.on(other, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(t)
	if at := holder(); len(at) != 1 {
		t.Errorf("it is on %v", at)
	}

	// A stopped agent does not keep it.
	second := l.leader(other)
	l.on(second, "pkill", "-STOP", "-f", "sparkrun agent").must(t)
	eventually(t, 30*time.Second, "a machine with a stopped agent has lost it", func() bool { return !on(second) })
	eventually(t, 30*time.Second, "and another one has it", func() bool { return len(holder()) == 1 })
	l.on(second, "pkill", "-CONT", "-f", "sparkrun agent").must(t)

	eventually(t, 30*time.Second, "it is taken away", func() bool {
		return l.on(other, "sparkrun", "gateway", "virtual-ip", "rm").code == 0
	})
	eventually(t, 10*time.Second, "nobody has it", func() bool { return len(holder()) == 0 })
	l.assertNothingLeft("spark1", "spark2", "spark3")
}
