package launcher

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var secondNode = Assignment{
	Key:  Key{Job: "abcd", Generation: 3},
	Node: "id2", Host: "spark2",
	NodeRank: 1, NodeCount: 2, FirstRank: 4, Ranks: 4, World: 8,
	Restarts: 2, Head: netip.MustParseAddr("192.168.100.1"), Addr: netip.MustParseAddr("192.168.100.2"),
	Management: netip.MustParseAddr("10.0.0.2"),
	Rest:       []netip.Addr{netip.MustParseAddr("192.168.100.2"), netip.MustParseAddr("fd00::3")},
}

func TestResolveKnowsEveryRef(t *testing.T) {
	want := map[Ref]string{
		Rank: "6", LocalRank: "2", NodeRank: "1", WorldSize: "8", LocalWorldSize: "4", NodeCount: "2",
		Head: "192.168.100.1", Port: "29500", NodeAddr: "192.168.100.2", Management: "10.0.0.2", HeadHere: "0",
		Host: "spark2", Job: "abcd", RestartCount: "2",
		RestAt(50052): "192.168.100.2:50052,[fd00::3]:50052",
	}
	placement := secondNode.Placement(2, 29500)
	for ref, text := range want {
		got, err := placement.Resolve(Of(ref))
		if err != nil || got != text {
			t.Errorf("<%s> = %q, %v, want %q", ref, got, err, text)
		}
	}
}

func TestResolveJoinsParts(t *testing.T) {
	v := Value{{Lit: "tcp://"}, {Ref: Head}, {Lit: ":"}, {Ref: Port}, {}}
	got, err := secondNode.Placement(0, 29501).Resolve(v)
	if err != nil || got != "tcp://192.168.100.1:29501" {
		t.Errorf("got %q, %v", got, err)
	}
	if v.String() != "tcp://<head>:<port>" {
		t.Errorf("shown as %q", v)
	}
	// No text is ever read as a template.
	if got, _ := (Placement{}).Resolve(Lit("<head> {{.Rank}} $RANK")); got != "<head> {{.Rank}} $RANK" {
		t.Errorf("literal text became %q", got)
	}
}

func TestResolveRefusesAnUnknownRef(t *testing.T) {
	if _, err := (Placement{}).Resolve(Of("moon")); !errors.Is(err, ErrInvalid) {
		t.Errorf("error %v", err)
	}
	if _, err := (Placement{}).Resolve(Of("rest-at:x")); !errors.Is(err, ErrInvalid) {
		t.Errorf("no port: %v", err)
	}
	if _, err := (Placement{}).Argv(Stage{Argv: []Value{Lit("a"), Of("moon")}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("error %v", err)
	}
}

func TestArgv(t *testing.T) {
	got, err := secondNode.Placement(3, 1).Argv(Stage{Argv: []Value{Lit("run"), {{Lit: "--rank="}, {Ref: Rank}}, Lit("")}})
	if d := cmp.Diff([]string{"run", "--rank=7", ""}, got); err != nil || d != "" {
		t.Error(err, d)
	}
}
