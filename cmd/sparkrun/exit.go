package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

func isLaunch(cmd *cobra.Command) bool {
	for c := cmd; c != nil; c = c.Parent() {
		if c.Name() == "launch" || c.CommandPath() == "sparkrun run" {
			return true
		}
	}
	return false
}

// codeOf maps an error to an exit code; nothing else does.
func codeOf(cmd *cobra.Command, err error) int {
	var exit *app.ExitError
	var usage *app.UsageError
	switch {
	case errors.As(err, &exit):
		return exit.Code
	case isLaunch(cmd) || cmd.Name() == "attach" || cmd.Name() == "exec":
		return launcher.ExitOwnFailure
	case errors.As(err, &usage):
		return app.ExitUsage
	}
	return app.ExitFailure
}

// complaint is an error's text: a line, and a hint where one helps.
func complaint(cmd *cobra.Command, err error) string {
	var exit *app.ExitError
	if errors.As(err, &exit) && exit.Err == nil {
		return ""
	}
	text := fmt.Sprintf("sparkrun: %v\n", err)
	if h := hint(cmd, err); h != "" {
		text += fmt.Sprintf("hint: %s\n", h)
	}
	return text
}

// enrolled tells whether this machine is in a cluster, as far as this user can see.
func enrolled() bool {
	in, err := node.DefaultPaths().Folder().Enrolled()
	return in || err != nil
}

// otherwiseLogin is a hint for users who did not mean this machine's agent.
const otherwiseLogin = "or use another machine's cluster from here: `sparkrun login HOST`"

// otherwiseAlone is a hint for launches, except those of services, which nothing restarts
// without an agent.
func otherwiseAlone(cmd *cobra.Command) string {
	serve := cmd.Flags().Lookup("serve")
	if !isLaunch(cmd) || engine.Serves(cmd.Name()) || cmd.Name() == "run" || serve != nil && serve.Changed {
		return ""
	}
	return "launch on this machine alone with --standalone, "
}

func hint(cmd *cobra.Command, err error) string {
	var usage *app.UsageError
	switch {
	case errors.As(err, &usage), errors.Is(err, launcher.ErrInvalid) && isLaunch(cmd):
		return fmt.Sprintf("`%s --help` shows how", cmd.CommandPath())
	case errors.Is(err, engine.ErrNoRoom):
		return "--force starts it all the same"
	case errors.Is(err, rendezvous.ErrFabricUnfit):
		return "--force starts it all the same, over management where nothing else is left; a job on one machine " +
			"needs no fabric"
	case errors.Is(err, remote.ErrLoggedOut):
		return "a new token lets it in again: `sparkrun token create --role client` on a machine of the cluster, " +
			"then `sparkrun logout` and `sparkrun login` here"
	case errors.Is(err, remote.ErrNoMember):
		return "is this machine on a network from which they are reached? `sparkrun context list` shows the " +
			"clusters that it knows"
	case errors.Is(err, node.ErrNoAgent) && !enrolled():
		return "this machine is in no cluster: `sudo sparkrun init` makes one, `sudo sparkrun join` " +
			"joins one; " + otherwiseAlone(cmd) + otherwiseLogin
	case errors.Is(err, node.ErrNoAgent):
		return "start it with `sudo systemctl start sparkrun` (or `sudo sparkrun " +
			"agent`), " + otherwiseAlone(cmd) + otherwiseLogin
	case errors.Is(err, trust.ErrForeign) && cmd.Name() == "login":
		return "the token is of another cluster than the one at that address"
	case errors.Is(err, membership.ErrEnrolled) && cmd.Name() == "init":
		return "`sparkrun token create` lets other machines in; `sparkrun leave` takes this one out"
	case errors.Is(err, membership.ErrEnrolled):
		return "`sparkrun leave` takes it out of its cluster first"
	case errors.Is(err, rendezvous.ErrTokenUsed), errors.Is(err, rendezvous.ErrTokenExpired),
		errors.Is(err, rendezvous.ErrTokenUnknown):
		if cmd.Name() == "login" {
			return "`sparkrun token create --role client` on a machine of the cluster makes a new token"
		}
		return "`sparkrun token create` on a machine of the cluster makes a new token"
	case errors.Is(err, rendezvous.ErrHostTaken):
		return "give this machine another name with --host, or take the old one out with `sparkrun leave` there"
	case errors.Is(err, wire.ErrUnreachable) && (cmd.Name() == "join" || cmd.Name() == "login"):
		return "the address must be a member's on the management network, and its agent must run"
	}
	return ""
}
