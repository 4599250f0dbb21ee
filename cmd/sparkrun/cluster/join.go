package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

type joinOptions struct {
	node      node.Config
	addr      string
	tokenFile string   // a path, "-" for stdin, or empty: ask on the terminal
	given     []string // its flags, to be typed again
	noStart   bool
}

// NewJoinCmd makes `sparkrun join`.
func NewJoinCmd(a *app.App) *cobra.Command {
	opts := &joinOptions{}
	cmd := &cobra.Command{
		Use:   "join [ADDR]",
		Short: "Make this machine a member of a cluster",
		Long: `Joins the cluster that has a member at ADDR (an address on the management
network, with a port where it is not 7940). The token from sparkrun token create
is asked for without showing it, or read from a file; it is never an argument,
because every user of a machine can read those. The token proves to the cluster
that this machine is invited, and to this machine that it talks to the right
cluster.

Without ADDR it listens for some seconds for clusters that announce themselves on the
management network (mDNS), shows each with its hosts and the fingerprint of its CA,
and asks which one to join; without a terminal it prints what to type, and exits
with 2. Anybody there can announce anything, so that counts for nothing: a cluster
with another CA than the token's is refused, and a host that cannot prove to be of
that CA is sent nothing.

--witness makes it a member that votes and gets no ranks: any small machine on the
management network, without a fabric. With one, a pair goes on by itself when it
loses either machine. Its token is made with --role witness.

Then systemd starts the agent, now and at each boot (--no-start: it does not). Where
there is no unit for it, join says what to type. A machine is in one cluster at most.`,
		Example: `  sudo sparkrun join 10.0.0.1
  sudo sparkrun join                      # looks for clusters, and asks
  sudo sparkrun join 10.0.0.1 --token-file /root/token
  sudo sparkrun join 10.0.0.1 --witness
  ssh root@spark1 sparkrun token create | sudo sparkrun join 10.0.0.1 --token-file -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return app.Usagef("unexpected argument %q", args[1])
			}
			opts.addr, opts.given = strings.Join(args, ""), flagsGiven(cmd.Flags())
			return app.Running(a, opts, runJoin)(cmd, args)
		},
	}
	app.NodeFlags(cmd.Flags(), &opts.node)
	cmd.Flags().BoolVar(&opts.node.Witness, "witness", false, "this machine votes and gets no ranks")
	cmd.Flags().BoolVar(&opts.noStart, "no-start", false, "do not start the agent")
	cmd.Flags().StringVar(&opts.tokenFile, "token-file", "", "read the token from this file, - for standard input")
	return cmd
}

func runJoin(ctx context.Context, a *app.App, o joinOptions) error {
	c := nodeConfig(a, o.node)
	join := func(token string) (node.Joined, error) { return node.Join(ctx, c, o.addr, token) }
	if o.addr == "" {
		chosen, err := chooseCluster(ctx, a, c, o.given)
		if err != nil {
			return err
		}
		join = func(token string) (node.Joined, error) { return node.JoinFound(ctx, c, chosen, token) }
	}
	token, err := readToken(ctx, a, o.tokenFile)
	if err != nil {
		return err
	}
	j, err := join(token)
	if err != nil {
		return err
	}
	for _, w := range j.Warnings {
		a.Say("warning: " + w)
	}
	a.SayAlone(j.OnlyOn)
	fmt.Fprintf(a.Out, "%s is in cluster %s, which %s leads\n", j.Host, j.Cluster, j.Leader)
	started := false
	if !o.noStart && c.Paths.State == node.SystemState {
		if started, err = startAgent(ctx); err != nil {
			a.Say(fmt.Sprintf("warning: the agent has not started: %v", err))
		}
	}
	if started {
		fmt.Fprintln(a.Out, "its agent runs, and starts at each boot")
		return nil
	}
	fmt.Fprintln(a.Err, "the agent does not run yet; next:  sudo systemctl enable --now sparkrun      "+
		"(or: sudo sparkrun agent)")
	return nil
}

// startAgent has systemd start the agent, now and at each boot. Without systemd, or without a unit of
// ours, it does nothing.
func startAgent(ctx context.Context) (started bool, err error) {
	state, _ := exec.CommandContext(ctx, "systemctl", "show", "--property", "LoadState", "--value", "sparkrun").Output()
	if strings.TrimSpace(string(state)) != "loaded" { // or there is no systemctl, or no systemd
		return false, nil
	}
	if out, err := exec.CommandContext(ctx, "systemctl", "enable", "--now", "sparkrun").CombinedOutput(); err != nil {
		return false, fmt.Errorf("systemctl enable --now sparkrun: %w: %s", err, plain.Line(strings.TrimSpace(string(out))))
	}
	return true, nil
}

const maxToken = 4 << 10 // bytes; a token has some hundred

func readToken(ctx context.Context, a *app.App, file string) (string, error) {
	var text []byte
	var err error
	switch file {
	case "":
		text, err = askToken(ctx, a)
	case "-":
		text, err = io.ReadAll(io.LimitReader(a.In, maxToken+1))
	default:
		if text, err = readSmall(file); err != nil {
			err = fmt.Errorf("read the token: %w", err)
		}
	}
	if err != nil {
		return "", err
	}
	if len(text) > maxToken {
		return "", errors.New("read token: that is no token: it is too long")
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", errors.New("read token: there is none in what was given")
	}
	return token, nil
}

func readSmall(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		var path *fs.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxToken+1))
}

// askToken reads a line from the terminal without showing it.
func askToken(ctx context.Context, a *app.App) ([]byte, error) {
	if !a.InTTY() {
		return nil, app.Usagef("no terminal to ask for the token on: give --token-file PATH, or --token-file - " +
			"and the token on standard input")
	}
	text, err := a.AskSecret(ctx, "token: ")
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("ask for the token: %w", err)
	}
	return text, err
}
