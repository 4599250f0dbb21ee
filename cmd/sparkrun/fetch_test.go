package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const snapshotDir = "/var/lib/sparkrun/models/models--org--m/snapshots/"

// A launch of a model that its machines lack fetches it first, for those machines, and the engine gets the folder.
func TestLaunchFetchesFirst(t *testing.T) {
	commit := strings.Repeat("a", 40)
	has := func(host string) wire.NodeModels {
		return wire.NodeModels{Host: host, Dir: "/var/lib/sparkrun/models", Held: []wire.HeldModel{{Held: modelcache.Held{
			Repo: aModel, Commits: []modelcache.Commit{{Commit: commit, Refs: []string{"main"}, Files: 3, Have: 9, Bytes: 9}}}}}}
	}
	whole := func(host string) wire.ModelProgress {
		p := at(host, wire.ModelDone, 4<<30)
		p.Dir = snapshotDir + commit
		return p
	}
	mine := &launcher.ModelCopy{Dir: "/home/ada/hub/abc", Found: true, Bytes: 9, Config: []byte(`{"model_type":"m"}`)}
	refused := at("spark2", wire.ModelFailed, 1)
	refused.Error = "no room"
	for name, tc := range map[string]struct {
		models  fakeModels
		own     *launcher.ModelCopy // what each machine's user has
		lacks   bool                // but for the second machine's
		refuses string              // what the second machine says of the launch
		flags   []string
		asks    string // the hosts of the pull
		fetched bool   // the engine gets the folder
		online  bool   // and keeps its own cache, since it may need more
		code    int
		said    string
	}{
		"fetched": {models: fakeModels{tells: []wire.ModelProgress{aPlan, whole("spark1"), whole("spark2")}},
			asks: "spark1,spark2", fetched: true, said: "org/m@aaaaaaaaaa: 3 files, 4 GiB, to spark1,spark2"},
		"there already": {models: fakeModels{has: []wire.NodeModels{has("spark1"), has("spark2"), {Host: "spark3"}}},
			fetched: true},
		"one lacks it": {models: fakeModels{has: []wire.NodeModels{has("spark1"), {Host: "spark2"}},
			tells: []wire.ModelProgress{aPlan, whole("spark1"), whole("spark2")}}, asks: "spark1,spark2", fetched: true},
		"another revision": {models: fakeModels{has: []wire.NodeModels{has("spark1"), has("spark2")},
			tells: []wire.ModelProgress{aPlan, whole("spark1"), whole("spark2")}}, flags: []string{"--", "--revision", "v2"},
			asks: "spark1,spark2 v2", fetched: true},
		"with a second model": {models: fakeModels{has: []wire.NodeModels{has("spark1"), has("spark2")}},
			flags: []string{"--", "--speculative-config", `{"model":"org/draft"}`}, fetched: true, online: true},
		"its commit": {models: fakeModels{has: []wire.NodeModels{has("spark1"), has("spark2")}},
			flags: []string{"--", "--revision", commit}, fetched: true},
		"the user's own": {own: mine},
		"one user's own": {own: mine, lacks: true, models: fakeModels{tells: []wire.ModelProgress{aPlan, whole("spark1"),
			whole("spark2")}}, asks: "spark1,spark2 briefly", fetched: true},
		"not wanted": {flags: []string{"--no-fetch"}},
		"own cache":  {flags: []string{"--env", "HF_HOME=/data/hf"}},
		"refused": {models: fakeModels{err: wire.ErrDenied}, asks: "spark1,spark2",
			said: "each machine's server looks for it by itself; heads, size and memory are unchecked\n"},
		"refused, though known": {models: fakeModels{err: wire.ErrDenied}, own: mine, lacks: true,
			asks: "spark1,spark2 briefly", said: "each machine's server looks for it by itself\n"},
		"a launch that will be refused": {refuses: "its Docker is not there"},
		"failed": {models: fakeModels{tells: []wire.ModelProgress{aPlan, whole("spark1"), refused}}, asks: "spark1,spark2",
			code: 125, said: "1 of 2 machines have not got all of it: spark2"},
		"shown": {flags: []string{"--dry-run"}, said: "a launch fetches what is missing of org/m first, to spark1,spark2"},
	} {
		t.Run(name, func(t *testing.T) {
			other := tc.own
			if tc.lacks {
				other = nil
			}
			runner := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(2), apptest.Ended(apptest.Rejected)),
				OnExplain: func(_ context.Context, r wire.LaunchRequest) (wire.ExplainResponse, error) {
					return wire.ExplainResponse{Plan: rendezvous.Plan{World: 2, Head: netip.MustParseAddr("192.168.0.1")},
						Nodes: []wire.NodePlan{{Host: "spark1", Model: tc.own}, {Host: "spark2", Model: other, Error: tc.refuses}}}, nil
				}}
			b := apptest.Agent(runner, &apptest.FakeCluster{}, &tc.models)
			args := append([]string{"launch", "vllm", "--runtime", "host", "--backend", "native", "--nodes", "2", "org/m"},
				tc.flags...)
			code, _, said := cliIn(t, b, []string{"PATH=/bin", "HOME=" + t.TempDir()}, args...)
			asks := ""
			for _, r := range tc.models.asked {
				asks += strings.TrimSpace(r.Name + " " + strings.Join(r.On, ",") + " " + r.Revision)
				if r.Brief {
					asks += " briefly"
				}
			}
			if tc.asks != "" {
				tc.asks = "org/m " + tc.asks
			}
			if asks != tc.asks || !strings.Contains(said, tc.said) || tc.code != 0 && code != tc.code {
				t.Errorf("code %d, asked for %q, said:\n%s", code, asks, said)
			}
			if tc.code != 0 || name == "shown" {
				if len(runner.Specs) > 0 {
					t.Error("it was launched")
				}
				return
			}
			if len(runner.Specs) != 1 {
				t.Fatalf("launched %d times, said:\n%s", len(runner.Specs), said)
			}
			spec := runner.Specs[0]
			env := map[string]string{}
			for _, v := range spec.MainStage().Env {
				env[v.Name] = v.Value.String()
			}
			argv := ""
			for _, v := range spec.MainStage().Command() {
				argv += v.String() + " "
			}
			cache, offline := "/var/lib/sparkrun/models", "1"
			if tc.online {
				cache, offline = "", ""
			}
			with := strings.Contains(argv, "serve "+snapshotDir+commit+" ") &&
				strings.Contains(argv, "--served-model-name org/m ") && env["HF_HUB_CACHE"] == cache &&
				env["HF_HUB_OFFLINE"] == offline && !strings.Contains(argv, "--revision") && strings.Join(spec.On, ",") == "spark1,spark2"
			without := strings.Contains(argv, "serve org/m ") && env["HF_HUB_CACHE"] == "" && len(spec.On) == 0
			if tc.fetched && !with || !tc.fetched && !without {
				t.Errorf("on %q: %s with %q", spec.On, argv, env)
			}
		})
	}
}

