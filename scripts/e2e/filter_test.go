package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"

	"github.com/sparkrun/sparkrun/launcher/filter"
)

// server is a rank that answers on two ports of every address, as a torch store
// and a web server would, and on one that the kernel picks, which it writes down.
const server = `
import os, socket, sys, threading, time
def serve(port):
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("::", port))
    s.listen()
    def answer():
        while True:
            c, _ = s.accept()
            c.sendall(b"hi"); c.close()
    threading.Thread(target=answer, daemon=True).start()
    return s.getsockname()[1]
ports = [serve(int(os.environ["MASTER_PORT"])), serve(0), serve(8000)]
path = os.path.join(sys.argv[1], os.environ["SPARKRUN_HOST"])
open(path + ".new", "w").write(" ".join(map(str, ports)))
os.rename(path + ".new", path)
time.sleep(600)
`

// reach tells of a host's ports whether somebody answers: "+" or "-" for each. It
// is patient where an answer is wanted; where none is, a second says that none
// comes, over cables that lie in memory.
const reach = `
import socket, sys, threading
got = {}
def one(i, port, wanted):
    try:
        c = socket.create_connection((sys.argv[1], int(port)), timeout=30 if wanted == "+" else 1)
        got[i] = "+" if c.recv(2) == b"hi" else "closed"
    except OSError as e:
        got[i] = "-"
all = [threading.Thread(target=one, args=(i, p, w)) for i, (p, w) in enumerate(zip(sys.argv[3:], sys.argv[2]))]
for t in all: t.start()
for t in all: t.join()
print("".join(got[i] for i in sorted(got)))
`

