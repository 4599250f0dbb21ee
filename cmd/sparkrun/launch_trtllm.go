package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newLaunchTRTLLMCmd(opts *launchOptions, run func(context.Context, launchOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trtllm [flags] MODEL [-- SERVER ARGS]",
		Short: "Serve a model with TensorRT-LLM, on one machine or cut over several",
		Long: `Starts trtllm-serve with MODEL, a name on Hugging Face or a folder of every machine, and
its PyTorch backend, and prints the URL once it answers /health.

On several machines it is a program of Open MPI's: mpirun on the first one starts
trtllm-llmapi-launch on each, without ssh, and that trtllm-serve on the first one, which
alone listens; its port has to be free on all of them. mpirun is the image's, or with
--runtime host the machine's (in PATH, or --mpirun). Where a machine's part or the server
itself ends, all of it ends, and launch names which.

How the model is cut is worked out as for vllm (see launch vllm --help).

Its metrics are not read, so that a wedge is not seen in them and --on-wedge restart is
refused; --probe generate sees that no token comes.

SERVER ARGS go to the server untouched. Those that say how the model is cut or where
the server listens are read, and not given twice.

` + serveLong,
		Example: `  sparkrun launch trtllm nvidia/Qwen3-14B-FP4
  sparkrun launch trtllm nvidia/Qwen3-235B-A22B-FP4 --nodes 2 -- --max_batch_size 4
  sparkrun launch trtllm /models/llama --on spark2 -- --max_batch_size 4 --max_num_tokens 32768

  # the machines' own TensorRT-LLM and Open MPI
  sparkrun launch trtllm /models/llama --nodes 2 --runtime host --trtllm-serve /opt/trtllm/bin/trtllm-serve`,
		Args: cobra.ArbitraryArgs,
		RunE: serveRun(opts, run),
	}
	bindServe(cmd, opts)
	bindRecipe(cmd.Flags(), &opts.recipe)
	cmd.Flags().StringVar(&opts.request.Serve.Program, "trtllm-serve", "", "the `PROGRAM` on the machine (default: $VIRTUAL_ENV/bin/trtllm-serve, else trtllm-serve)")
	cmd.Flags().StringVar(&opts.request.MPI.Mpirun, "mpirun", "", "Open MPI's mpirun on the machines, or in the image (default: the one in PATH)")
	return cmd
}
