package app

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const completionWait = 300 * time.Millisecond // longer is worse than no answer

// CompleteJobs completes a job: running ones, by id and by name.
func (a *App) CompleteJobs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 && cmd.Name() != "stop" { // which takes several
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	b := a.Dial()
	defer b.Close()
	res, err := wire.Jobs.Call(ctx, b, wire.JobsRequest{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, j := range res.Jobs {
		if slices.Contains([]string{"stop", "attach", "exec"}, cmd.Name()) && j.Outcome != nil {
			continue
		}
		if isQuestion(j.Spec) {
			continue
		}
		if slices.Contains(args, string(j.Spec.ID)) || slices.Contains(args, j.Spec.Name) {
			continue
		}
		out = append(out, string(j.Spec.ID)+"\t"+strings.TrimSpace(j.Spec.Workload+" "+j.Spec.Name))
		if j.Spec.Name != "" && !slices.Contains(out, j.Spec.Name) {
			out = append(out, j.Spec.Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteHosts completes the last one of a comma-separated list.
func (a *App) CompleteHosts(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	before := typed[:strings.LastIndex(typed, ",")+1]
	var out []string
	for _, n := range a.completeNodes(cmd) {
		if !slices.Contains(strings.Split(before, ","), n.Host) {
			out = append(out, before+n.Host)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// CompleteHost completes one host, of a flag.
func (a *App) CompleteHost(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, n := range a.completeNodes(cmd) {
		out = append(out, n.Host)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// CompleteSilent completes hosts that do not answer, as arguments or as a flag's value,
// each once. A host that answers cannot be called dead.
func (a *App) CompleteSilent(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if f := cmd.Flags().Lookup("confirm-dead"); f != nil {
		if named, ok := f.Value.(interface{ GetSlice() []string }); ok {
			args = named.GetSlice()
		}
	} else if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, n := range a.completeNodes(cmd) {
		if n.State != "ready" && n.State != "drained" && !slices.Contains(args, n.Host) {
			out = append(out, n.Host)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeNodes asks which nodes are in the cluster; none if the answer takes longer than
// completionWait.
func (a *App) completeNodes(cmd *cobra.Command) []wire.NodeStatus {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil {
		return nil
	}
	return st.Nodes
}

// CompleteWords completes those flags of cmd that take one of a few words.
func CompleteWords(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		words := strings.Split(cmd.Flag(flag).Value.Type(), "|")
		CompleteFlag(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
	}
}

// OutputWords completes --output: files= needs a folder's name after it.
func OutputWords(_ *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
	const files = "files="
	if typed != "" && typed == files[:min(len(typed), len(files))] {
		return []string{files}, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	return []string{"prefix", "raw", "json", files}, cobra.ShellCompDirectiveNoFileComp
}

// CompleteFlag sets the completion of a flag of cmd.
func CompleteFlag(cmd *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic(err) // no such flag, or it has a completion already
	}
}

// CompleteLaunch sets the completion of the flags that all workloads have.
func CompleteLaunch(a *App, cmd *cobra.Command) {
	CompleteFlag(cmd, "on", a.CompleteHosts)
	CompleteFlag(cmd, "exclude", a.CompleteHosts)
	CompleteWords(cmd, "on-failure", "on-partition", "bind-to", "pull")
	CompleteFlag(cmd, "gpus", cobra.FixedCompletions([]string{"all", "none"}, cobra.ShellCompDirectiveNoFileComp))
	CompleteFlag(cmd, "output", OutputWords)
}

// CompleteClients completes a client, as USER@HOST.
func (a *App) CompleteClients(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionWait)
	defer cancel()
	b := a.Dial()
	defer b.Close()
	res, err := wire.Clients.Call(ctx, b, wire.Empty{})
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var out []string
	for _, l := range res.Clients {
		out = append(out, l.User+"@"+l.Host+"\t"+l.ID)
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
