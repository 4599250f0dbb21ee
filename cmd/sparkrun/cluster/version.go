package cluster

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// VersionOptions belong to `sparkrun version`; --version uses the zero value.
type VersionOptions struct{ json, cluster bool }

// NewVersionCmd makes `sparkrun version`.
func NewVersionCmd(a *app.App) *cobra.Command {
	opts := &VersionOptions{}
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Say which sparkrun this is, or which ones the cluster runs",
		Long: `Prints the version of this program; with --cluster those of all machines' agents.

A cluster is upgraded machine by machine: agents whose protocols are one apart work
together, and jobs go on meanwhile. Until all have the higher one the cluster uses
nothing that the lower does not know. An agent two apart gets no part in jobs, and
sparkrun status says so. --cluster says on standard error when versions differ.`,
		Example: "  sparkrun version\n  sparkrun version --cluster\n  sparkrun version --cluster --json | jq -r " +
			"'.nodes[] | .host + \" \" + .version'",
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, PrintVersion),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&opts.cluster, "cluster", false, "of every machine's agent, too")
	return cmd
}

// versionOf is what --json prints.
type versionOf struct {
	Version  string        `json:"version"`
	Protocol int           `json:"protocol"`
	Go       string        `json:"go"`
	Arch     string        `json:"arch"`
	Nodes    []nodeVersion `json:"nodes,omitempty"`
}

// nodeVersion is an agent's version; null where it is not known.
type nodeVersion struct {
	Host     string  `json:"host"`
	State    string  `json:"state"`
	Version  *string `json:"version"`
	Protocol *int    `json:"protocol"`
}

// PrintVersion prints this program's version, or the cluster's.
func PrintVersion(ctx context.Context, a *app.App, o VersionOptions) error {
	v := versionOf{Version: a.Version, Protocol: rendezvous.Protocol, Go: runtime.Version(), Arch: runtime.GOARCH}
	if !o.cluster {
		if o.json {
			return a.Object(v)
		}
		_, err := fmt.Fprintf(a.Out, "sparkrun %s\n", a.Version)
		return err
	}
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if err != nil {
		return err
	}
	v.Nodes = nodeVersions(st.Nodes)
	if o.json {
		if err := a.Object(v); err != nil {
			return err
		}
	} else {
		rows := [][]string{{"HOST", "VERSION", "PROTOCOL", "STATE"}}
		for _, n := range v.Nodes {
			version, protocol := "-", "-"
			if n.Version != nil {
				version, protocol = *n.Version, strconv.Itoa(*n.Protocol)
			}
			rows = append(rows, []string{n.Host, version, protocol, n.State})
		}
		if err := a.Table(rows); err != nil {
			return err
		}
	}
	for _, line := range differ(a.Version, v.Nodes) {
		a.Say(line)
	}
	if st.Problem != "" {
		a.Say(st.Problem + ": the others' versions are not known here")
	}
	return nil
}

func nodeVersions(nodes []wire.NodeStatus) []nodeVersion {
	var out []nodeVersion
	for _, n := range nodes {
		v := nodeVersion{Host: n.Host, State: n.State}
		if n.Version != "" {
			v.Version, v.Protocol = &n.Version, &n.Protocol
		}
		out = append(out, v)
	}
	return out
}

// differ says which versions differ; nothing where all are equal.
func differ(ours string, nodes []nodeVersion) []string {
	by := map[string][]string{}
	lowest, highest := -1, -1
	for _, n := range nodes {
		if n.Version == nil {
			continue
		}
		by[*n.Version] = append(by[*n.Version], n.Host)
		if lowest < 0 || *n.Protocol < lowest {
			lowest = *n.Protocol
		}
		highest = max(highest, *n.Protocol)
	}
	var versions []string
	for v := range by {
		versions = append(versions, v)
	}
	slices.SortStableFunc(versions, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(by[b]), len(by[a])), cmp.Compare(a, b))
	})
	var out []string
	if len(versions) > 1 {
		line := "the agents' versions differ:"
		for i, v := range versions {
			line += map[bool]string{true: " ", false: "; "}[i == 0] + v + " on " + strings.Join(by[v], ", ")
		}
		out = append(out, line)
	}
	if lowest < highest {
		out = append(out, fmt.Sprintf("the cluster keeps to protocol %d until all agents speak %d", lowest, highest))
	}
	if len(versions) > 0 && !slices.Contains(versions, ours) {
		out = append(out, "this command is sparkrun "+ours+", which no agent runs")
	}
	return out
}
