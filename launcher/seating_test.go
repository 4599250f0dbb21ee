package launcher

import (
	"errors"
	"testing"
)

func TestParseUlimit(t *testing.T) {
	for text, want := range map[string]Ulimit{
		"nofile=4096:65536":  {"nofile", 4096, 65536},
		"core=0":             {"core", 0, 0},
		"memlock=unlimited":  {"memlock", Unlimited, Unlimited},
		"stack=-1:-1":        {"stack", Unlimited, Unlimited},
		"nproc=10:unlimited": {"nproc", 10, Unlimited},
	} {
		got, err := ParseUlimit(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if again, err := ParseUlimit(got.String()); err != nil || again != want {
			t.Errorf("%s is shown as %s", text, got)
		}
	}
	for _, text := range []string{"", "nofile", "nofile=", "nofile=many", "files=3", "nofile=5:3", "nofile=-2",
		"nofile=unlimited:5", "as=1", "rtprio=100", "nice=41", "nice=-10"} {
		if _, err := ParseUlimit(text); !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestPlacement(t *testing.T) {
	st := func(change func(*Stage)) Stage {
		s := Stage{Name: "main", Main: true, RanksPerNode: 1, Argv: Lits("true"), Workdir: "/"}
		change(&s)
		return s
	}
	for name, ok := range map[string]Stage{
		"nothing":   st(func(*Stage) {}),
		"one rank":  st(func(s *Stage) { s.Stdin = "3" }),
		"all":       st(func(s *Stage) { s.Stdin = StdinAll; s.BindTo = BindNUMA }),
		"terminal":  st(func(s *Stage) { s.Stdin = "0"; s.TTY = &Window{24, 80} }),
		"none told": st(func(s *Stage) { s.Stdin = StdinNone; s.BindTo = BindNone }),
	} {
		if err := ok.validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, bad := range map[string]Stage{
		"stdin of nobody":     st(func(s *Stage) { s.Stdin = "zero" }),
		"stdin below zero":    st(func(s *Stage) { s.Stdin = "-1" }),
		"stdin written oddly": st(func(s *Stage) { s.Stdin = "01" }),
		"bound to a socket":   st(func(s *Stage) { s.BindTo = "socket" }),
		"terminal of nobody":  st(func(s *Stage) { s.TTY = &Window{24, 80} }),
		"terminal of all":     st(func(s *Stage) { s.Stdin = StdinAll; s.TTY = &Window{24, 80} }),
		"limit":               st(func(s *Stage) { s.Ulimits = []Ulimit{{"nofile", 2, 1}} }),
	} {
		if err := bad.validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := Stdin("3"); !s.Has(3) || s.Has(13) || Stdin("").Has(0) || StdinNone.Any() || !StdinAll.Has(9) {
		t.Error("stdin goes to the wrong ranks")
	}
}

// Priority above the agent's is root's to give; who runs ranks as themselves has what the kernel allows.
func TestPriorityIsRoots(t *testing.T) {
	for _, limit := range []string{"rtprio=10", "nice=30", "rtprio=0", "nofile=100"} {
		u, err := ParseUlimit(limit)
		if err != nil {
			t.Fatal(err)
		}
		for user, want := range map[string]bool{"root": true, "": true, "ann": limit == "rtprio=0" || limit == "nofile=100"} {
			s := Spec{ID: NewJobID(), User: user,
				Stages: []Stage{{Name: "main", Main: true, RanksPerNode: 1, Argv: Lits("true"), Workdir: "/",
					RankOptions: RankOptions{Ulimits: []Ulimit{u}}}}}.WithDefaults()
			if err := s.Validate(); (err == nil) != want || err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%s of %q: %v", limit, user, err)
			}
		}
	}
}
