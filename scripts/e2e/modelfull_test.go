package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestModelDiskFull: the disk of one machine of three fills up while a model comes, and the Hub's URLs expire again and
// again. The others go on; that one says what to do, keeps what it has, and once there is room takes the rest from them.
func TestModelDiskFull(t *testing.T) {
	const cache, all = "/var/lib/sparkrun/models", 4 * 40_000_000
	l, hub := upWithHub(t, 3, []string{"--rate", "3000000", "--expire", "20000000", "--made", "org/four=4x40000000"})
	l.do("kill", "spark3", "--agent")
	l.on("spark3", "sh", "-c", "mkdir -p $0 && exec mount -t tmpfs -o size=260m tmpfs $0", cache).must(t)
	l.do("start", "spark3", "--agent")
	l.on("spark1", "sparkrun", "status", "--timeout", "30s", "--wait-nodes", "3").must(t)
	pull := l.start("spark1", "sparkrun", "model", "pull", "org/four", "--all")
	eventually(t, 30*time.Second, "it has begun", func() bool { return hub.sent() > modelChunk || pull.over() })
	l.on("spark3", "sh", "-c", "head -c 300M /dev/zero >$0/filler", cache)
	got := pull.wait()
	for _, said := range []string{"spark1: whole: ", "spark2: whole: ", "spark3: failed: ", "not enough room", "make room ("} {
		if got.code == 0 || !strings.Contains(got.err, said) {
			t.Errorf("%q is not said: %s", said, got)
		}
	}
	sent := hub.sent()
	if sent < all || sent > all*102/100 {
		t.Errorf("%d bytes came from outside, want %d", sent, int(all))
	}
	l.on("spark3", "rm", cache+"/filler").must(t)
	l.on("spark1", "sparkrun", "model", "pull", "org/four", "--on", "spark3").must(t)
	if n := hub.sent(); n != sent {
		t.Errorf("%d bytes came from outside again", n-sent)
	}
	if r := l.on("spark1", "sparkrun", "model", "verify", "org/four"); strings.Count(r.out, "all right") != 3 {
		t.Errorf("verify: %s", r)
	}
}
