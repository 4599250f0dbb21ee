package cluster

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
)

type loginOptions struct {
	addr      string
	name      string // of the context; empty: the host of addr
	tokenFile string
}

// NewLoginCmd makes `sparkrun login`.
func NewLoginCmd(a *app.App) *cobra.Command {
	opts := &loginOptions{}
	cmd := &cobra.Command{
		Use:   "login HOST[:PORT]",
		Short: "Use a cluster from a machine that is no member of it",
		Long: `Makes this machine a client of the cluster that has a member at HOST: a laptop from
which one user launches, watches and stops jobs. It needs no root and no agent here.

The token comes from sparkrun token create --role client on a member. It is asked for
without showing it, or read from a file; it is never an argument. It proves to this
machine that it talks to the right cluster before it proves to the cluster that this
machine is invited, and it says whose calls this machine's are.

The key is made here and lies in ~/.config/sparkrun (XDG_CONFIG_HOME), which only you
can read. The certificate lasts 30 days and is renewed as it is used; one that has ended
is renewed too, as long as the cluster lists this machine: sparkrun client list. The
addresses of all members are kept, so any of them will do later.

The context gets the name --context, else HOST's, and becomes the current one. Other
commands then use it: sparkrun context.`,
		Example: `  sparkrun login spark1
  sparkrun login 10.0.0.1 --context lab
  ssh spark1 sparkrun token create --role client | sparkrun login spark1 --token-file -`,
		Args: app.Takes(1, "the address of a member"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.addr = args[0]
			return app.Running(a, opts, runLogin)(cmd, args)
		},
	}
	cmd.Flags().StringVar(&opts.tokenFile, "token-file", "", "read the token from this file, - for standard input")
	cmd.Flags().StringVar(&opts.name, "context", "", "the context's name here (default: HOST)")
	app.CompleteFlag(cmd, "context", cobra.NoFileCompletions) // it names a new context
	return cmd
}

func runLogin(ctx context.Context, a *app.App, o loginOptions) error {
	name := o.name
	if name == "" {
		name = o.addr
		if host, _, err := net.SplitHostPort(o.addr); err == nil {
			name = host
		}
		name = strings.NewReplacer(":", "-", "%", "-").Replace(strings.Trim(name, "[]"))
	}
	if err := app.CheckContextName(name); err != nil {
		return err
	}
	all, err := a.Contexts()
	if err != nil {
		return err
	}
	if err := all.Has(name); err == nil {
		return fmt.Errorf("log in: context %s: %w: `sparkrun logout %[1]s` first, or choose another name with "+
			"--context", name, fs.ErrExist)
	}
	if err := all.MayWrite(os.Geteuid()); err != nil {
		return err
	}
	token, err := readToken(ctx, a, o.tokenFile)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read host name: %w", err)
	}
	st, err := remote.Login(ctx, all.Folder(name), o.addr, token, host)
	if err != nil {
		return err
	}
	if err := all.Use(name); err != nil {
		return err
	}
	has := "1 machine"
	if n := len(st.Members); n != 1 {
		has = fmt.Sprintf("%d machines", n)
	}
	_, err = fmt.Fprintf(a.Out, "context %s: %s in cluster %s, which has %s\n", name, st.User, st.Cluster, has)
	if fromEnv, set := a.Getenv(app.ContextEnv); set && fromEnv != name {
		a.Say(fmt.Sprintf("%s is set to %q here, which counts more than the current context", app.ContextEnv, fromEnv))
	}
	return err
}
