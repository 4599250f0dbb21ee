package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fakeModels answers what the commands of models ask.
type fakeModels struct {
	tells   []wire.ModelProgress
	err     error
	asked   []wire.ModelPullRequest
	sealed  []wire.SealRequest
	has     []wire.NodeModels
	judges  []wire.ModelVerdict
	removed []wire.NodeModelRemoved
	added   []wire.ModelAddRequest
}

func (f *fakeModels) Calls() []wire.Call {
	return []wire.Call{
		wire.ModelPull.Serve(func(_ context.Context, _ wire.Caller, r wire.ModelPullRequest, send func(wire.ModelProgress) error) error {
			f.asked = append(f.asked, r)
			for _, p := range f.tells {
				if err := send(p); err != nil {
					return err
				}
			}
			return f.err
		}),
		wire.Seal.Serve(func(_ context.Context, _ wire.Caller, r wire.SealRequest) (wire.SealResponse, error) {
			f.sealed = append(f.sealed, r)
			return wire.SealResponse{Secrets: []launcher.SealedSecret{{Name: r.Secrets[0].Name, Box: []byte("box")}}}, nil
		}),
		wire.Models.Unary.Serve(func(context.Context, wire.Caller, wire.ModelsRequest) (wire.ModelsResponse, error) {
			return wire.ModelsResponse{Nodes: f.has}, nil
		}),
		wire.ModelVerify.Serve(func(_ context.Context, _ wire.Caller, _ wire.ModelRequest, send func(wire.ModelVerdict) error) error {
			for _, v := range f.judges {
				if err := send(v); err != nil {
					return err
				}
			}
			return nil
		}),
		wire.ModelRemove.Serve(func(context.Context, wire.Caller, wire.ModelRemoveRequest) (wire.ModelRemoved, error) {
			return wire.ModelRemoved{Nodes: f.removed}, nil
		}),
		wire.ModelAdd.Serve(func(_ context.Context, _ wire.Caller, r wire.ModelAddRequest) (wire.ModelAdded, error) {
			f.added = append(f.added, r)
			return wire.ModelAdded{Repo: modelcache.Repo{Type: "model", Name: r.Name}, Commit: strings.Repeat("c", 40), Files: 2,
				Bytes: 1 << 30, Dir: "/cache/snapshot"}, nil
		}),
	}
}

var (
	aModel = modelcache.Repo{Type: modelcache.Model, Name: "org/m"}
	aPlan  = wire.ModelProgress{Plan: &wire.ModelPlan{Repo: aModel, Commit: strings.Repeat("a", 40), Files: 3, Bytes: 4 << 30,
		Hosts: []string{"spark1", "spark2"}, Left: map[string]int{"the same weights in another format": 2}}}
)

func at(host, state string, have int64) wire.ModelProgress {
	return wire.ModelProgress{Host: host, State: state, Have: have, Bytes: 4 << 30}
}

// A pull says what it fetches and what is left out, who was left and why, and where it lies then.
func TestModelPull(t *testing.T) {
	left := at("spark2", wire.ModelFetches, 1<<30)
	left.Notes = []string{"spark1 was left for model.safetensors at byte 5: sent wrong bytes"}
	done1, done2 := at("spark1", wire.ModelDone, 4<<30), at("spark2", wire.ModelDone, 4<<30)
	done1.Dir, done2.Dir = "/cache/snapshots/aaaa", "/cache/snapshots/aaaa"
	f := &fakeModels{tells: []wire.ModelProgress{{Asks: "https://hub"}, aPlan, at("spark1", wire.ModelWaits, 0), at("spark1", wire.ModelFetches, 1<<30),
		left, done1, done2}}
	code, out, errs := cli(t, apptest.Agent(f), "model", "pull", "org/m@v1", "--on", "spark2,spark1", "--limit", "1G")
	want := `sparkrun: asks https://hub for org/m@v1
sparkrun: org/m@aaaaaaaaaa: 3 files, 4 GiB, to spark1,spark2
sparkrun: left out: 2 files: the same weights in another format
sparkrun: spark1: 1 GiB of 4 GiB
sparkrun: spark2: spark1 was left for model.safetensors at byte 5: sent wrong bytes
sparkrun: spark2: 1 GiB of 4 GiB
sparkrun: spark1: whole: /cache/snapshots/aaaa
sparkrun: spark2: whole: /cache/snapshots/aaaa
`
	if d := cmp.Diff(want, errs); code != 0 || out != "/cache/snapshots/aaaa\n" || d != "" {
		t.Errorf("code %d, %q: %s", code, out, d)
	}
	r := f.asked[0]
	if r.Name != "org/m" || r.Revision != "v1" || strings.Join(r.On, ",") != "spark2,spark1" || r.Limit != 1<<30 ||
		r.ID.Validate() != nil || r.Token != nil {
		t.Errorf("asked %+v", r)
	}

	code, out, errs = cli(t, apptest.Agent(f), "model", "pull", "org/m", "--all", "--json")
	var told []wire.ModelProgress
	for dec := json.NewDecoder(strings.NewReader(out)); dec.More(); {
		var p wire.ModelProgress
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		told = append(told, p)
	}
	if d := cmp.Diff(f.tells, told); code != 0 || errs != "" || d != "" {
		t.Errorf("--json: code %d, %q: %s", code, errs, d)
	}
}

