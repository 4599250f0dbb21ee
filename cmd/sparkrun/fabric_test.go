package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/bundle"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func fabricCLI(t *testing.T, st wire.Status, f *apptest.FakeFabrics, line string) (code int, out, err string) {
	t.Helper()
	return cli(t, apptest.Agent(&apptest.FakeRunner{}, apptest.StatusIs(st, nil), f),
		strings.Fields(line)...)
}

func TestFabricForms(t *testing.T) {
	st := apptest.Pair(true)
	away := apptest.Spark("spark3", "13", "")
	away.State, away.Inventory = "away", envgen.Inventory{}
	st.Nodes = append(st.Nodes, away)
	for name, line := range map[string]string{
		"fabric.txt": "fabric", "fabric.map": "fabric --map", "fabric.ibdev2netdev": "fabric --ibdev2netdev",
		"fabric.gids": "fabric --gids --node spark1 --node spark2", "fabric-node.txt": "fabric --node spark2",
	} {
		code, out, err := fabricCLI(t, st, &apptest.FakeFabrics{}, line)
		if code != 0 || err != "sparkrun: nothing is known of spark3\n" {
			t.Errorf("%s: exit code %d, stderr %q", line, code, err)
		}
		apptest.Golden(t, name, out)
	}
	code, out, _ := fabricCLI(t, st, &apptest.FakeFabrics{}, "fabric --svg -")
	if code != 0 || !strings.HasPrefix(out, "<svg") {
		t.Errorf("exit code %d, %.40q", code, out)
	}
	file := filepath.Join(t.TempDir(), "a.svg")
	if code, _, err := fabricCLI(t, st, &apptest.FakeFabrics{}, "fabric --svg "+file); code != 0 {
		t.Errorf("exit code %d: %s", code, err)
	}
	if content, err := os.ReadFile(file); err != nil || string(content) != out {
		t.Errorf("%v, %.40q", err, content)
	}
}

