package main

import (
	"context"

	"github.com/spf13/cobra"
)

func newLaunchExoCmd(opts *launchOptions, run func(context.Context, launchOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exo [flags] [MODEL] [-- EXO ARGS]",
		Short: "Serve a model with exo, on one machine or spread over several",
		Long: `Starts exo (github.com/exo-explore/exo) on each machine and, once they have found each
other, has MODEL placed on all of them: a name on Hugging Face, of weights in MLX's form,
such as mlx-community/Llama-3.2-1B-Instruct-4bit. Once each part is loaded, launch prints
the URL, where exo's dashboard and its OpenAI API (/v1/chat/completions) are. Without a
MODEL it answers once the machines have found each other, and places what you ask for.

This is for exo 1.0.71, the program of the machines, which is built there from its source
(uv sync --extra cuda13 for the GPU); PyPI's exo is another program. exo itself says that
on Linux it computes on the CPU, and that GPUs are under development. Nobody publishes an
image of it; --image takes one of yours.

By default the model's layers are dealt out to the machines (--pp); --tp N, where N is
the number of machines, cuts each layer, of models that exo knows how to. The machines
talk over TCP, on the network that the job meets on; exo has no RDMA on Linux.

It listens on the first machine's address on the management network, and on no other;
--host 0.0.0.0 has it listen on all. That is sparkrun's gateway; exo's own API, one port
above it (52416), listens on all addresses of each machine, and the packet filter lets in
the job's machines alone. No key is asked for, and who reaches the port can place and
remove models. Jobs have a namespace of their own each, and do not join each other.

Weights lie in exo's own folder, ~/.local/share/exo/models, and are fetched there by exo;
--env EXO_MODELS_READ_ONLY_DIRS=/models has it take those in /models/OWNER--NAME.

It is a service: launch prints where it answers and leaves, and it goes on until
sparkrun stop. --restart and --autostart say what becomes of it meanwhile; ps shows it.`,
		Example: `  sparkrun launch exo mlx-community/Llama-3.2-1B-Instruct-4bit --exo ~/exo/.venv/bin/exo
  sparkrun launch exo mlx-community/Qwen3-30B-A3B-4bit --nodes 2 --env EXO_MODELS_READ_ONLY_DIRS=/models -- --offline

  # exo alone, and a model when you want one
  sparkrun launch exo --nodes 2 --name exo
  curl http://spark1:52415/place_instance -H 'Content-Type: application/json' -d '{"model_id": "mlx-community/Llama-3.2-1B-Instruct-4bit", "min_nodes": 2}'`,
		Args: cobra.ArbitraryArgs,
		RunE: serveRun(opts, run),
	}
	bindServe(cmd, opts)
	cmd.Flags().Lookup("runtime").Usage = "run it on the host, or in a container (default: host, but with an image)"
	cmd.Flags().Lookup("tp").Usage = "tensor parallelism: all `N` machines work on each layer together"
	cmd.Flags().Lookup("pp").Usage = "pipeline parallelism: the layers are dealt out to all `N` machines (default)"
	cmd.Flags().Lookup("port").Usage = "the port of its API; exo itself takes the one after it on every machine (default: 52415)"
	cmd.Flags().StringVar(&opts.request.Serve.Program, "exo", "", "the `PROGRAM` exo of the machines (default: $VIRTUAL_ENV/bin/exo, else exo)")
	return cmd
}