// Where a machine has not got all of it the exit code is 1, and what the cluster refuses is told with its remedy.
func TestModelPullFails(t *testing.T) {
	failed := at("spark2", wire.ModelFailed, 1<<30)
	failed.Error = "not enough room: /cache has 5 bytes free"
	done := at("spark1", wire.ModelDone, 4<<30)
	away := at("spark2", wire.ModelAway, 1<<30)
	away.Error = "does not answer"
	for what, tt := range map[string]struct {
		f    *fakeModels
		args string
		code int
		want string
	}{
		"a disk that is full":   {&fakeModels{tells: []wire.ModelProgress{aPlan, done, failed}}, "org/m --all", 1, "not enough room"},
		"a machine that is off": {&fakeModels{tells: []wire.ModelProgress{aPlan, done, away}}, "org/m --all", 1, "1 of 2 machines have not got all of it: spark2; what is there is kept: `sparkrun model pull org/m --all`"},
		"nothing of the kind": {&fakeModels{err: fmt.Errorf("pull org/m: %w: no such repository", wire.ErrNoModel)}, "org/m", 1,
			"no model found: no such repository"},
		"a gated one": {&fakeModels{err: fmt.Errorf("pull org/m: %w: it is gated: --secret HF_TOKEN", wire.ErrDenied)}, "org/m", 1,
			"--secret HF_TOKEN"},
		"a limit of nothing": {&fakeModels{}, "org/m --limit 0", 2, "want at least 1"},
		"no name":            {&fakeModels{}, "../m", 2, "ORG/NAME"},
		"no revision":        {&fakeModels{}, "org/m@", 2, "behind the @"},
		"two ways":           {&fakeModels{}, "org/m --all --nodes 2", 2, "one of --on, --nodes and --all"},
		"a missing token":    {&fakeModels{}, "org/m --secret HF_TOKEN", 1, "it is not set here"},
	} {
		code, _, errs := cli(t, apptest.Agent(tt.f), append([]string{"model", "pull"}, strings.Fields(tt.args)...)...)
		if code != tt.code || !strings.Contains(errs, tt.want) {
			t.Errorf("%s: code %d, %s", what, code, errs)
		}
	}
}

// The token goes to the agent to be sealed, and only its box goes with the request.
func TestModelPullToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("hf_x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	done := at("spark1", wire.ModelDone, 4<<30)
	f := &fakeModels{tells: []wire.ModelProgress{aPlan, done}}
	code, _, errs := cli(t, apptest.Agent(f), "model", "pull", "org/m", "--secret", "HF_TOKEN="+file)
	if code != 0 || len(f.sealed) != 1 || f.sealed[0].Job != f.asked[0].ID || string(f.sealed[0].Secrets[0].Value) != "hf_x" ||
		string(f.asked[0].Token.Box) != "box" || strings.Contains(errs, "hf_x") {
		t.Errorf("code %d, sealed %v, asked %+v, %s", code, f.sealed, f.asked, errs)
	}
}

