package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fakeAddresser answers with one plan and notes what it is asked.
type fakeAddresser struct {
	plan     wire.NetplanPlan
	steps    []wire.NetplanProgress
	err      error
	requests []any
}

func (f *fakeAddresser) Calls() []wire.Call {
	return []wire.Call{wire.Netplan.Serve(f.netplan), wire.NetplanApply.Serve(f.apply)}
}

func (f *fakeAddresser) netplan(_ context.Context, _ wire.Caller, r wire.NetplanRequest) (wire.NetplanPlan, error) {
	f.requests = append(f.requests, r)
	return f.plan, nil
}

func (f *fakeAddresser) apply(_ context.Context, _ wire.Caller, r wire.NetplanApplyRequest,
	fn func(wire.NetplanProgress) error) error {
	f.requests = append(f.requests, r)
	for _, s := range f.steps {
		if err := fn(s); err != nil {
			return err
		}
	}
	return f.err
}

func pairPlan(verdicts ...*wire.NetplanVerdict) wire.NetplanPlan {
	text := "network: {version: 2}\n"
	p := wire.NetplanPlan{Why: "spark1 and spark2 are joined by one cable, seen by the probe", Digest: "d1",
		Notes: []string{"spark3 is away"}}
	for i, v := range verdicts {
		host := []string{"spark1", "spark2"}[i]
		p.Nodes = append(p.Nodes, wire.NetplanNode{Node: "id-1", Host: host, Text: &text, Verdict: v})
	}
	return p
}

func TestNetplanShow(t *testing.T) {
	f := &fakeAddresser{plan: pairPlan(nil, nil)}
	code, out, _ := cli(t, apptest.Agent(f), "netplan", "show")
	want := `spark1 and spark2 are joined by one cable, seen by the probe
note: spark3 is away

spark1:/etc/netplan/40-cx7.yaml
network: {version: 2}

spark2:/etc/netplan/40-cx7.yaml
network: {version: 2}
`
	if diff := cmp.Diff(want, out); diff != "" || code != 0 {
		t.Errorf("exit %d\n%s", code, diff)
	}
	// Of one machine it is the file itself: a script may redirect it.
	if code, out, _ := cli(t, apptest.Agent(f), "netplan", "show", "--node", "spark2"); code != 0 ||
		out != "network: {version: 2}\n" {
		t.Errorf("exit %d, %q", code, out)
	}
	if code, _, e := cli(t, apptest.Agent(f), "netplan", "show", "--node", "spark9"); code != 1 ||
		e != "sparkrun: show netplan of spark9: it gets no file: these do: spark1, spark2\n" {
		t.Errorf("exit %d, %q", code, e)
	}
	if diff := cmp.Diff([]any{wire.NetplanRequest{}, wire.NetplanRequest{}, wire.NetplanRequest{}},
		f.requests); diff != "" {
		t.Errorf("show asks for more than it shows:\n%s", diff)
	}
}

func TestNetplanChange(t *testing.T) {
	changed := &wire.NetplanVerdict{Diff: "+a\n", Changes: []string{"enp1s0f0np0 gets 192.168.177.11/24"},
		Mentions: []wire.NetplanMention{{Text: "/etc/netplan/50-x.yaml:3 names it", Blocks: true}, {Text: "another"}}}
	same := &wire.NetplanVerdict{Unchanged: true}
	no := &wire.NetplanVerdict{Diff: "+a\n", Refusal: "job train7 uses it"}
	committed := []wire.NetplanProgress{
		{Host: "spark1", NetplanStep: wire.NetplanStep{State: "written"}},
		{Host: "spark1", NetplanStep: wire.NetplanStep{State: "applied"}},
		{Host: "spark1", NetplanStep: wire.NetplanStep{State: "committed"}},
	}
	for name, tc := range map[string]struct {
		line     []string
		fake     *fakeAddresser
		code     int
		says     []string
		requests []any
	}{
		"diff": {
			line: []string{"diff"}, fake: &fakeAddresser{plan: pairPlan(changed, same)},
			says:     []string{"spark1\n+a\n  enp1s0f0np0 gets 192.168.177.11/24\n  SPOILS ours: /etc/netplan/50-x.yaml:3 names it\n  beside ours: another\n\nspark2\n  as it should be\n"},
			requests: []any{wire.NetplanRequest{Compare: true}},
		},
		"diff beside a file that spoils ours": {
			line: []string{"diff"}, fake: &fakeAddresser{plan: pairPlan(&wire.NetplanVerdict{Unchanged: true,
				Mentions: []wire.NetplanMention{{Text: "/etc/netplan/99-x.yaml:4 names it", Blocks: true}}})},
			says:     []string{"spark1\n  as it should be\n  SPOILS ours: /etc/netplan/99-x.yaml:4 names it\n"},
			requests: []any{wire.NetplanRequest{Compare: true}},
		},
		"apply": {
			line:     []string{"apply", "--yes", "--grace", "1m"},
			fake:     &fakeAddresser{plan: pairPlan(changed, same), steps: committed},
			says:     []string{"\nspark1: applied; waiting for its neighbours\nspark1: stays\ndone on spark1, spark2 after "},
			requests: []any{wire.NetplanRequest{Compare: true}, wire.NetplanApplyRequest{Digest: "d1", Grace: time.Minute}},
		},
		"nothing to do": {
			line: []string{"apply", "--yes"}, fake: &fakeAddresser{plan: pairPlan(same, same)},
			says: []string{"nothing to change"}, requests: []any{wire.NetplanRequest{Compare: true}},
		},
		"refused before it asks": {
			line: []string{"apply"}, fake: &fakeAddresser{plan: pairPlan(changed, no)}, code: 1,
			says:     []string{"refused: job train7 uses it", "spark2 would refuse, as above; nothing was touched"},
			requests: []any{wire.NetplanRequest{Compare: true}},
		},
		"nobody to ask": {
			line: []string{"apply"}, fake: &fakeAddresser{plan: pairPlan(changed)}, code: 2,
			says: []string{"give --yes to apply it"}, requests: []any{wire.NetplanRequest{Compare: true}},
		},
		"it fails": {
			line: []string{"apply", "-y", "--force"}, code: 1,
			fake: &fakeAddresser{plan: pairPlan(changed), err: errors.New("apply netplan: spark1: no echo"),
				steps: []wire.NetplanProgress{{Host: "spark1",
					NetplanStep: wire.NetplanStep{State: "rolled back", Error: "no echo"}}}},
			says: []string{"spark1: is back at what it had: no echo", "sparkrun: apply netplan: spark1: no echo"},
			requests: []any{wire.NetplanRequest{Compare: true, Force: true},
				wire.NetplanApplyRequest{Digest: "d1", Force: true}},
		},
		"rollback": {
			line: []string{"rollback", "--yes"}, fake: &fakeAddresser{plan: pairPlan(changed)},
			says: []string{"done on spark1 after"},
			requests: []any{wire.NetplanRequest{Compare: true, Rollback: true},
				wire.NetplanApplyRequest{Digest: "d1", Rollback: true}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, e := cli(t, apptest.Agent(tc.fake), append([]string{"netplan"}, tc.line...)...)
			if code != tc.code {
				t.Errorf("exit %d, want %d: %s", code, tc.code, e)
			}
			for _, want := range tc.says {
				if !strings.Contains(out+e, want) {
					t.Errorf("lacks %q:\n%s%s", want, out, e)
				}
			}
			if diff := cmp.Diff(tc.requests, tc.fake.requests); diff != "" {
				t.Errorf("asked:\n%s", diff)
			}
		})
	}
}
