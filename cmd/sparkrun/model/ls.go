package model

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type lsOptions struct {
	request wire.ModelsRequest
	json    bool
}

func newLsCmd(a *app.App) *cobra.Command {
	opts := &lsOptions{}
	cmd := &cobra.Command{
		Use: "ls [ORG/NAME]", Aliases: []string{"list"},
		Short: "List which machine has which models",
		Long: `Lists what every machine has of each model: whole or in part, its size on the disk,
when a job, a pull or a verification of sparkrun last began with it, and what room is
left. Sizes of a model whose files other revisions share are told once for all of them.`,
		Example: "  sparkrun model ls\n  sparkrun model ls --json | jq -r '.nodes[].held[]?.repo.name' | sort -u",
		Args:    cobra.MaximumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			if err := named(args[0], &opts.request.ModelRepo, new(string)); err != nil {
				return err
			}
		}
		return app.Running(a, opts, listModels)(cmd, args)
	}
	typeFlag(cmd, &opts.request.Type)
	jsonFlag(cmd.Flags(), &opts.json, "print JSON")
	return cmd
}

func listModels(ctx context.Context, a *app.App, o lsOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := app.Patiently(ctx, func() (wire.ModelsResponse, error) { return wire.Models.Call(ctx, b, o.request) })
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(res)
	}
	rows := [][]string{{"MODEL", "REVISION", "HOST", "SIZE", "STATE", "USED"}}
	for _, n := range res.Nodes {
		for _, h := range n.Held {
			rows = append(rows, heldRows(n.Host, h)...)
		}
	}
	if len(rows) == 1 {
		a.Say("no machine has any" + of(o.request.Name))
	} else if err := a.Table(rows); err != nil {
		return err
	}
	for _, n := range res.Nodes {
		if n.Error != "" {
			a.Say(n.Host + ": " + n.Error)
		} else {
			a.Say(fmt.Sprintf("%s: %s free in %s", n.Host, launcher.Size(n.Free), n.Dir))
		}
		for _, h := range n.Held {
			if h.Why != "" {
				a.Say(fmt.Sprintf("%s: the last pull of %s failed: %s", n.Host, h.Repo.Name, h.Why))
			}
			if len(h.Foreign) > 0 {
				a.Say(fmt.Sprintf("%s: another tool has left %s of %s half-written", n.Host, app.Count(len(h.Foreign), "file"),
					h.Repo.Name))
			}
		}
	}
	return nil
}

func of(name string) string {
	if name == "" {
		return ""
	}
	return " of " + name
}

// heldRows are a repository's revisions on one machine.
func heldRows(host string, h wire.HeldModel) (rows [][]string) {
	name, used := h.Repo.Name, "-"
	if h.Repo.Type != modelcache.Model {
		name += " (" + h.Repo.Type + ")"
	}
	if !h.Used.IsZero() {
		used = launcher.Age(time.Since(h.Used)) + " ago"
	}
	if h.InUse {
		used = "now"
	}
	size := launcher.Size(h.Bytes)
	if len(h.Commits) == 0 {
		return [][]string{{name, "-", host, size, "nothing whole", used}}
	}
	for i, c := range h.Commits {
		if i > 0 {
			size = ""
		}
		rows = append(rows, []string{name, strings.Join(append([]string{short(c.Commit)}, c.Refs...), " "), host, size,
			stateOf(h, c), used})
	}
	return rows
}

func stateOf(h wire.HeldModel, c modelcache.Commit) string {
	switch {
	case c.Whole() && h.Denied:
		return "whole, not for you"
	case c.Whole() && h.Restricted:
		return "whole, for some users"
	case c.Whole() && c.Partial:
		return fmt.Sprintf("%d files of %d", c.Files, c.Files+c.Left)
	case c.Whole():
		return "whole"
	case h.Pulling != "":
		return fmt.Sprintf("comes: %s of %s", launcher.Size(c.Have), launcher.Size(c.Bytes))
	case c.Unsized:
		return "part"
	}
	return fmt.Sprintf("part: %s of %s", launcher.Size(c.Have), launcher.Size(c.Bytes))
}
