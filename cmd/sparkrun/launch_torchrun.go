package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newTorchrunCmd(opts *launchOptions, run func(context.Context, launchOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "torchrun [flags] -- SCRIPT [ARG...]",
		Short: "Run PyTorch workers, as torchrun does",
		Long: `Starts SCRIPT with Python, once a rank, with every variable that torchrun gives its
workers. sparkrun takes the place of torchrun's agent: there is no rendezvous to
configure, and no Python before the workers. Rank 0 hosts the store, at MASTER_ADDR
and MASTER_PORT, which all chosen machines reach.

Python is that of the active virtual environment, else python3. It and the script
must be on every machine, at the same path.`,
		Example: `  sparkrun launch torchrun --nodes 2 -- train.py --lr 0.1
  sparkrun launch torchrun --nodes 2 --nproc-per-node 2 --python /opt/venv/bin/python3 -- train.py
  sparkrun launch torchrun --nodes 2 -m -- mypackage.train --epochs 3`,
		Args: cobra.ArbitraryArgs,
		RunE: workloadRun(opts, run),
	}
	t := &opts.request.Torchrun
	fs := cmd.Flags()
	fs.SetInterspersed(false) // the script's flags are its own
	fs.StringVar(&t.Python, "python", "", "the interpreter (default: $VIRTUAL_ENV/bin/python3, else python3)")
	fs.BoolVarP(&t.Module, "module", "m", false, "SCRIPT is a module, as in python -m")
	fs.BoolVar(&t.NoPython, "no-python", false, "SCRIPT is a program and needs no Python")
	return cmd
}