// filtered lists the tries that a host's packet filter has rules of.
func (l *lab) filtered(host string) []string {
	l.t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%s/ns/net", l.init(host)))
	if err != nil {
		l.t.Fatal(err)
	}
	defer ns.Close()
	keys, err := filter.Keys(nftables.WithNetNSFd(int(ns.Fd())))
	if err != nil {
		l.t.Fatal(err)
	}
	return keys
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// None but a job's members reach its ranks' ports, but for what it publishes:
// not a machine that is no member, not a member without ranks of the job. The
// filter outlives the agent, and nothing of it outlives the job.
func TestPacketFilter(t *testing.T) {
	l := up(t, 4)
	dir := scratch(t)
	check(t, os.WriteFile(filepath.Join(dir, "server.py"), []byte(server), 0o644))
	l.on("spark4", "sparkrun", "leave", "--yes").must(t)
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)

	launch := func(name string, flags ...string) (ports []string) {
		t.Helper()
		args := append([]string{"sparkrun", "launch", "-d", "--name", name, "--on", "spark1,spark2", "--workdir", dir}, flags...)
		r := l.on("spark1", append(args, "exec", "--", python, "server.py", dir)...).must(t)
		if strings.Contains(r.err, "warning") {
			t.Errorf("launch %s: %s", name, r)
		}
		for _, h := range []string{"spark1", "spark2"} {
			eventually(t, time.Minute, "the ports of "+h, func() bool {
				b, err := os.ReadFile(filepath.Join(dir, h))
				ports = strings.Fields(string(b))
				return err == nil && len(ports) == 3
			})
		}
		return ports // spark2's: the one that the kernel picked may be another on spark1
	}
	expect := func(what string, ports []string, want map[string]string) {
		t.Helper()
		got := map[string]string{}
		looking := map[string]*running{}
		for from, answers := range want {
			looking[from] = l.start(from, append([]string{python, "-c", reach, "172.30.0.12", answers}, ports...)...)
		}
		for from, r := range looking {
			got[from] = strings.TrimSpace(r.wait().must(t).out)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: who reaches spark2's rendezvous, other and published port (-want +got):\n%s", what, diff)
		}
	}
	all := map[string]string{"spark1": "+++", "spark2": "+++", "spark3": "--+", "spark4": "--+"}

	ports := launch("served", "--publish", "8000")
	expect("a running job", ports, all)

	l.do("kill", "spark2", "--agent")
	if len(l.filtered("spark2")) != 1 {
		t.Errorf("after a kill of the agent: %v", l.filtered("spark2"))
	}
	l.do("start", "spark2", "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	expect("with another agent", ports, all)

	// A job that ends while its node has no agent leaves its rules, until that
	// comes; those of the other job stay.
	check(t, os.Remove(filepath.Join(dir, "spark1")))
	l.on("spark1", "sparkrun", "launch", "-d", "--name", "brief", "--on", "spark2", "exec", "--", "sleep", "600").must(t)
	both := l.filtered("spark2")
	if len(both) != 2 {
		t.Fatalf("of two jobs: %v", both)
	}
	l.do("kill", "spark2", "--agent")
	l.on("spark2", "pkill", "-KILL", "-f", "^sleep 600").must(t)
	eventually(t, time.Minute, "no sleep on spark2", func() bool { return !strings.Contains(l.processes("spark2"), "sleep 600") })
	if diff := cmp.Diff(both, l.filtered("spark2")); diff != "" {
		t.Errorf("without an agent (-before +after):\n%s", diff)
	}
	l.do("start", "spark2", "--agent")
	eventually(t, time.Minute, "one job's rules", func() bool { return len(l.filtered("spark2")) == 1 })
	expect("after the other job's end", ports, all)

	l.on("spark3", "sparkrun", "stop", "served", "--kill").must(t)
	for _, h := range []string{"spark1", "spark2"} {
		eventually(t, time.Minute, "no rules on "+h, func() bool { return len(l.filtered(h)) == 0 })
	}

	// Where nothing filters, launch says so.
	l.do("kill", "spark2", "--agent")
	l.on("spark2", "sh", "-c", "setsid setpriv --bounding-set=-net_admin sparkrun agent >/dev/null 2>&1 </dev/null &").must(t)
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	r := l.on("spark1", "sparkrun", "launch", "--on", "spark1,spark2", "exec", "--", "true").must(t)
	if !strings.Contains(r.err, "spark2: other hosts may reach its ranks' ports") || !strings.Contains(r.err, "CAP_NET_ADMIN") || strings.Contains(r.err, "spark1:") {
		t.Errorf("a launch with a node that may not filter: %s", r)
	}
}

// A member gets other addresses, on management and on the fabric, while its job runs: it reaches the other ranks from them, also
// after their agent was started anew; who is no part of the job still does not, not even at an address in between.
func TestPacketFilterFollowsItsNodes(t *testing.T) {
	t.Parallel()
	l := up(t, 4)
	dir := scratch(t)
	check(t, os.WriteFile(filepath.Join(dir, "server.py"), []byte(server), 0o644))
	l.on("spark4", "sparkrun", "leave", "--yes").must(t)
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	l.on("spark2", "sparkrun", "launch", "-d", "--name", "served", "--on", "spark1,spark2", "--workdir", dir, "exec", "--", python, "server.py", dir).must(t)
	var ports []string
	eventually(t, time.Minute, "the ports of spark2", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "spark2"))
		ports = strings.Fields(string(b))
		return err == nil && len(ports) == 3
	})
	looks := func(from, to, answers string) *running {
		return l.start(from, append([]string{python, "-c", reach, to, answers}, ports...)...)
	}
	answered := func(r *running) string { return strings.TrimSpace(r.wait().must(t).out) }
	expect := func(when string) {
		t.Helper()
		strangers := map[string]*running{}
		for _, to := range []string{"172.30.0.12", "192.168.100.12"} {
			for _, who := range []string{"spark3", "spark4"} {
				strangers[who+" at "+to] = looks(who, to, "---")
			}
			eventually(t, time.Minute, when+": spark1 reaches the ranks at "+to, func() bool { return answered(looks("spark1", to, "+++")) == "+++" })
		}
		for who, r := range strangers {
			if got := answered(r); got != "---" {
				t.Errorf("%s: %s: %s, want that no port answers who is no part of the job", when, who, got)
			}
		}
	}
	move := func(host, nic, from, to string) {
		t.Helper()
		l.on(host, "ip", "addr", "del", from+"/24", "dev", nic).must(t)
		l.on(host, "ip", "addr", "add", to+"/24", "dev", nic).must(t)
	}
	expect("where they were planned")

	move("spark1", "enP7s7", "172.30.0.11", "172.30.0.41")
	l.on("spark1", "ip", "route", "add", "default", "via", "172.30.0.1").must(t)
	move("spark4", "enP7s7", "172.30.0.14", "172.30.0.42")
	expect("with another management address")
	move("spark1", "enp1s0f0np0", "192.168.100.11", "192.168.100.41")
	move("spark4", "enp1s0f0np0", "192.168.100.14", "192.168.100.42")
	expect("with another fabric address")

	l.do("kill", "spark2", "--agent")
	expect("while its agent is away")
	l.do("start", "spark2", "--agent")
	l.on("spark3", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "45s").must(t)
	expect("with another agent")
	l.on("spark3", "sparkrun", "stop", "served", "--kill").must(t)
	eventually(t, time.Minute, "no rules on spark2", func() bool { return len(l.filtered("spark2")) == 0 })
}
