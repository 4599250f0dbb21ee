package launcher

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// goodSpec is the smallest spec that Validate lets pass.
func goodSpec() Spec {
	return Spec{
		ID: "abcd", Nodes: 1,
		Stages: []Stage{{Name: "main", Main: true, RanksPerNode: 1, Argv: Lits("true"), Workdir: "/"}},
	}
}

func TestSpecValidate(t *testing.T) {
	tests := map[string]struct {
		change func(*Spec)
		want   string // a part of the error; empty = valid
	}{
		"smallest":           {func(*Spec) {}, ""},
		"id too short":       {func(s *Spec) { s.ID = "abc" }, `job id "abc"`},
		"id too long":        {func(s *Spec) { s.ID = JobID(strings.Repeat("a", 33)) }, "job id"},
		"id with a path":     {func(s *Spec) { s.ID = "../../etc" }, "job id"},
		"id with a new line": {func(s *Spec) { s.ID = "abcd\n" }, "job id"},
		"name":               {func(s *Spec) { s.Name = "Llama-3.1_70B" }, ""},
		"name with a space":  {func(s *Spec) { s.Name = "a b" }, `--name "a b"`},
		"name like a flag":   {func(s *Spec) { s.Name = "-a" }, "--name"},
		"nodes below zero":   {func(s *Spec) { s.Nodes = -1 }, "--nodes -1"},
		"nodes as --on says": {func(s *Spec) { s.Nodes, s.On = 0, []string{"a", "b"} }, ""},
		"fewer than --on":    {func(s *Spec) { s.Nodes, s.On = 1, []string{"a", "b"} }, ""},
		"more than --on":     {func(s *Spec) { s.Nodes, s.On = 3, []string{"a", "b"} }, "--on names fewer: a, b"},
		"--on twice":         {func(s *Spec) { s.Nodes, s.On = 2, []string{"a", "a"} }, "--on a: invalid: named twice"},
		"--on and --exclude": {func(s *Spec) { s.On, s.Exclude = []string{"a"}, []string{"b", "a"} }, "--exclude a"},
		"input of no rank": {func(s *Spec) { s.Nodes, s.Stages[0].Stdin = 2, "2" },
			"--stdin 2: invalid: the job's ranks are 0 to 1"},
		"input of the last": {func(s *Spec) { s.Nodes, s.On, s.Stages[0].Stdin = 0, []string{"a", "b"}, "1" }, ""},
		"too many variables": {func(s *Spec) {
			s.Stages[0].Env = make([]Var, MaxEnv+1)
			for i := range s.Stages[0].Env {
				s.Stages[0].Env[i] = Var{Name: "A", Value: Lit("1")}
			}
		}, "1025 variables"},
		"grace below zero":    {func(s *Spec) { s.Grace = -1 }, "duration below zero"},
		"time-out below zero": {func(s *Spec) { s.NodeTimeout = -time.Second }, "duration below zero"},
		"time limit below 0":  {func(s *Spec) { s.Timeout = -1 }, "duration below zero"},
		"nodes for ever":      {func(s *Spec) { s.NodeTimeout = Never }, ""},
		"policy":              {func(s *Spec) { s.OnFailure = ContinueOnFailure }, ""},
		"unknown policy":      {func(s *Spec) { s.OnFailure = "ignore" }, `--on-failure "ignore"`},
		"no stage":            {func(s *Spec) { s.Stages = nil }, "0 main stages"},
		"no main stage":       {func(s *Spec) { s.Stages[0].Main = false }, "0 main stages"},
		"two main stages":     {func(s *Spec) { s.Stages = append(s.Stages, s.Stages[0]) }, "2 main stages"},
		"no command":          {func(s *Spec) { s.Stages[0].Argv = nil }, "no command"},
		"an empty command":    {func(s *Spec) { s.Stages[0].Argv = Lits("", "x") }, "no command"},
		"an empty argument":   {func(s *Spec) { s.Stages[0].Argv = Lits("x", "") }, ""},
		"no ranks":            {func(s *Spec) { s.Stages[0].RanksPerNode = 0 }, "--nproc-per-node 0"},
		"most ranks":          {func(s *Spec) { s.Stages[0].RanksPerNode = MaxRanksPerNode }, ""},
		"too many ranks":      {func(s *Spec) { s.Stages[0].RanksPerNode = MaxRanksPerNode + 1 }, "--nproc-per-node 1025"},
		"too many arguments": {func(s *Spec) { s.Stages[0].Argv = Lits(append(make([]string, MaxArgs), "x")...) },
			"no command"},
		"8193 arguments": {func(s *Spec) {
			s.Stages[0].Argv = append(Lits("x"), Lits(make([]string, MaxArgs)...)...)
		}, "8193 arguments, at most 8192"},
		"relative workdir":     {func(s *Spec) { s.Stages[0].Workdir = "tmp" }, `--workdir "tmp"`},
		"NUL in workdir":       {func(s *Spec) { s.Stages[0].Workdir = "/a\x00b" }, "NUL"},
		"NUL in a file":        {func(s *Spec) { s.Stages[0].Files = []string{"a\x00b"} }, "NUL"},
		"NUL in an argument":   {func(s *Spec) { s.Stages[0].Argv = Lits("a", "b\x00c") }, `argument "b\x00c"`},
		"no UTF-8 in argument": {func(s *Spec) { s.Stages[0].Argv = Lits("a", "\xff") }, "UTF-8"},
		"no UTF-8 in variable": {func(s *Spec) { s.Stages[0].Env = []Var{{Name: "A", Value: Lit("\xc3")}} },
			"--env A: invalid: it is not UTF-8"},
		"unknown reference": {func(s *Spec) { s.Stages[0].Argv = []Value{Of("moon")} }, `reference "moon"`},
		"text and a reference": {func(s *Spec) { s.Stages[0].Argv = []Value{{{Lit: "a", Ref: Rank}}} },
			"both text and the reference"},
		"variable":              {func(s *Spec) { s.Stages[0].Env = []Var{{Name: "_A1", Value: Of(Port)}} }, ""},
		"variable with a '='":   {func(s *Spec) { s.Stages[0].Env = []Var{{Name: "A=B"}} }, `--env "A=B"`},
		"variable with a digit": {func(s *Spec) { s.Stages[0].Env = []Var{{Name: "1A"}} }, `--env "1A"`},
		"too much text": {func(s *Spec) {
			s.Stages[0].Env = []Var{{Name: "A", Value: Lit(strings.Repeat("x", MaxTextBytes))}}
		}, "bytes, at most"},
		"workload with an escape": {func(s *Spec) { s.Workload = "\x1b[2J" }, `workload "\x1b[2J"`},
		"stage with a path":       {func(s *Spec) { s.Stages[0].Name = "../x" }, `stage "../x"`},
		"too many stages": {func(s *Spec) {
			for range MaxStages {
				s.Stages = append(s.Stages, Stage{Name: "x", RanksPerNode: 1, Workdir: "/", Argv: Lits("true")})
			}
		}, "9 stages, at most 8"},
		"a long source": {func(s *Spec) {
			s.Stages[0].Env = []Var{{Name: "A", Value: Lit("1"), Source: strings.Repeat("x", 300)}}
		}, "300 bytes, at most 256"},
		"a long host":    {func(s *Spec) { s.Exclude = []string{strings.Repeat("x", 300)} }, "300 bytes"},
		"too many hosts": {func(s *Spec) { s.Exclude = make([]string, 2000) }, "2000 hosts, at most 1024"},
		"too much in files": {func(s *Spec) {
			s.Stages[0].Files = []string{strings.Repeat("x", MaxTextBytes+1)}
		}, "bytes, at most"},
		"a second stage is looked at too": {func(s *Spec) {
			s.Stages = append(s.Stages, Stage{Name: "serve", RanksPerNode: 1, Workdir: "/"})
		}, "stage serve: invalid: no command"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := goodSpec()
			tt.change(&s)
			err := s.Validate()
			if tt.want == "" {
				if err != nil {
					t.Fatalf("valid spec refused: %v", err)
				}
				return
			}
			if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want ErrInvalid with %q", err, tt.want)
			}
		})
	}
}