// A witness has no part in the fabric, and nothing is wrong with that: what it
// adds is its own line.
func TestFabricWitness(t *testing.T) {
	st := apptest.Pair(true)
	_, without, _ := fabricCLI(t, st, &apptest.FakeFabrics{}, "fabric")
	_, drawn, _ := fabricCLI(t, st, &apptest.FakeFabrics{}, "fabric --map")
	st.Nodes = append(st.Nodes,
		wire.NodeStatus{ID: "id-pi", Host: "pi", Addr: netip.MustParseAddr("10.0.0.9"), State: "ready", Role: "voter",
			Witness: true,
			Inventory: envgen.Inventory{Host: "pi",
				NICs: []envgen.NIC{{Name: "eth0", Up: true, Physical: true,
					Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.9/24")}}}}})
	_, with, said := fabricCLI(t, st, &apptest.FakeFabrics{}, "fabric")
	const line = "\npi, 10.0.0.9\na witness: it votes, gets no ranks, and has no part in the fabric\n"
	if !strings.Contains(with, line) || said != "" {
		t.Errorf("stderr %q, stdout:\n%s", said, with)
	}
	if diff := cmp.Diff(without, strings.Replace(with, line, "", 1)); diff != "" {
		t.Errorf("-without +with:\n%s", diff)
	}
	if _, now, _ := fabricCLI(t, st, &apptest.FakeFabrics{}, "fabric --map"); now != drawn {
		t.Errorf("drawn:\n%s\nwithout it:\n%s", now, drawn)
	}
}

func TestFabricJSON(t *testing.T) {
	f := &apptest.FakeFabrics{Counts: wire.CountersResponse{Nodes: []wire.NodeCounters{{ID: "id-spark1", Host: "spark1",
		Counters: []envgen.Counters{{HCA: "rocep1s0f0", Span: time.Minute,
			Counts: map[string]uint64{"packet_seq_err": 5}}}}}}}
	code, out, _ := fabricCLI(t, apptest.Pair(true), f, "fabric --json")
	var got struct {
		Self, Leader string
		Topology     envgen.Topology
		Nodes        []wire.NodeStatus
		Counters     []wire.NodeCounters
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v in %s", code, err, out)
	}
	if got.Topology.Shape != envgen.ShapePair || got.Self != "spark1" || got.Leader != "spark1" || len(got.Nodes) != 2 ||
		len(got.Nodes[1].Inventory.Devices) != 2 || got.Counters[0].Counters[0].Counts["packet_seq_err"] != 5 {
		t.Errorf("%+v", got)
	}
}

func TestFabricRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"fabric --map --json":          "--map and --json: give one of them",
		"fabric --watch --gids":        "--gids does not go with it",
		"fabric --watch --from x":      "a report does not change",
		"fabric --map --node spark1":   "a drawing shows all machines",
		"fabric spark1":                "unexpected argument",
		"fabric --node spark9":         "no machine spark9: there are spark1, spark2",
		"fabric --from /nowhere":       "open report: open /nowhere: no such file",
		"fabric --from ../../LICENSE":  "--from ../../LICENSE: read report: no report of sparkrun",
		"fabric --svg /nowhere/at/all": "write /nowhere/at/all: no such file",
	} {
		code, out, err := fabricCLI(t, apptest.Pair(true), &apptest.FakeFabrics{}, line)
		if code == 0 || out != "" || !strings.Contains(err, want) {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q, want %q", line, code, out, err, want)
		}
	}
}

// Without a leader, and without an agent, it shows what there is and says so.
func TestFabricAlone(t *testing.T) {
	alone := apptest.Pair(true)
	alone.Leader, alone.Problem, alone.Nodes[1].Inventory = "", "no leader: spark2 does not answer", envgen.Inventory{}
	code, out, err := fabricCLI(t, alone, &apptest.FakeFabrics{}, "fabric")
	if code != 0 || !strings.Contains(out, "spark1, 10.0.0.11") ||
		!strings.Contains(err, "no leader: spark2 does not answer") {
		t.Errorf("exit code %d, stdout %s, stderr %s", code, out, err)
	}
	var o, e apptest.SyncBuffer
	b := apptest.Agent(&apptest.FakeRunner{}, apptest.StatusIs(wire.Status{}, node.ErrNoAgent), &apptest.FakeFabrics{})
	a := &app.App{Out: &o, Err: &e, Dial: func() *wire.Client { return b }, Columns: func() int { return 100 },
		Survey: func(context.Context) (envgen.Inventory, error) {
			return apptest.Spark("spark1", "11", "").Inventory, nil
		}}
	if code := execute(t.Context(), a, []string{"fabric"}); code != 0 || !strings.Contains(o.String(), "rocep1s0f0") ||
		!strings.Contains(e.String(), "no sparkrun agent runs on this machine") {
		t.Errorf("exit code %d, stdout %s, stderr %s", code, o.String(), e.String())
	}
}

// A report holds what all machines gave, no secrets, and shows the same fabric
// when it is read elsewhere.
func TestReport(t *testing.T) {
	st := apptest.Pair(true)
	c := apptest.StatusIs(st, nil)
	job := rendezvous.Job{}
	job.Spec.ID, job.Spec.Stages = "job2345678", []launcher.Stage{{
		Argv: launcher.Lits("serve", "--api-key", "hunter2", "--url=https://ada:hunter2@host/"),
		Env: []launcher.Var{{Name: "HF_TOKEN", Value: launcher.Lit("hunter2")},
			{Name: "PLAIN", Value: launcher.Lit("kept-as-it-is")}},
	}}
	c.Has.Jobs = []rendezvous.JobStatus{{Job: job}}
	f := &apptest.FakeFabrics{Evidence: []wire.Evidence{
		{Node: "id-spark1", Host: "spark1", Path: "agent.log", Data: []byte("joined with password=hunter2\n")},
		{Node: "id-spark1", Host: "spark1", Path: "sys/class/infiniband/x/node_guid", Data: []byte("4cbb:4703:002e:bf42\n")},
		{Node: "id-spark2", Host: "spark2", Missing: "spark2 does not answer"},
	}}
	file := filepath.Join(t.TempDir(), "r.tar.gz")
	b := apptest.Agent(&apptest.FakeRunner{}, c, f)
	code, out, err := cli(t, b, "report", "-o", file)
	if code != 0 || out != file+"\n" || !strings.Contains(err, "spark2 is not whole in it: spark2 does not answer") {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, out, err)
	}
	info, serr := os.Stat(file)
	if serr != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, mode %v: others may read it", serr, info.Mode())
	}
	content, rerr := os.ReadFile(file)
	if rerr != nil {
		t.Fatal(rerr)
	}
	r, rerr := bundle.Read(bytes.NewReader(content))
	if rerr != nil {
		t.Fatal(rerr)
	}
	for _, files := range []map[string][]byte{r.Cluster, r.Files["spark1"]} {
		for name, text := range files {
			if bytes.Contains(text, []byte("hunter2")) {
				t.Errorf("a secret is in %s: %s", name, text)
			}
		}
	}
	if !bytes.Contains(r.Cluster["jobs.json"], []byte("kept-as-it-is")) ||
		!bytes.Contains(r.Files["spark1"]["sys/class/infiniband/x/node_guid"], []byte("4cbb")) {
		t.Error("too much was taken out")
	}
	code, live, _ := fabricCLI(t, st, f, "fabric")
	fromCode, from, notes := cli(t, apptest.Agent(), "fabric", "--from", file)
	if code != 0 || fromCode != 0 {
		t.Fatalf("exit codes %d and %d: %s", code, fromCode, notes)
	}
	if diff := cmp.Diff(live, from); diff != "" {
		t.Errorf("-live +from the report:\n%s", diff)
	}
	// What spark1 gave is no whole capture, and spark2 gave nothing.
	if !strings.Contains(notes, "spark1: what was captured cannot be read again") ||
		!strings.Contains(notes, "spark2 is not whole in the report") {
		t.Errorf("notes: %s", notes)
	}
}

// A report from elsewhere commands no terminal.
func TestFromIsHarmless(t *testing.T) {
	evil := "spark\x1b]0;pwned\x07"
	st := apptest.Pair(true)
	st.Nodes[0].Host, st.Nodes[0].Inventory.Host, st.Problem = evil, evil, "\x1b[2J"
	st.Nodes[0].Inventory.Devices[0].Firmware = "\x1b[31m"
	st.Nodes[0].Inventory.NICs[1].Name = "eth\x1b[8m"
	text, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	r := bundle.Bundle{Manifest: bundle.Manifest{Host: evil,
		Nodes: []bundle.Node{{Host: "spark1", Missing: "\x1b[5m"}}}, Cluster: map[string][]byte{"status.json": text}}
	if err := bundle.Write(&packed, r); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{"", "--map", "--svg=-", "--ibdev2netdev", "--gids"} {
		var o, e apptest.SyncBuffer
		a := &app.App{In: bytes.NewReader(packed.Bytes()), Out: &o, Err: &e, Columns: func() int { return 100 }}
		if code := execute(t.Context(), a, strings.Fields("fabric --from - "+form)); code != 0 {
			t.Errorf("%s: exit code %d: %s", form, code, e.String())
		}
		if strings.ContainsAny(o.String()+e.String(), "\x1b\x07") {
			t.Errorf("%s: %q %q", form, o.String(), e.String())
		}
	}
}