func TestModelLs(t *testing.T) {
	whole := modelcache.Commit{Commit: strings.Repeat("a", 40), Refs: []string{"main"}, Files: 3, Bytes: 4 << 30, Have: 4 << 30}
	part := whole
	part.Have, part.Missing = 1<<30, []string{"model.safetensors"}
	held := func(c modelcache.Commit) wire.HeldModel {
		return wire.HeldModel{Held: modelcache.Held{Repo: aModel, Bytes: c.Have, Commits: []modelcache.Commit{c},
			Used: time.Now().Add(-3 * time.Hour)}}
	}
	coming, failed := held(part), held(part)
	foreign := held(modelcache.Commit{Commit: whole.Commit, Files: 1, Missing: []string{"model.safetensors"}, Unsized: true})
	foreign.Bytes, foreign.Used = 1<<30, time.Time{} // the half-written file
	coming.Pulling, failed.Why = "abcd", "not enough room"
	f := &fakeModels{has: []wire.NodeModels{
		{Host: "spark1", Dir: "/cache", Free: 1 << 40, Held: []wire.HeldModel{held(whole)}},
		{Host: "spark2", Dir: "/cache", Free: 1 << 40, Held: []wire.HeldModel{coming}},
		{Host: "spark3", Dir: "/cache", Free: 1 << 40, Held: []wire.HeldModel{failed, foreign}},
		{Host: "spark4", Error: "spark4 is away"},
	}}
	code, out, errs := cli(t, apptest.Agent(f), "model", "ls")
	want := `MODEL   REVISION          HOST     SIZE    STATE                   USED
org/m   aaaaaaaaaa main   spark1   4 GiB   whole                   3h ago
org/m   aaaaaaaaaa main   spark2   1 GiB   comes: 1 GiB of 4 GiB   3h ago
org/m   aaaaaaaaaa main   spark3   1 GiB   part: 1 GiB of 4 GiB    3h ago
org/m   aaaaaaaaaa        spark3   1 GiB   part                    -
`
	if d := cmp.Diff(want, out); code != 0 || d != "" {
		t.Errorf("code %d: %s", code, d)
	}
	for _, text := range []string{"spark1: 1 TiB free in /cache", "spark3: the last pull of org/m failed: not enough room",
		"spark4 is away"} {
		if !strings.Contains(errs, text) {
			t.Errorf("%q is not in %s", text, errs)
		}
	}
	if code, out, _ := cli(t, apptest.Agent(&fakeModels{}), "model", "ls"); code != 0 || out != "" {
		t.Errorf("with none: code %d, %q", code, out)
	}
}

func TestModelVerifyRmAdd(t *testing.T) {
	f := &fakeModels{
		judges: []wire.ModelVerdict{{Host: "spark1", Read: 1 << 30, Bytes: 4 << 30}, {Host: "spark1", Read: 4 << 30, Ended: true},
			{Host: "spark2", Ended: true, Bad: []modelcache.Bad{{Commit: strings.Repeat("a", 40), Path: "config.json", Why: "it is not there"}}}},
		removed: []wire.NodeModelRemoved{{Host: "spark1", Bytes: 4 << 30}, {Host: "spark2", Error: "it is in use"}},
	}
	b := apptest.Agent(f)
	for line, want := range map[string]struct {
		code      int
		out, errs string
	}{
		"model verify org/m": {1, "spark1: 4 GiB, all right\n", "spark2: config.json of aaaaaaaaaa: it is not there"},
		"model rm org/m":     {1, "spark1: 4 GiB freed\n", "remove org/m: it was not removed from 1 of 2 machines"},
		"model add out":      {2, "", "--name ORG/NAME"},
		"model add out --name ada/tuned": {0, "/cache/snapshot\n",
			"ada/tuned@cccccccccc: 2 files, 1 GiB"},
	} {
		code, out, errs := cli(t, b, strings.Fields(line)...)
		if code != want.code || out != want.out || !strings.Contains(errs, want.errs) {
			t.Errorf("%s: code %d, %q, %s", line, code, out, errs)
		}
	}
	if len(f.added) != 1 || f.added[0].Dir != "/home/ada/out" {
		t.Errorf("added %+v", f.added)
	}
}
