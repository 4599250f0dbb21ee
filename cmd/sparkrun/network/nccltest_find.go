package network

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// builtTests is where `nccl-test build` installs its programs, below a user's home.
const builtTests = ".local/share/sparkrun/nccl-tests"

// candidate is a place where nccl-tests' program may be, the same on every machine.
type candidate struct{ program, libraries string }

// testCandidates are those places, the most specific first: what the user has named, what
// `nccl-test build` has installed, what is in the ranks' PATH.
func testCandidates(a *app.App, o testOptions) []candidate {
	op := o.Request.NCCLTest.WithDefaults().Op
	names := []string{op + "_perf", op + "_perf_mpi"} // NAME_SUFFIX of nccl-tests' Makefile, as its README has it
	var all []candidate
	in := func(dir, libraries string) {
		for _, name := range names {
			all = append(all, candidate{path.Join(dir, name), libraries})
		}
	}
	if dir := o.folder; dir != "" {
		in(path.Join(dir, "build"), "")
		in(dir, "")
		for i, c := range all {
			if !strings.Contains(c.program, "/") { // of --nccl-tests . : not to be looked up in PATH
				all[i].program = "./" + c.program
			}
		}
		return all
	}
	away, _ := a.Away() // the launch will report the error
	if home, _ := a.Getenv("NCCL_TESTS_HOME"); home != "" && away == nil {
		in(path.Join(home, "build"), "")
	}
	home, _ := a.Getenv("HOME")
	if away != nil {
		home = away.Home
	}
	if path.IsAbs(home) && o.Request.Job.User == "" && o.Container.Image == "" {
		dir := path.Join(home, builtTests)
		in(dir, path.Join(dir, "lib"))
	}
	in("", "")
	return all
}

// findTests decides what measures: nccl-tests where every machine has it in the same
// place, built for the same MPI; otherwise torch, unless nccl-tests was asked for. hosts
// are the machines that would run it; nil: no machine was asked.
func findTests(ctx context.Context, a *app.App, o *testOptions) (hosts []string, err error) {
	asked := o.via == viaTests
	if o.via == viaTorch || !asked && o.Request.Torchrun.Python != "" {
		return nil, nil // a named interpreter means torch
	}
	var tried []string
	difference := ""
	for _, c := range testCandidates(a, *o) {
		q := *o
		q.Request.NCCLTest.Program, q.Request.NCCLTest.Libraries = c.program, c.libraries
		q.Request.MPI.Forced = q.Request.MPI.Family != ""
		ask := q
		ask.Request.Job.Wait, ask.Request.Job.Share = false, ask.Request.Job.Memory == nil
		res, err := launch.Ask(ctx, a, ask.Options)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil && asked:
			return nil, err
		case err != nil:
			return nil, nil //nolint:nilerr // the launch, with torch, will report what is wrong
		}
		v := votesOf(res.ExplainResponse)
		switch {
		case len(v.refused) == 0 && len(v.families) == 1:
			o.Request = q.Request
			for family := range v.families {
				o.Request.MPI.Family = family
			}
			return v.hosts, nil
		case difference == "":
			difference = v.difference(c.program)
		}
		if len(v.refused) > 0 {
			tried = append(tried, v.refused[0])
		}
	}
	const remedy = "`sparkrun nccl-test build SRC` puts one build on all machines; --via torch needs PyTorch alone"
	switch {
	case asked && difference != "":
		return nil, fmt.Errorf("--via nccl-tests: %s: %s", difference, remedy)
	case asked:
		return nil, fmt.Errorf("--via nccl-tests: nowhere to be started:\n  %s\n%s",
			strings.Join(slices.Compact(tried), "\n  "), remedy)
	case difference != "":
		a.Say(difference + ": torch measures")
	}
	return nil, nil
}

const (
	viaTorch = "torch"
	viaTests = "nccl-tests"
)

// votes are the machines' answers about one program.
type votes struct {
	hosts    []string
	families map[launcher.MPIFamily][]string // hosts, by the MPI for which their copy was built
	refused  []string                        // HOST: why
}

func votesOf(res wire.ExplainResponse) votes {
	v := votes{families: map[launcher.MPIFamily][]string{}}
	for _, n := range res.Nodes {
		v.hosts = append(v.hosts, n.Host)
		switch {
		case n.Error != "":
			v.refused = append(v.refused, n.Host+": "+n.Error)
		case len(n.Ranks) > 0:
			v.families[n.Ranks[0].MPI] = append(v.families[n.Ranks[0].MPI], n.Host)
		default:
			v.refused = append(v.refused, n.Host+": it does not answer what it would run")
		}
	}
	return v
}

// difference says how the machines differ; empty: they do not.
func (v votes) difference(program string) string {
	switch {
	case len(v.families) > 1:
		return fmt.Sprintf("%s is for Open MPI on %s, and for MPICH's family on %s", program,
			strings.Join(v.families[launcher.OpenMPI], ", "), strings.Join(v.families[launcher.MPICH], ", "))
	case len(v.families) == 1 && len(v.refused) > 0:
		var ready []string
		for _, hosts := range v.families {
			ready = hosts
		}
		return fmt.Sprintf("%s is on %s, and not on all: %s", program, strings.Join(ready, ", "),
			strings.Join(v.refused, "; "))
	}
	return ""
}

// unknownRoom is the largest message, in bytes, that is safe on a machine whose free
// memory is unknown: three such buffers take a tenth of a Spark's memory.
const unknownRoom = 4 << 30

// boundTest lowers nccl-tests' largest message to what is safe where GPU and system share
// the memory: its buffers may take half of what is free. nccl-tests itself considers only
// the GPU's memory, and has frozen machines. The sweep bounds itself.
func boundTest(a *app.App, o *testOptions, counted []wire.NodeCounters, hosts []string) error {
	test := &o.Request.NCCLTest
	if test.Program == "" {
		return nil
	}
	least, where := uint64(math.MaxUint64), ""
	for _, n := range counted {
		if slices.Contains(hosts, n.Host) && n.MemAvailable > 0 && n.MemAvailable < least {
			least, where = n.MemAvailable, n.Host
		}
	}
	if m, err := proc.ReadMemory(); o.Standalone && err == nil && m.Available > 0 {
		least, where = uint64(m.Available), "this machine" //nolint:gosec // never below 0
	}
	room := int64(unknownRoom)
	if where != "" {
		room = int64(least / 2 / workloads.NCCLBuffers) //nolint:gosec // a sixth of a memory size fits
	}
	room /= int64(max(1, o.Request.RanksPerNode))
	t := test.WithDefaults()
	if t.Max <= room || t.Min < 1 || t.Factor < 2 {
		return nil
	}
	why := cmp.Or(where, "a machine") + " does not say how much memory is free"
	if where != "" {
		why = fmt.Sprintf("%s has %s free, of which the test's three buffers may take half", where,
			nettest.Size(int64(least))) //nolint:gosec // fits too
	}
	if t.Min > room {
		return fmt.Errorf("messages of %s and more are not safe: %s: lower --min, or --via torch, which takes two",
			nettest.Size(t.Min), why)
	}
	safe := t.Min
	for safe <= room/int64(t.Factor) {
		safe *= int64(t.Factor)
	}
	test.Max = safe
	a.Say(fmt.Sprintf("the largest message is lowered to %s: %s", nettest.Size(safe), why))
	return nil
}
