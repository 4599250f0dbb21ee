package launch

import (
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A dry run of an Open MPI job shows the MPI ranks, and who starts them.
func TestDryRunOfOpenMPI(t *testing.T) {
	spec := launcher.Spec{ID: "a", Workload: "mpi",
		Stages: []launcher.Stage{{Main: true, Name: "mpi", RanksPerNode: 1,
			MPI: &launcher.MPI{Family: launcher.OpenMPI, Program: "./ring"}}}}
	var res wire.ExplainResponse
	res.Plan.World = 2
	for i, host := range []string{"spark1", "spark2"} {
		res.Plan.Nodes = append(res.Plan.Nodes, rendezvous.Place{Host: host, FirstRank: i, Ranks: 1})
		res.Nodes = append(res.Nodes, wire.NodePlan{Host: host, Ranks: []launcher.RankPlan{{
			Rank: i, Argv: []string{"/usr/bin/sparkrun", "mpi-node", "-nproc", "3", "-bind-to", "none", "-stdin", "0",
				"--", "./ring"},
			Env: []launcher.Setting{{Name: "PMI_SIZE", Value: "2", Source: "mpi"}, {Name: "LANG", Value: "C", Source: "yours"}},
		}}})
	}
	var out strings.Builder
	if err := writePlan(&out, spec, res); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2 machines, 6 MPI ranks; ",
		"./ring is for Open MPI, by what it is linked to: its mpirun on spark1 starts it, 3 on each machine\n",
		"\nspark1: MPI ranks 0 to 2, by mpirun\n", "\nspark2: MPI ranks 3 to 5, by Open MPI's daemon\n", "LANG=C",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "PMI_SIZE") {
		t.Errorf("what no MPI rank has is shown:\n%s", out.String())
	}
}

// A plan is not lost behind the text of a script that sparkrun brings along; what somebody typed is shown as it is.
func TestDryRunShortensScripts(t *testing.T) {
	spec := launcher.Spec{ID: "a", Workload: "nccl-test", Stages: []launcher.Stage{{Main: true, Name: "nccl-test", RanksPerNode: 1}}}
	for script, want := range map[string]string{
		"\"\"\"The test.\n" + strings.Repeat("x = 1\n", 299): "  $ python3 -c '\"\"\"The test. … (300 lines, 2 KiB; --json has them)' all\n",
		"a\nb\n": "  $ python3 -c 'a\nb\n' all\n",
	} {
		var res wire.ExplainResponse
		res.Plan.Nodes = []rendezvous.Place{{Host: "spark1", Ranks: 1}}
		res.Nodes = []wire.NodePlan{{Host: "spark1", Ranks: []launcher.RankPlan{{Argv: []string{"python3", "-c", script, "all"}}}}}
		var out strings.Builder
		if err := writePlan(&out, spec, res); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
}
