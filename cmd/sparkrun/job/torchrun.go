package job

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/workloads"
)

// NewTorchrunCmd makes `sparkrun launch torchrun`.
func NewTorchrunCmd(a *app.App, opts *launch.Options, run launch.Starter) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "torchrun [flags] -- SCRIPT [ARG...]",
		Short: "Run PyTorch workers, as torchrun does",
		Long: `Starts SCRIPT with Python, once a rank, with every variable that torchrun gives its
workers: sparkrun takes the place of torchrun's agent. Python is that of the active
virtual environment, else python3. It and the script must be on every machine, at the
same path.

With --agent torchrun torchrun itself runs on each machine and starts the workers. What
it prints comes under the number of its machine, and --max-restarts starts all of it
anew. sparkrun help training has the rest.`,
		Example: `  sparkrun launch torchrun --nodes 2 -- train.py --lr 0.1
  sparkrun launch torchrun --nodes 2 --nproc-per-node 2 --python /opt/venv/bin/python3 -- train.py
  sparkrun launch torchrun --nodes 2 --image nvcr.io/nvidia/pytorch:25.10-py3 --mount . --workdir . -- train.py
  sparkrun launch torchrun --nodes 2 -m -- mypackage.train --epochs 3
  sparkrun launch torchrun --nodes 2 --agent torchrun --rdzv-backend c10d -- train.py`,
		Args: cobra.ArbitraryArgs,
		RunE: launch.WorkloadRun(a, opts, run),
	}
	t := &opts.Request.Torchrun
	fs := cmd.Flags()
	fs.SetInterspersed(false) // flags after the script belong to it
	fs.StringVar(&t.Python, "python", "", "the interpreter (default: $VIRTUAL_ENV/bin/python3, else python3)")
	fs.BoolVarP(&t.Module, "module", "m", false, "SCRIPT is a module, as in python -m")
	fs.BoolVar(&t.NoPython, "no-python", false, "SCRIPT is a program and needs no Python")
	fs.Var(torchAgent{&t.Agent}, "agent", "who starts the workers on each machine (default: sparkrun)")
	fs.Var(app.Choice{V: &t.Rendezvous, Words: []string{workloads.RendezvousStatic, workloads.RendezvousC10d}},
		"rdzv-backend", "how torchrun's agents meet (default: static)")
	app.CompleteWords(cmd, "agent", "rdzv-backend")
	return cmd
}

// torchAgent is a flag's choice between torchrun's agent and sparkrun's.
type torchAgent struct{ theirs *bool }

func (a torchAgent) Type() string { return "sparkrun|torchrun" }

func (a torchAgent) String() string {
	if a.theirs == nil || !*a.theirs {
		return ""
	}
	return "torchrun"
}

func (a torchAgent) Set(text string) error {
	if text != "sparkrun" && text != "torchrun" {
		return errors.New("want sparkrun or torchrun")
	}
	*a.theirs = text == "torchrun"
	return nil
}
