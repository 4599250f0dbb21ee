package e2e

import (
	"strings"
	"testing"
	"time"
)

// A ring whose cable is pulled: what crosses it is refused with node, port and
// remedy, runs over management when it is forced, and nothing else is touched.
func TestLaunchOverAPulledCable(t *testing.T) {
	l := up(t, 3, "--topology", "ring")
	launch := func(host string, args ...string) result {
		return l.on(host, append([]string{"sparkrun", "launch", "exec"}, args...)...)
	}

	r := launch("spark2", "--nodes", "3", "--dry-run", "--", "hostname").must(t)
	for _, want := range []string{"a ring of 3", "NCCL_IB_SUBNET_AWARE_ROUTING=1", "NCCL_NET=IB"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("the ring's dry run lacks %q: %s", want, r)
		}
	}
	if at := hostLines(r.out); at != "spark1 spark2 spark3" {
		t.Errorf("ranks go to %s, want them along the ring", at)
	}
	r = l.on("spark2", "sparkrun", "env", "--node", "spark3", "--format", "shell").must(t)
	if !strings.Contains(r.out, "export NCCL_IB_SUBNET_PREFIX_LEN='") || !strings.Contains(r.out, "export NCCL_SOCKET_IFNAME='=enP7s7'\n") {
		t.Errorf("env of the ring: %s", r)
	}
	r = l.on("spark2", "sh", "-c", `eval "$(sparkrun env --on spark2,spark3 --format shell)"; echo $NCCL_IB_HCA $NCCL_IB_MERGE_NICS`).must(t)
	if r.out != "=rocep1s0f0,roceP2p1s0f0\n" { // port 0 leads to the next
		t.Errorf("env of a neighbouring pair: %s", r)
	}
	if r := launch("spark3", "--nodes", "3", "--", "true"); r.code != 0 || r.err != "" {
		t.Errorf("a sound ring: %s", r)
	}

	l.do("unplug", "spark1", "0") // to port 1 of spark2
	// Each end sees its own port lose the link, one a moment before the other.
	bothEnds := func() bool {
		return r.code == 125 && strings.Contains(r.err, "spark1 01:00.0 ") && strings.Contains(r.err, "spark2 01:00.1 ")
	}
	eventually(t, 30*time.Second, "a launch over the pulled cable is refused, and both its ends are named", func() bool {
		r = launch("spark3", "--nodes", "3", "--name", "refused", "--", "true")
		return bothEnds()
	})
	for _, want := range []string{"[no-link]", "remedy: ", "--force", "nothing is started"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("the refusal lacks %q: %s", want, r)
		}
	}
	if r := launch("spark3", "--nodes", "3", "--dry-run", "--", "true"); r.code != 125 || !strings.Contains(r.out, "error: spark1 01:00.0") {
		t.Errorf("dry run over the pulled cable: %s", r)
	}

	r = launch("spark3", "--nodes", "3", "--force", "--", "sh", "-c", "echo $NCCL_NET,$MASTER_ADDR").must(t)
	if !strings.Contains(r.err, "warning: spark1 01:00.0 ") || strings.Contains(r.out, "IB,") || !strings.Contains(r.out, "172.30.0.") {
		t.Errorf("forced: %s", r)
	}
	for _, args := range [][]string{{"--nodes", "1"}, {"--on", "spark2,spark3"}} {
		if r := launch("spark1", append(args, "--", "true")...); r.code != 0 || r.err != "" {
			t.Errorf("launch %v, which needs no pulled cable: %s", args, r)
		}
	}
	// Of the two that could be spark1's partner only one is cabled to it.
	if r := launch("spark1", "--nodes", "2", "--dry-run", "--", "true").must(t); hostLines(r.out) != "spark1 spark3" {
		t.Errorf("two nodes from spark1: %s", r)
	}
	if jobs := l.jobs("spark2"); jobs["refused"].ID != "" {
		// The polls above may have been let through while the cable was thought
		// to be there; none may have been recorded as refused.
		if j := jobs["refused"]; j.State != "completed" {
			t.Errorf("the refused job is recorded: %+v", j)
		}
	}

	l.do("cable", "spark1", "0", "spark2", "1")
	eventually(t, 30*time.Second, "the cable is back", func() bool {
		r = launch("spark3", "--nodes", "3", "--", "true")
		return r.code == 0
	})

	// Where a network manager takes the addresses away with the carrier, the
	// cable that was seen is remembered.
	eventually(t, 30*time.Second, "the probe sees the cable", func() bool {
		r = launch("spark3", "--on", "spark1,spark2", "--dry-run", "--", "true")
		return strings.Contains(r.out, "over the cable seen by the probe")
	})
	l.do("unplug", "spark1", "0")
	for host, nics := range map[string]string{"spark1": "enp1s0f0np0 enP2p1s0f0np0", "spark2": "enp1s0f1np1 enP2p1s0f1np1"} {
		l.on(host, "sh", "-c", "for i in "+nics+"; do ip addr flush dev $i; done").must(t)
		l.do("sync", host)
	}
	eventually(t, 30*time.Second, "it is refused without addresses, too, and both ends are named", func() bool {
		r = launch("spark3", "--nodes", "3", "--", "true")
		return bothEnds() && strings.Contains(r.err, "though a cable was seen there")
	})
	l.assertNothingLeft("spark1", "spark2", "spark3")
}

// hostLines are the hosts of a dry run, in its order.
func hostLines(out string) string {
	var hosts []string
	for line := range strings.Lines(out) {
		if host, _, ok := strings.Cut(line, ": rank"); ok && strings.HasPrefix(host, "spark") {
			hosts = append(hosts, host)
		}
	}
	return strings.Join(hosts, " ")
}
