package exo

import (
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func state(t *testing.T, text string) (s State) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// Two nodes as exo tells of them, of which only what is put in its place differs.
func two(t *testing.T, more string) State {
	t.Helper()
	return state(t, `{
		"topology":{"nodes":["A","B"],"connections":{"A":{"B":[{"sinkMultiaddr":{"address":"/ip4/10.0.0.2/tcp/52416"}}]},"B":{"A":[]}}},
		"nodeIdentities":{"A":{"friendlyName":"spark1"},"B":{"friendlyName":"spark2"}},
		"nodeMemory":{"A":{},"B":{}},
		"nodeNetwork":{"A":{"interfaces":[{"ipAddress":"127.0.0.1"},{"ipAddress":"10.0.0.1"},{"ipAddress":"192.168.0.1"}]},
			"B":{"interfaces":[{"ipAddress":"10.0.0.2"},{"ipAddress":"fe80::1%en0"},{"ipAddress":"192.168.0.2"}]}}`+more+`}`)
}

func TestWaits(t *testing.T) {
	for name, tc := range map[string]struct {
		state State
		nodes int
		want  string
	}{
		"nobody yet":   {state(t, `{}`), 2, "0 of 2 machines have found each other"},
		"one is away":  {two(t, ""), 3, "2 of 3 machines have found each other"},
		"all":          {two(t, ""), 2, ""},
		"one way only": {two(t, `,"topology":{"nodes":["A","B"],"connections":{"B":{"A":[]}}}`), 2, "spark1 has not reached spark2 yet"},
		"no memory":    {two(t, `,"topology":{"nodes":["A","C"]}`), 2, "C has not told its memory yet"},
	} {
		if name == "one way only" { // JSON's maps are merged
			tc.state.Topology.Connections = map[string]map[string]json.RawMessage{"B": {"A": nil}}
		}
		if name == "no memory" {
			tc.state.Topology.Connections = map[string]map[string]json.RawMessage{"A": {"C": nil}, "C": {"A": nil}}
		}
		if got := tc.state.Waits(tc.nodes); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

const proposed = `{"MlxRingInstance":{"instanceId":"random","shardAssignments":{"modelId":"org/m",
	"runnerToShard":{"ra":{"PipelineShardMetadata":{"deviceRank":1,"worldSize":2}},"rb":{"PipelineShardMetadata":{"deviceRank":0,"worldSize":2}}},
	"nodeToRunner":{"A":"ra","B":"rb"}},
	"hostsByNode":{"A":[{"ip":"10.0.0.2","port":50000},{"ip":"0.0.0.0","port":50000}],"B":[{"ip":"0.0.0.0","port":50000},{"ip":"10.0.0.1","port":50000}]},"ephemeralPort":50000}}`

// The parts meet on the network that the job meets on, where all nodes have an address there.
func TestPlace(t *testing.T) {
	hosts := func(network string, s State) map[string][]host {
		t.Helper()
		var p netip.Prefix
		if network != "" {
			p = netip.MustParsePrefix(network)
		}
		b, err := Place([]byte(proposed), s, p)
		if err != nil {
			t.Fatal(err)
		}
		var out struct {
			Instance struct {
				Ring struct {
					ID     string                     `json:"instanceId"`
					Shards map[string]json.RawMessage `json:"shardAssignments"`
					Hosts  map[string][]host          `json:"hostsByNode"`
					Port   int                        `json:"ephemeralPort"`
				} `json:"MlxRingInstance"`
			} `json:"instance"`
		}
		if err := json.Unmarshal(b, &out); err != nil {
			t.Fatal(err)
		}
		if r := out.Instance.Ring; r.ID != Instance || r.Port != 50000 || len(r.Shards) != 3 {
			t.Errorf("it is not the proposed one: %s", b)
		}
		return out.Instance.Ring.Hosts
	}
	own := map[string][]host{"A": {{"10.0.0.2", 50000}, {"0.0.0.0", 50000}}, "B": {{"0.0.0.0", 50000}, {"10.0.0.1", 50000}}}
	fabric := map[string][]host{"A": {{"192.168.0.2", 50000}, {"0.0.0.0", 50000}}, "B": {{"0.0.0.0", 50000}, {"192.168.0.1", 50000}}}
	for network, want := range map[string]map[string][]host{"192.168.0.0/24": fabric, "": own, "172.16.0.0/12": own} {
		if d := cmp.Diff(want, hosts(network, two(t, ""))); d != "" {
			t.Errorf("%q: %s", network, d)
		}
	}
	for _, strange := range []string{``, `[]`, `{}`, `{"error":{"message":"x"},"more":{}}`, `{"MlxRingInstance":{"hostsByNode":{"A":7}}}`,
		`{"MlxRingInstance":{"hostsByNode":{},"shardAssignments":{"nodeToRunner":{"A":"r"},"runnerToShard":{"r":{"X":{"deviceRank":9}}}}}}`} {
		if b, err := Place([]byte(strange), two(t, ""), netip.MustParsePrefix("192.168.0.0/24")); err == nil {
			t.Errorf("%s became %s", strange, b)
		}
	}
}

func TestProgress(t *testing.T) {
	placed := `,"instances":{"other":{},"sparkrun":` + proposed + `},"downloads":{"B":[
		{"DownloadFailed":{"shardMetadata":{"PipelineShardMetadata":{"modelCard":{"modelId":"org/other"}}},"errorMessage":"not ours"}},
		{"DownloadOngoing":{"shardMetadata":{"PipelineShardMetadata":{"modelCard":{"modelId":"org/m"}}},"downloadProgress":{"total":{"inBytes":1073741824},"downloaded":{"inBytes":536870912}}}}]}`
	for runners, want := range map[string]Progress{
		`{}`: {Placed: true, Lines: []string{"spark1: begins", "spark2: fetches weights, 512 of 1024 MiB"}},
		`{"ra":{"RunnerLoading":{"layersLoaded":3,"totalLayers":16}},"rb":{"RunnerConnecting":{}}}`: {Placed: true, Lines: []string{"spark1: loads layer 3 of 16", "spark2: meets the other machines"}},
		`{"ra":{"RunnerReady":{}},"rb":{"RunnerFailed":{"errorMessage":"out of memory"}}}`:          {Placed: true, Failed: "spark2: failed: out of memory", Lines: []string{"spark1: is ready", "spark2: failed: out of memory"}},
		`{"ra":{"RunnerShuttingDown":{}},"rb":{"RunnerShutdown":{}}}`:                               {Placed: true, Lines: []string{"spark1: ends", "spark2: has ended"}},
		`{"ra":{"RunnerReady":{}},"rb":{"RunnerDozing":{}}}`:                                        {Placed: true, Lines: []string{"spark1: is ready", "spark2: RunnerDozing"}},
		`{"ra":{"RunnerReady":{}},"rb":{"RunnerRunning":{}}}`:                                       {Placed: true, Ready: true, Lines: []string{"spark1: is ready", "spark2: is at work"}},
	} {
		if d := cmp.Diff(want, two(t, placed+`,"runners":`+runners).Progress()); d != "" {
			t.Errorf("%s: %s", runners, d)
		}
	}
	for _, placed := range []string{`{}`, strings.Replace(proposed, "nodeToRunner", "runnerOfNode", 1), strings.Replace(proposed, "shardAssignments", "shards", 1)} {
		want := Progress{Placed: true, Lines: []string{"exo tells of it in a form that is not known"}}
		if d := cmp.Diff(want, two(t, `,"instances":{"sparkrun":`+placed+`},"runners":{"ra":{"RunnerReady":{}},"rb":{"RunnerReady":{}}}`).Progress()); d != "" {
			t.Errorf("%s: %s", placed, d)
		}
	}
	if p := two(t, `,"instances":{"other":`+proposed+`}`).Progress(); p.Placed || p.Ready {
		t.Errorf("another's model is ours: %+v", p)
	}
}

func TestReason(t *testing.T) {
	for body, want := range map[string]string{
		`{"error":{"message":"No cycles found with sufficient memory","type":"Bad Request","code":400}}`: "No cycles found with sufficient memory",
		`{"detail":"Not Found"}`: "Not Found", "Internal Server Error": "Internal Server Error", "": "", strings.Repeat("x", 300): strings.Repeat("x", 200),
	} {
		if got := Reason([]byte(body)); got != want {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
}

// What exo 1.0.71 itself has told of two nodes that have found each other.
func TestRealState(t *testing.T) {
	b, err := os.ReadFile("testdata/state-1.0.71.json")
	if err != nil {
		t.Fatal(err)
	}
	s := state(t, string(b))
	if why := s.Waits(2); why != "" {
		t.Error(why)
	}
	if why := s.Waits(3); why != "2 of 3 machines have found each other" {
		t.Error(why)
	}
	if p := s.Progress(); p.Placed || p.Ready {
		t.Errorf("nothing is placed: %+v", p)
	}
	for _, node := range s.Topology.Nodes {
		if a := s.on(node, netip.MustParsePrefix("192.168.100.0/24")); a == "" || !strings.HasPrefix(s.host(node), "spark") {
			t.Errorf("%s is %s, at %q of the fabric", node, s.host(node), a)
		}
	}
}
