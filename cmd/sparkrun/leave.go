package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type leaveOptions struct{ yes, force bool }

func newLeaveCmd(a *app) *cobra.Command {
	opts := &leaveOptions{}
	cmd := &cobra.Command{
		Use:   "leave",
		Short: "Take this machine out of its cluster",
		Long: `Takes this machine out for good: the others forget it, its keys are removed, and
its agent ends. It asks first. To come back it needs a new token.

--force tells nobody: for a machine that the others have taken out while it was
off, or that is the last of a cluster whose other machines are gone.

To stop for a while, stop the agent instead: a member may be away for as long as
it likes.`,
		Example: `  sudo sparkrun leave
  sudo sparkrun leave --yes`,
		Args: takes(0, ""),
		RunE: running(a, opts, a.leave),
	}
	cmd.Flags().BoolVar(&opts.force, "force", false, "remove this machine's keys without a word to the others")
	cmd.Flags().BoolVarP(&opts.yes, "yes", "y", false, "do not ask")
	return cmd
}

func (a *app) leave(ctx context.Context, o leaveOptions) error {
	if !o.yes {
		if err := a.confirm(ctx, "Take this machine out of its cluster?", "to leave the cluster"); err != nil {
			return err
		}
	}
	b := a.dialHere()
	defer b.close()
	if err := b.Leave(ctx, wire.LeaveRequest{Force: o.force}); err != nil {
		return err
	}
	fmt.Fprintln(a.out, "this machine is in no cluster any more")
	return nil
}

// confirm asks a yes-or-no question on the terminal; to completes "give --yes".
func (a *app) confirm(ctx context.Context, question, to string) error {
	f, ok := a.in.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return usagef("no terminal to ask on: give --yes %s", to)
	}
	fmt.Fprint(a.err, question+" [y/N] ")
	answer, err := a.line(ctx)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "y") {
		return fmt.Errorf("nothing was changed")
	}
	return nil
}

// line reads one line of input, unless ctx ends first.
func (a *app) line(ctx context.Context) (string, error) {
	read := make(chan string, 1)
	go func() { // ends with the line, or with the process
		text, _ := bufio.NewReader(a.in).ReadString('\n')
		read <- text
	}()
	select {
	case text := <-read:
		return text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
