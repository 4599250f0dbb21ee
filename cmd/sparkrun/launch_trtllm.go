package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newLaunchTRTLLMCmd(opts *launchOptions, run func(context.Context, launchOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trtllm [flags] MODEL [-- SERVER ARGS]",
		Short: "Serve a model with TensorRT-LLM, on one machine",
		Long: `Starts trtllm-serve with MODEL, a name on Hugging Face or a folder of the machine, and
its PyTorch backend, and prints the URL once it answers /health. Several machines are
refused: vllm and sglang spread.

SERVER ARGS go to the server untouched. Those that say where it listens are read, and
not given twice.

` + serveLong,
		Example: `  sparkrun launch trtllm nvidia/Qwen3-14B-FP4
  sparkrun launch trtllm /models/llama --on spark2 -- --max_batch_size 4 --max_num_tokens 32768`,
		Args: cobra.ArbitraryArgs,
		RunE: serveRun(opts, run),
	}
	bindServe(cmd, opts)
	bindRecipe(cmd.Flags(), &opts.recipe)
	cmd.Flags().StringVar(&opts.request.Serve.Program, "trtllm-serve", "", "the `PROGRAM` on the machine (default: $VIRTUAL_ENV/bin/trtllm-serve, else trtllm-serve)")
	return cmd
}
