package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newLaunchSGLangCmd(opts *launchOptions, run func(context.Context, launchOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sglang [flags] MODEL [-- SERVER ARGS]",
		Short: "Serve a model with SGLang, on one machine or cut over several",
		Long: `Starts SGLang with MODEL, a name on Hugging Face or a folder of every machine, and
prints the URL once it has generated a token (/health_generate). On several machines
each runs sglang.launch_server with its own --node-rank; the first one answers.

How the model is cut is worked out as for vllm (see launch vllm --help); copies of the
whole model (data parallelism) are SGLang's own business: -- --dp-size N and what goes
with it.

SERVER ARGS go to the server untouched. Those that say how the model is cut or where
the server listens are read, and not given twice.

` + serveLong,
		Example: `  sparkrun launch sglang Qwen/Qwen3-32B --nodes 2
  sparkrun launch sglang /models/llama --tp 2 -- --context-length 32768 --mem-fraction-static 0.8
  sparkrun launch sglang Qwen/Qwen3-8B --runtime host --dry-run`,
		Args: cobra.ArbitraryArgs,
		RunE: serveRun(opts, run),
	}
	bindServe(cmd, opts)
	bindRecipe(cmd.Flags(), &opts.recipe)
	cmd.Flags().StringVar(&opts.request.Serve.Program, "python", "", "the interpreter that has SGLang (default: $VIRTUAL_ENV/bin/python3, else python3)")
	return cmd
}
