package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Explain is a dry run: what prepare would say, and what each local rank would
// be exec'd with. The port is not known before a start and shows as 0. The
// plans are given beside an error wherever they could be made.
func (a *Agent) Explain(ctx context.Context, as launcher.Assignment) ([]launcher.RankPlan, error) {
	if err := validate(as); err != nil {
		return nil, err
	}
	as = a.atStage(as)
	p, err := a.check(ctx, as)
	err = errors.Join(a.allow(ctx, as.Spec), err)
	if p == nil {
		return nil, err
	}
	plans, planErr := explain(as, p, 0)
	if planErr != nil {
		return nil, errors.Join(err, planErr)
	}
	return plans, err
}

// ranksFor gives what the shim is to exec, once the port is known.
func ranksFor(as launcher.Assignment, p *prepared, port int) ([]shim.Rank, error) {
	plans, err := explain(as, p, port)
	if err != nil {
		return nil, err
	}
	st := as.Spec.MainStage()
	var here machine
	if st.BindTo == launcher.BindCore || st.BindTo == launcher.BindNUMA {
		if here, err = readMachine("/sys"); err != nil {
			return nil, err
		}
	}
	ranks := make([]shim.Rank, len(plans))
	for i, p := range plans {
		env := make([]string, len(p.Env))
		for j, s := range p.Env {
			env[j] = s.Name + "=" + s.Value
		}
		ranks[i] = shim.Rank{Rank: p.Rank, PMI: pmi(as), LocalRank: i, Argv: p.Argv, Env: env, Dir: st.Workdir,
			Stdin: st.Stdin.Has(p.Rank), Ulimits: st.Ulimits, CPUs: here.bind(st.BindTo, i, as.Ranks)}
		if st.HasTTY(p.Rank) {
			ranks[i].TTY = st.TTY
		}
	}
	return ranks, nil
}

// explain gives each local rank's command and environment: the user's
// surroundings, then what the hardware calls for, then what the workload and
// the user set. The later wins.
func explain(as launcher.Assignment, p *prepared, port int) ([]launcher.RankPlan, error) {
	base := newSurroundings(p)
	plans := make([]launcher.RankPlan, as.Ranks)
	for i := range plans {
		var err error
		if plans[i], err = base.plan(as, i, port); err != nil {
			return nil, err
		}
		plans[i].MPI = p.mpi
	}
	return plans, nil
}

// environ keeps one setting a name, in the order in which the names first
// came: getenv finds the first of two, so there must not be two.
type environ struct {
	settings []launcher.Setting
	at       map[string]int
}

func newEnviron(first ...launcher.Setting) *environ {
	e := &environ{at: map[string]int{}}
	for _, s := range first {
		e.set(s)
	}
	return e
}

// newSurroundings is what all ranks of a node share.
func newSurroundings(p *prepared) *environ {
	return newEnviron(slices.Concat(p.who.settings(), p.fabric, p.secrets)...)
}

// plan adds what the spec says, for one rank.
func (e *environ) plan(as launcher.Assignment, localRank, port int) (launcher.RankPlan, error) {
	st := as.Spec.MainStage()
	seat := as.Seat(localRank, port)
	var err error
	if seat.Program, err = program(); err != nil {
		return launcher.RankPlan{}, fmt.Errorf("find sparkrun itself: %w", err)
	}
	env := &environ{settings: slices.Clone(e.settings), at: maps.Clone(e.at)}
	env.set(launcher.Setting{Name: "TORCHELASTIC_ERROR_FILE", Value: errorPath(as, seat.Rank), Source: "sparkrun"})
	for _, v := range st.Env {
		text, err := seat.Resolve(v.Value)
		if err != nil {
			return launcher.RankPlan{}, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		env.set(launcher.Setting{Name: v.Name, Value: text, Source: v.Source})
	}
	argv, err := seat.Argv(*st)
	if err != nil {
		return launcher.RankPlan{}, err
	}
	return launcher.RankPlan{Rank: seat.Rank, Argv: argv, Env: env.settings}, nil
}

func (e *environ) set(s launcher.Setting) {
	if i, ok := e.at[s.Name]; ok {
		e.settings[i] = s
		return
	}
	e.at[s.Name] = len(e.settings)
	e.settings = append(e.settings, s)
}
