package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newLaunchVLLMCmd(opts *launchOptions, run func(context.Context, launchOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vllm [flags] MODEL [-- SERVER ARGS]",
		Short: "Serve a model with vLLM, on one machine or cut over several",
		Long: `Starts vLLM with MODEL, a name on Hugging Face or a folder of every machine, and prints
the URL once it answers /health. What it waits for meanwhile is told as it changes.

On several machines the model is cut: tensor parallelism over as many as divide its
attention heads and are a power of two, pipeline parallelism over the rest; three
machines are a pipeline of three. --tp, --pp and --dp (copies of the whole model) say
otherwise; one machine is one GPU. What is impossible is refused, with the nearest
that works. config.json is read where this machine has it, in MODEL's folder or in the
cache of Hugging Face, else where one of the machines that would serve it has it. Those
that lack weights are told, with how much the server fetches there; one that lacks the
folder, or the room, is refused.

The backend is how vLLM's processes find each other. native: each machine runs vllm
serve, of which all but the first are --headless. ray: a Ray cluster comes up first,
then vllm serve on its head. auto takes native where the program knows it, which
sparkrun's own image does; another image, or the host's program, is asked once, by
running ` + "`vllm serve --help=all`" + ` on one machine (not with --dry-run, which shows native).

SERVER ARGS go to vllm serve untouched. Those that say how the model is cut or where
the server listens are read, and not given twice.

` + serveLong,
		Example: `  sparkrun launch vllm Qwen/Qwen3-32B
  sparkrun launch vllm Qwen/Qwen3-235B-A22B-Instruct-2507-FP8 --nodes 2 --secret HF_TOKEN
  sparkrun launch vllm /models/llama --nodes 4 --tp 2 --pp 2 --port 8001 -- --max-model-len 32768

  # vLLM of the machines' own, in a virtual environment; what would run
  sparkrun launch vllm Qwen/Qwen3-8B --nodes 2 --runtime host --backend ray --dry-run`,
		Args: cobra.ArbitraryArgs,
		RunE: serveRun(opts, run),
	}
	bindServe(cmd, opts)
	bindBackend(cmd, opts)
	bindRecipe(cmd.Flags(), &opts.recipe)
	s := &opts.request.Serve
	fs := cmd.Flags()
	fs.StringVar(&s.Program, "vllm", "", "the `PROGRAM` vllm of the machines (default: $VIRTUAL_ENV/bin/vllm, else vllm)")
	fs.StringVar(&opts.request.Ray.Program, "ray", "", "the `PROGRAM` ray, for --backend ray (default: $VIRTUAL_ENV/bin/ray, else ray)")
	fs.StringArrayVar(&opts.request.Ray.Args, "ray-arg", nil, "a further `ARGUMENT` of each ray start; repeat for more")
	return cmd
}
