package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A model that is on demand starts with the first request for it, which waits, and makes room for another one once its
// time is over. A key without the right starts nothing, and whoever leads then knows that it sleeps.
func TestOnDemand(t *testing.T) {
	t.Parallel()
	hosts := []string{"spark1", "spark2", "spark3"}
	l := up(t, len(hosts))
	script, err := filepath.Abs("testdata/standin_chat.py")
	if err != nil {
		t.Fatal(err)
	}
	for model, port := range map[string]string{"qwen": "8001", "llama": "8002"} {
		got := l.on("spark1", "sparkrun", "launch", "exec", "--name", model, "--on", "spark2", "--serve", port, "--health",
			"/health", "--model", model, "--gpus", "all", "--on-demand", "--idle", "1m", "--min-up", "10s", "--", "python3",
			script, port).must(t)
		if !strings.Contains(got.err, "its first request at the gateway starts it") {
			t.Errorf("launch says %s", got)
		}
	}
	state := func(host string) string {
		var all []string
		for _, b := range l.gateway(host).Backends {
			all = append(all, b.Name+" "+b.State)
		}
		return strings.Join(all, ", ")
	}
	is := func(within time.Duration, want ...string) {
		t.Helper()
		eventually(t, within, strings.Join(want, ", "), func() bool {
			now := state("spark1")
			for _, w := range want {
				if !strings.Contains(now, w) {
					return false
				}
			}
			return true
		})
	}
	eventually(t, 30*time.Second, "its gateway lists both", func() bool {
		return strings.Count(l.on("spark3", "curl", "-s", "-m", "5", loopback+"/models").out, `"asleep"`) == 2
	})
	key := strings.TrimSpace(l.on("spark3", "sparkrun", "gateway", "key", "create", "webui").must(t).out)
	check := strings.TrimSpace(l.on("spark3", "sparkrun", "gateway", "key", "create", "check", "--no-wake").must(t).out)
	l.says(l.chat("spark3", loopback, "qwen", check), 503, "model qwen is asleep, and key check may not wake it")
	is(time.Second, "qwen asleep", "llama asleep")

	l.says(l.chat("spark3", loopback, "qwen", key), 200, "qwen of spark2")
	l.says(l.chat("spark1", loopback, "qwen", check), 200, "qwen of spark2")
	l.says(l.chat("spark1", loopback, "llama", key), 200, "llama of spark2") // it waits for --min-up of the other
	is(time.Second, "qwen asleep", "llama ready")
	stream := l.chat("spark3", loopback, "llama", key, `, "stream": true, "max_tokens": 40`)
	time.Sleep(2 * time.Second) // until it is under way
	l.says(l.chat("spark1", loopback, "qwen", key), 200, "qwen of spark2")
	l.says(stream, 200, "word39")
	is(3*time.Minute, "qwen asleep", "llama asleep")

	leader := l.leader("spark1")
	l.do("kill", leader, "--agent")
	through := other(len(hosts), leader)[0]
	eventually(t, 60*time.Second, "another leads", func() bool { return l.leader(through) != leader })
	l.says(l.chat(through, loopback, "llama", key), 200, "llama of spark2")
	l.do("start", leader, "--agent")
	l.on(leader, "sparkrun", "status", "--wait-nodes", "3", "--timeout", "90s").must(t)
	for _, model := range []string{"qwen", "llama"} {
		l.on("spark1", "sparkrun", "stop", model).must(t)
	}
	l.assertNothingLeft(hosts...)
}
