package main

import (
	"context"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

type versionOptions struct{ json bool }

func newVersionCmd(run func(context.Context, versionOptions) error) *cobra.Command {
	opts := &versionOptions{}
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Say which sparkrun this is",
		Long:    "Prints the version of this binary. The agents' versions are in sparkrun status --json.",
		Example: "  sparkrun version\n  sparkrun version --json",
		Args:    takes(0, ""),
		RunE:    running(opts, run),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func (a *app) printVersion(_ context.Context, o versionOptions) error {
	if o.json {
		return a.object(struct {
			Version string `json:"version"`
			Go      string `json:"go"`
			Arch    string `json:"arch"`
		}{a.version, runtime.Version(), runtime.GOARCH})
	}
	_, err := fmt.Fprintf(a.out, "sparkrun %s\n", a.version)
	return err
}
