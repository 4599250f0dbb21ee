package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Explain is a dry run: what prepare would say, what each local rank would be exec'd with,
// and what this node has of the model that they would serve (empty: none). The port is not
// known before a start and shows as 0. If plans could be made they are returned beside an
// error.
func (a *Agent) Explain(ctx context.Context, as launcher.Assignment, model string) ([]launcher.RankPlan,
	*launcher.ModelCopy, error) {
	if err := validate(as); err != nil {
		return nil, nil, err
	}
	as = a.atStage(as)
	p, err := a.check(ctx, as)
	err = errors.Join(a.allow(ctx, as), err)
	if p == nil {
		return nil, nil, err
	}
	plans, planErr := explain(as, p, ports{})
	if planErr != nil {
		return nil, nil, errors.Join(err, planErr)
	}
	var copied *launcher.ModelCopy
	if model != "" && len(plans) > 0 && err == nil { // a user whom the rules refuse learns nothing
		copied = a.modelCopy(ctx, p, model, as, plans[0].Env)
	}
	if c := p.container; c != nil {
		for i := range plans {
			plans[i].Dir, plans[i].Image, plans[i].Pulls = c.Workdir, c.ImageSeen(), c.Unpulled()
			plans[i].Docker = a.containers.Rank(c, as, plans[i].Rank, nil).Flags()
		}
	}
	return plans, copied, err
}

// ranksFor gives the ranks of one step that the shim is to exec, once the ports are known.
func ranksFor(as launcher.Assignment, p *prepared, step int, at ports) ([]shim.Rank, error) {
	at = at.found()
	plans, err := explain(as, p, at)
	if err != nil {
		return nil, err
	}
	var ranks []shim.Rank
	for i, p := range plans {
		of, st, placement := as.Local(i)
		if of != step {
			continue
		}
		var here machine
		if st.BindTo == launcher.BindCore || st.BindTo == launcher.BindNUMA {
			if here, err = readMachine("/sys"); err != nil {
				return nil, err
			}
		}
		env := make([]string, len(p.Env))
		for j, s := range p.Env {
			env[j] = s.Name + "=" + s.Value
		}
		r := shim.Rank{Rank: p.Rank, PMI: pmi(as), LocalRank: placement.LocalRank, Argv: p.Argv, Env: env, Dir: st.Workdir,
			Stdin: st.Stdin.Has(p.Rank), RankOptions: st.RankOptions,
			CPUs: here.bind(st.BindTo, placement.LocalRank, placement.LocalWorld)}
		if st.HasTTY(p.Rank) {
			r.TTY = st.TTY
		}
		ranks = append(ranks, r)
	}
	return ranks, nil
}

// explain gives each local rank's command and environment: first the user's login
// environment, then what the hardware calls for, then what the workload and the user set.
// The later value wins.
func explain(as launcher.Assignment, p *prepared, at ports) ([]launcher.RankPlan, error) {
	base := newSurroundings(p, as.Spec.MainStage().Container != nil)
	plans := make([]launcher.RankPlan, as.Ranks)
	for i := range plans {
		var err error
		if plans[i], err = base.plan(as, i, at); err != nil {
			return nil, err
		}
		plans[i].MPI = p.mpi
	}
	return plans, nil
}

// environ keeps one setting for each name, in the order in which the names first came.
// getenv finds the first of two, so there must not be two.
type environ struct {
	settings []launcher.Setting
	at       map[string]int
	compiled string // launcher.CompileCache
}

func newEnviron(first ...launcher.Setting) *environ {
	e := &environ{at: map[string]int{}}
	for _, s := range first {
		e.set(s)
	}
	return e
}

// newSurroundings is the environment that all ranks of a node share. Ranks in containers
// have an image's programs, and its PATH.
func newSurroundings(p *prepared, contained bool) *environ {
	login := p.who.Settings()
	if contained {
		login = slices.DeleteFunc(login, func(s launcher.Setting) bool { return s.Name == "PATH" || s.Name == "SHELL" })
	}
	e := newEnviron(slices.Concat(login, p.fabric, p.secrets)...)
	e.compiled = p.compiled
	return e
}

// plan adds what the spec says, for one rank.
func (e *environ) plan(as launcher.Assignment, localRank int, at ports) (launcher.RankPlan, error) {
	_, st, placement := as.Local(localRank)
	rank := as.FirstRank + localRank
	at.fill(&placement)
	placement.CompileCache = e.compiled
	var err error
	if placement.Program, err = programFor(st); err != nil {
		return launcher.RankPlan{}, fmt.Errorf("find sparkrun itself: %w", err)
	}
	env := &environ{settings: slices.Clone(e.settings), at: maps.Clone(e.at)}
	errorFile := errorPath(as, rank)
	if st.Container != nil {
		errorFile = filepath.Join(insideErrors, filepath.Base(errorFile))
	}
	env.set(launcher.Setting{Name: "TORCHELASTIC_ERROR_FILE", Value: errorFile, Source: "sparkrun"})
	for _, v := range st.Env {
		text, err := placement.Resolve(v.Value)
		if err != nil {
			return launcher.RankPlan{}, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		env.set(launcher.Setting{Name: v.Name, Value: text, Source: v.Source})
	}
	argv, err := placement.Argv(st)
	if err != nil {
		return launcher.RankPlan{}, err
	}
	return launcher.RankPlan{Rank: rank, Argv: argv, Env: env.settings}, nil
}

func (e *environ) set(s launcher.Setting) {
	if i, ok := e.at[s.Name]; ok {
		e.settings[i] = s
		return
	}
	e.at[s.Name] = len(e.settings)
	e.settings = append(e.settings, s)
}

// program is the path of this executable.
var program = sync.OnceValues(os.Executable)

// programFor is where the ranks of a stage find it.
func programFor(st launcher.Stage) (string, error) {
	if st.Container != nil {
		return container.InsideProgram, nil
	}
	return program()
}

// pmi configures the process manager of a stage's ranks; nil: they have none.
func pmi(as launcher.Assignment) *shim.PMI {
	if as.Spec.MainStage().MPI == nil {
		return nil
	}
	if as.Spec.MainStage().Container != nil { // in containers the ranks of one node see each other as on different hosts
		return &shim.PMI{Size: as.World, Mapping: mpi.Mapping(as.World, 1)}
	}
	return &shim.PMI{Size: as.World, Mapping: mpi.Mapping(as.NodeCount, as.Ranks)}
}