// With --json what is fetched first is told as objects among the others, each with its type: a line for each change,
// none for what is as before. With --detach the job's id stays the only one.
func TestLaunchTellsFetchAsJSON(t *testing.T) {
	done := at("spark1", wire.ModelDone, 4<<30)
	done.Dir = snapshotDir + strings.Repeat("a", 40)
	fetches := at("spark1", wire.ModelFetches, 1<<30)
	for flag, want := range map[string]string{"--json": "plan,spark1 fetches 1073741824,spark1 done 4294967296", "--json -d": ""} {
		runner := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Ended(apptest.Rejected)),
			OnExplain: func(context.Context, wire.LaunchRequest) (wire.ExplainResponse, error) {
				return wire.ExplainResponse{Plan: rendezvous.Plan{World: 1, Head: netip.MustParseAddr("192.168.0.1")},
					Nodes: []wire.NodePlan{{Host: "spark1"}}}, nil
			}}
		b := apptest.Agent(runner, &apptest.FakeCluster{},
			&fakeModels{tells: []wire.ModelProgress{aPlan, fetches, fetches, done}})
		_, out, said := cliIn(t, b, []string{"PATH=/bin", "HOME=" + t.TempDir()},
			append(strings.Fields("launch vllm --runtime host org/m"), strings.Fields(flag)...)...)
		var got []string
		for line := range strings.Lines(out) {
			var x struct {
				Type, Host, State string
				Have              int64
				Plan              *wire.ModelPlan
			}
			if err := json.Unmarshal([]byte(line), &x); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			switch {
			case x.Type != "fetch":
			case x.Plan != nil:
				got = append(got, "plan")
			default:
				got = append(got, fmt.Sprintf("%s %s %d", x.Host, x.State, x.Have))
			}
		}
		if strings.Join(got, ",") != want || strings.Contains(said, "whole: ") != (want == "") {
			t.Errorf("%s: told %q, said:\n%s", flag, got, said)
		}
	}
}
