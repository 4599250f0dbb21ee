package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type tokenOptions struct {
	request wire.TokenRequest
	json    bool
}

// NewTokenCmd makes `sparkrun token`.
func NewTokenCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Let other machines into the cluster",
		Long: `A token lets machines in: whoever has it can join until it is used up or has
expired. The cluster keeps only a hash of it.`,
		Example: `  sudo sparkrun token create --uses 3`,
	}
	app.Group(cmd)
	opts := &tokenOptions{request: wire.TokenRequest{TTL: 15 * time.Minute}}
	create := &cobra.Command{
		Use:   "create",
		Short: "Make a token for sparkrun join, or sparkrun login",
		Long: `Makes a token and prints it on standard output, once: it cannot be shown again.
How to use it is said on standard error. Give it to sparkrun join on the new
machine, by its prompt or by a file, and to nobody else.

It lets in what its role says and nothing else: a machine that runs jobs, one that
only votes (sparkrun join --witness), or a client: one machine from which a user uses
the cluster without being a member, such as a laptop (sparkrun login).

Tokens for members take root. A client's takes the user whose it is to be; root may
make it for anybody with --user. --user root makes a client that may do nearly all that
root may on a member. No token is made from a client.`,
		Example: `  sudo sparkrun token create
  sudo sparkrun token create --role witness
  sudo sparkrun token create --uses 7 --ttl 1h > token
  sparkrun token create --role client
  sudo sparkrun token create --role client --user ada`,
		Args: app.Takes(0, ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch r := opts.request; {
			case !slices.Contains([]string{"node", "witness", "client"}, r.Role):
				return app.Usagef("--role %s: want node, witness or client", r.Role)
			case r.Role == "client" && r.Uses != 1:
				return app.Usagef("--uses %d: a client's token lets in one machine", r.Uses)
			case r.Role != "client" && r.User != "":
				return app.Usagef("--user %s: it is for --role client", r.User)
			}
			return app.Running(a, opts, createToken)(cmd, args)
		},
	}
	opts.request.Uses = 1
	create.Flags().Var(app.Positive{N: &opts.request.Uses}, "uses", "how many machines it lets in")
	create.Flags().Var(app.Span{D: &opts.request.TTL}, "ttl", "how long it can be used")
	create.Flags().BoolVar(&opts.json, "json", false,
		`print JSON: "token", "expires", and "join", the addresses that sparkrun join can use`)
	create.Flags().StringVar(&opts.request.Role, "role", "node",
		"what it lets in: node; witness, which votes and gets no ranks; or client")
	create.Flags().StringVar(&opts.request.User, "user", "", "whose client it is to be; for root only (default: yours)")
	app.CompleteFlag(create, "role",
		cobra.FixedCompletions([]string{"node", "witness", "client"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(create)
	return cmd
}

// askForToken waits for a leader that is about to be elected: a token is often the first
// request to an agent that has just started.
func askForToken(ctx context.Context, b *wire.Client, r wire.TokenRequest) (wire.TokenResponse, error) {
	return app.Patiently(ctx, func() (wire.TokenResponse, error) { return wire.Token.Call(ctx, b, r) })
}

func createToken(ctx context.Context, a *app.App, o tokenOptions) error {
	b := a.DialHere()
	defer b.Close()
	res, err := askForToken(ctx, b, o.request)
	if name, _, no := a.Chosen(); errors.Is(err, node.ErrNoAgent) && no == nil && name != "" {
		return fmt.Errorf("create token: this machine is no member of the cluster of context %s: type it on one "+
			"that is", name)
	}
	if errors.Is(err, wire.ErrDenied) && o.request.Role != "client" {
		return fmt.Errorf("%w; a laptop's is yours to make: --role client", err)
	}
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(res)
	}
	addr := "ADDR"
	if len(res.Join) > 0 {
		addr = joinAddr(res.Join[0])
	}
	times := "once"
	if o.request.Uses > 1 {
		times = fmt.Sprintf("%d times", o.request.Uses)
	}
	do := "sudo sparkrun join " + addr
	switch o.request.Role {
	case "witness":
		do += " --witness"
	case "client":
		do = "sparkrun login " + addr
	}
	fmt.Fprintf(a.Err, "on the new machine: %s     (it asks for the token; good %s, until %s)\n",
		do, times, res.Expires.Local().Format(time.TimeOnly))
	a.SayAlone(res.OnlyOn)
	_, err = fmt.Fprintln(a.Out, res.Token)
	return err
}
