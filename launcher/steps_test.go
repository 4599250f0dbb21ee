package launcher

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// goodSteps is a head, a worker on each other node, and a command of two ranks on the head.
func goodSteps() Spec {
	s := goodSpec()
	s.Nodes = 3
	st := func(name string, where Where, ranks int) Stage {
		return Stage{Name: name, Where: where, RanksPerNode: ranks, Argv: Lits("true"), Workdir: "/"}
	}
	head, rest, command := st("head", OnHead, 1), st("rest", OnRest, 2), st("command", OnHead, 2)
	head.Ports = []NamedPort{{Name: "gcs"}}
	rest.Ports = []NamedPort{{Name: "workers", Count: 4}}
	rest.Argv = []Value{Lit("x"), Of(HeadPortNamed("gcs")), Of(PortNamed("workers")), Of(LastPortNamed("workers")),
		Of(Rank), Of(WorldSize)}
	rest.Ready = []Probe{{Kind: ProbeExec, Head: true, What: "nodes", Argv: Lits("true"), Match: `(\d+)`,
		Want: Of(NodeCount)}}
	command.Main = true
	s.Stages = []Stage{head, rest, command, {Name: StageBefore, RanksPerNode: 1, Argv: Lits("true"), Workdir: "/"}}
	return s
}

// Each rank has one number in the job, in a row on its node, and its place in its stage.
func TestStepsNumberRanks(t *testing.T) {
	s := goodSteps()
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	first := 0
	var got []string
	for node := range 3 {
		a := Assignment{Key: Key{Job: s.ID, Generation: 1}, Spec: s.Only(""), NodeRank: node, NodeCount: 3,
			FirstRank: first, Ranks: s.RanksOn(node), World: 7}
		for i := range a.Ranks {
			_, st, placement := a.Local(i)
			placement.Ports, placement.HeadPorts = map[string]Ports{"workers": {20000, 20003}},
				map[string]Ports{"gcs": {20100, 20100}}
			argv, err := placement.Argv(st)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, st.Name+" "+strings.Join(argv[1:], " "))
		}
		first += a.Ranks
	}
	want := []string{"head ", "command ", "command ",
		"rest 20100 20000 20003 0 4", "rest 20100 20000 20003 1 4", "rest 20100 20000 20003 2 4",
		"rest 20100 20000 20003 3 4"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if s.WorldOf(3) != 7 || !s.Stepped() || goodSpec().Stepped() {
		t.Errorf("world %d, stepped %v and %v", s.WorldOf(3), s.Stepped(), goodSpec().Stepped())
	}
}

func TestStepsValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*Spec)
		want   string
	}{
		"two of a name":     {func(s *Spec) { s.Stages[1].Name = "head" }, `stage "head"`},
		"nodes of tomorrow": {func(s *Spec) { s.Stages[1].Where = "odd" }, `nodes "odd"`},
		"a port that nobody has": {func(s *Spec) { s.Stages[2].Argv = []Value{Of(HeadPortNamed("web"))} },
			"no stage has such a port"},
		"the head's, of others": {func(s *Spec) { s.Stages[2].Argv = []Value{Of(HeadPortNamed("workers"))} },
			"no stage has such a port"},
		"a port twice":        {func(s *Spec) { s.Stages[1].Ports[0].Name = "gcs" }, "want a name of its own"},
		"too many ports":      {func(s *Spec) { s.Stages[1].Ports[0].Count = MaxPortCount + 1 }, "1 to 2048 ports"},
		"a pattern":           {func(s *Spec) { s.Stages[1].Ready[0].Match = "(" }, "missing closing"},
		"a probe of tomorrow": {func(s *Spec) { s.Stages[1].Ready[0].Kind = "grpc" }, `a "grpc" probe`},
		"half a probe":        {func(s *Spec) { s.Stages[1].Ready[0].Argv = nil }, `a "exec" probe`},
		"a port of nobody's": {func(s *Spec) {
			s.Stages[1].Ready[0] = Probe{Kind: ProbeHTTP, What: "x", Path: "/",
				Port: Lit("2375")}
		}, `port "2375": want a named port of the job`},
		"a port in parts": {func(s *Spec) {
			s.Stages[1].Ready[0] = Probe{Kind: ProbeTCP, What: "x", Port: Value{{Lit: "2"}, {Ref: PortNamed("workers")}}}
		}, "want a named port of the job"},
		"a port of its own": {func(s *Spec) {
			s.Stages[1].Ready[0] = Probe{Kind: ProbeTCP, What: "x",
				Port: Of(PortNamed("workers"))}
		}, ""},
		"asked where it is not": {func(s *Spec) {
			s.Stages[1].Ready[0] = Probe{Kind: ProbeTCP, Head: true, What: "x", Port: Of(PortNamed("workers"))}
		}, "no stage has such a port there"},
		"another's, as its own": {func(s *Spec) { s.Stages[1].Argv = []Value{Of(PortNamed("gcs"))} },
			"no stage has such a port there"},
		"all ports there are": {func(s *Spec) {
			s.Stages[2].Ports = []NamedPort{{Name: "a", Count: 1024},
				{Name: "b", Count: 1024}}
		}, "2049 ports on a node, at most 2048"},
		"ports beyond the last": {func(s *Spec) {
			s.Stages[0].Ports[0] = NamedPort{Name: "gcs", At: 65535,
				Count: 2}
		}, "more than there are"},
		"a pattern that repeats": {func(s *Spec) { s.Stages[1].Ready[0].Match = `(a{1,30}){1,30}` }, "repeats too much"},
		"a wordless probe":       {func(s *Spec) { s.Stages[1].Ready[0].What = "" }, "want words"},
		"nobody on the head": {func(s *Spec) {
			s.Stages = s.Stages[1:2]
			s.Stages[0].Main, s.Stages[0].Argv = true,
				Lits("true")
		}, "0 ranks on node 0"},
		"one in containers": {func(s *Spec) {
			st := &s.Stages[1]
			st.Container, st.Argv = &Container{Image: "ray", Argv: st.Argv}, nil
		}, "containers of one kind"},
		"all in containers": {func(s *Spec) {
			for i := range s.Stages {
				st := &s.Stages[i]
				st.Container, st.Argv = &Container{Image: "ray", Argv: st.Argv}, nil
			}
		}, ""},
		"processes of nobody's":  {func(s *Spec) { s.Stages[2].PIDsOf = "tail" }, "is not an earlier stage on the same nodes"},
		"processes of its own":   {func(s *Spec) { s.Stages[0].PIDsOf = "head" }, "is not an earlier stage on the same nodes"},
		"processes of elsewhere": {func(s *Spec) { s.Stages[1].PIDsOf = "head" }, "is not an earlier stage on the same nodes"},
		"ranks of before":        {func(s *Spec) { s.Stages[3].RanksPerNode = 2 }, "2 ranks, want one"},
		"one node":               {func(s *Spec) { s.Nodes = 1 }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := goodSteps()
			tt.change(&s)
			err := s.Validate()
			if tt.want == "" && err != nil || tt.want != "" &&
				(!errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