func TestSpecWithDefaults(t *testing.T) {
	got := Spec{On: []string{"a", "b"}, Grace: time.Second}.WithDefaults()
	want := Spec{On: []string{"a", "b"}, Nodes: 2, Grace: time.Second, StartTimeout: DefaultStartTimeout,
		NodeTimeout: DefaultNodeTimeout}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if n := (Spec{}).WithDefaults().Nodes; n != 1 {
		t.Errorf("a spec that says nothing wants %d nodes, want 1", n)
	}
}

func TestNewJobIDIsValidAndNew(t *testing.T) {
	seen := map[JobID]bool{}
	for range 1000 {
		id := NewJobID()
		if err := id.Validate(); err != nil {
			t.Fatal(err)
		}
		if len(id) != 10 || strings.ContainsAny(string(id), "01ilo") {
			t.Fatalf("id %q is hard to read aloud", id)
		}
		if seen[id] {
			t.Fatalf("id %q came twice", id)
		}
		seen[id] = true
	}
}

func TestFenceOrder(t *testing.T) {
	at := func(n uint64, by NodeID, term uint64) Fence { return Fence{Epoch{n, by}, term} }
	// A higher epoch beats any term; of two take-overs side by side one beats the other.
	ordered := []Fence{{}, at(0, "", 1), at(0, "", 9), at(1, "", 0), at(1, "", 3), at(2, "a", 9), at(2, "b", 1),
		at(2, "b", 2), at(3, "a", 0)}
	for i, f := range ordered {
		for j, g := range ordered {
			want := 0
			switch {
			case i < j:
				want = -1
			case i > j:
				want = 1
			}
			if got := f.Compare(g); got != want {
				t.Errorf("%s compared to %s: %d, want %d", f, g, got, want)
			}
		}
	}
}
