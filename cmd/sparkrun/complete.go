package main

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// completion answers the shell's Tab by asking the agent.
type completion struct{ dial func() *backend }

func (a *app) complete() completion { return completion{a.dial} }

const completionWait = 300 * time.Millisecond // longer is worse than no answer

// jobs completes a job: running ones, by id and by name.
func (c completion) jobs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	b := c.dial()
	defer b.close()
	res, err := b.Jobs(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, j := range res.Jobs {
		if (cmd.Name() == "stop" || cmd.Name() == "attach") && j.Outcome != nil {
			continue
		}
		out = append(out, string(j.Spec.ID)+"\t"+strings.TrimSpace(j.Spec.Workload+" "+j.Spec.Name))
		if j.Spec.Name != "" {
			out = append(out, j.Spec.Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// hosts completes the last one of a comma-separated list.
func (c completion) hosts(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	b := c.dial()
	defer b.close()
	st, err := b.Status(ctx, wire.StatusRequest{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	before := typed[:strings.LastIndex(typed, ",")+1]
	var out []string
	for _, n := range st.Nodes {
		out = append(out, before+n.Host)
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}
