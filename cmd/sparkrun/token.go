package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type tokenOptions struct {
	request wire.TokenRequest
	json    bool
}

func newTokenCmd(run func(context.Context, tokenOptions) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Let other machines into the cluster",
		Long: `A token lets machines in: whoever has it can join until it is used up or has
expired. The cluster keeps only a hash of it.`,
		Example: `  sparkrun token create --uses 3`,
	}
	group(cmd)
	opts := &tokenOptions{request: wire.TokenRequest{TTL: 15 * time.Minute}}
	create := &cobra.Command{
		Use:   "create",
		Short: "Make a token for sparkrun join",
		Long: `Makes a token and prints it on standard output, once: it cannot be shown again.
How to use it is said on standard error. Give it to sparkrun join on the new
machine, by its prompt or by a file, and to nobody else.

It lets in what its role says and nothing else: a machine that runs jobs, or one
that only votes (sparkrun join --witness).`,
		Example: `  sparkrun token create
  sparkrun token create --role witness
  sparkrun token create --uses 7 --ttl 1h > token`,
		Args: takes(0, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r := opts.request.Role; r != "node" && r != "witness" {
				return usagef("--role %s: want node or witness", r)
			}
			return running(opts, run)(cmd, args)
		},
	}
	opts.request.Uses = 1
	create.Flags().Var(positive{&opts.request.Uses}, "uses", "how many machines it lets in")
	create.Flags().Var(span{&opts.request.TTL}, "ttl", "how long it can be used")
	create.Flags().BoolVar(&opts.json, "json", false, `print JSON: "token", "expires", and "join", the addresses that sparkrun join can use`)
	create.Flags().StringVar(&opts.request.Role, "role", "node", "what it lets in: node, or witness, which votes and gets no ranks")
	cmd.AddCommand(create)
	return cmd
}

func (a *app) createToken(ctx context.Context, o tokenOptions) error {
	b := a.dial()
	defer b.close()
	res, err := b.Token(ctx, o.request)
	if err != nil {
		return err
	}
	if o.json {
		return a.object(res)
	}
	addr := "ADDR"
	if len(res.Join) > 0 {
		addr = joinAddr(res.Join[0])
	}
	times := "once"
	if o.request.Uses > 1 {
		times = fmt.Sprintf("%d times", o.request.Uses)
	}
	if o.request.Role == "witness" {
		addr += " --witness"
	}
	fmt.Fprintf(a.err, "on the new machine: sudo sparkrun join %s     (it asks for the token; good %s, until %s)\n",
		addr, times, res.Expires.Local().Format(time.TimeOnly))
	a.sayAlone(res.OnlyOn)
	_, err = fmt.Fprintln(a.out, res.Token)
	return err
}
