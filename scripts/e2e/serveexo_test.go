package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// exo's place is taken by a stand-in: what is tested is who is started where with what, that the
// model is placed on all machines and on their fabric, and what is told.
func TestServeExo(t *testing.T) {
	program := standinOf(t, "exo-standin", python)
	l := up(t, 2)
	launch := func(more ...string) serving {
		return l.serveWith("spark2", append([]string{"exo", "--exo", program, "--on", "spark1,spark2", "--restart", "no"}, more...)...)
	}
	s := launch("--name", "served", "mlx-community/model", "--", "--offline")
	url := s.url(t, serveWait)
	if r := s.wait(); r.code != 0 || !strings.HasSuffix(url, ":52415") {
		t.Errorf("launch leaves what serves, here at %s: %s: %s", url, r, s.said())
	}
	told := s.said() + s.out.String()
	for _, want := range []string{"stage workers is ready", "exo: spark1: loads layer 3 of 16; spark2: loads layer 3 of 16", "exo: mlx-community/model is ready", "stage serve is ready"} {
		if !strings.Contains(told, want) {
			t.Errorf("not told %q: %s", want, told)
		}
	}
	if out := l.on("spark2", "curl", "-sf", "-d", `{"model": "mlx-community/model"}`, url+"/v1/chat/completions").must(t).out; !strings.Contains(out, "from spark1") {
		t.Errorf("a completion: %s", out)
	}
	// The parts of the model meet on the fabric, and not where exo would have them.
	placed := func() map[string][]struct{ IP string } {
		var state struct {
			Instances map[string]struct {
				MlxRingInstance struct {
					HostsByNode map[string][]struct{ IP string }
				}
			}
		}
		if err := json.Unmarshal([]byte(l.on("spark2", "curl", "-sf", url+"/state").must(t).out), &state); err != nil {
			t.Fatal(err)
		}
		return state.Instances["sparkrun"].MlxRingInstance.HostsByNode
	}
	parts := placed()
	if len(parts) != 2 {
		t.Errorf("%d parts, want one a machine", len(parts))
	}
	for node, hosts := range parts {
		other := map[string]string{"12D3Koo-spark1": "192.168.100.12", "12D3Koo-spark2": "192.168.100.11"}[node]
		if len(hosts) != 2 || hosts[0].IP != other && hosts[1].IP != other {
			t.Errorf("%s looks for the other part at %v, want %s", node, hosts, other)
		}
	}
	if out := l.on("spark1", "curl", "-s", "-m", "2", "http://192.168.100.11:52415/health"); out.code == 0 {
		t.Error("it answers on the fabric, too, where nobody asked for that")
	}
	// Where exo has lost the model, it is placed again, and nothing ends.
	l.on("spark1", "curl", "-sf", "-X", "DELETE", url+"/instance/sparkrun").must(t)
	eventually(t, serveWait, "the model is placed again", func() bool {
		time.Sleep(200 * time.Millisecond)
		return len(placed()) == 2 && l.on("spark1", "curl", "-sf", url+"/health").code == 0
	})
	// One that dies takes all along, and is named.
	l.on("spark2", "pkill", "-KILL", "-f", "exo-standin --api-port").must(t)
	eventually(t, serveWait, "the exo that died is named", func() bool {
		return strings.Contains(l.on("spark1", "sparkrun", "ps", "served").out, "stage workers, rank 2 on spark2: killed by SIGKILL")
	})
	l.assertNothingLeft("spark1", "spark2")

	// exo's own words where it has no room.
	if said := launch("too/big").ended(t); !strings.Contains(said, "exo does not take the model too/big: No cycles found with sufficient memory") {
		t.Errorf("too big: %s", said)
	}
	l.assertNothingLeft("spark1", "spark2")
}
