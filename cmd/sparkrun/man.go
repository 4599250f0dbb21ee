package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

type manOptions struct{ dir string }

func newManCmd(a *app) *cobra.Command {
	opts := &manOptions{}
	cmd := &cobra.Command{
		Use:    "man DIR",
		Hidden: true, // for packages
		Short:  "Write the manual pages",
		Long: `Writes a manual page of each command to DIR, as packages have them. Their date is
SOURCE_DATE_EPOCH, in seconds since 1970; without it, today.`,
		Example: "  sparkrun man /tmp/man && man -l /tmp/man/sparkrun-launch.1",
		Args:    takes(1, "a folder"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		opts.dir = args[0]
		return running(a, opts, a.man)(cmd, args)
	}
	return cmd
}

func (a *app) man(_ context.Context, o manOptions) error {
	date := time.Now()
	if text, ok := a.getenv("SOURCE_DATE_EPOCH"); ok {
		seconds, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("read SOURCE_DATE_EPOCH %q: want seconds since 1970", text)
		}
		date = time.Unix(seconds, 0)
	}
	for _, cmd := range documented(newRootCmd(a)) {
		page := filepath.Join(o.dir, pageName(cmd)+".1")
		if err := os.WriteFile(page, manPage(cmd, a.version, date.UTC().Format(time.DateOnly)), 0o644); err != nil {
			return fmt.Errorf("write the manual page of %s: %w", cmd.CommandPath(), err)
		}
	}
	return nil
}

// documented are a command and all below it that people are told of.
func documented(cmd *cobra.Command) []*cobra.Command {
	out := []*cobra.Command{cmd}
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			out = append(out, documented(c)...)
		}
	}
	return out
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }
