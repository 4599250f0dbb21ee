package gateway

import (
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

func newCloseCmd(a *app.App) *cobra.Command {
	opts := &openOptions{}
	return &cobra.Command{
		Use:   "close",
		Short: "Listen on loopback alone while there is no key",
		Long: `Takes back what gateway open has set. While there are keys every machine goes on
listening on the management network, and asks for one: gateway key revoke takes a key
back. It takes root.`,
		Example: `  sudo sparkrun gateway close`,
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, opts, setOpen),
	}
}
