package model

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

type registryOptions struct {
	folder, name string
}

func newRecipeAddCmd(a *app.App) *cobra.Command {
	opts := &registryOptions{}
	cmd := &cobra.Command{
		Use:   "add FOLDER",
		Short: "Look for recipes in a folder too",
		Long: `Adds a folder with recipes to the registries: its recipes/ where it has one, else all in
it, and mods/ with the mods that they name. A repository with a .sparkrun/registry.yaml
says there itself where its recipes are.

A checkout of a git repository is such a folder, and git pull keeps it up to date:
sparkrun fetches nothing by itself. What is added is kept in
~/.config/sparkrun/registries.json.`,
		Example: `  git clone https://github.com/eugr/spark-vllm-docker && sparkrun recipe add spark-vllm-docker --name eugr
  sparkrun recipe add ~/recipes`,
		Args: app.Takes(1, "the folder"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		opts.folder = args[0]
		return app.Running(a, opts, addRegistry)(cmd, args)
	}
	cmd.Flags().StringVar(&opts.name, "name", "",
		"what the registry is called (default: what it says itself, else the folder's name)")
	return cmd
}

func addRegistry(_ context.Context, a *app.App, o registryOptions) error {
	if strings.Contains(o.folder, "://") || strings.HasPrefix(o.folder, "git@") {
		return app.Usagef("%s: sparkrun fetches nothing by itself: git clone it, then add the folder", o.folder)
	}
	if o.name != "" && !app.ContextName().MatchString(o.name) {
		return app.Usagef("--name %q: want letters, digits and . _ -", o.name)
	}
	folder := o.folder
	if !filepath.IsAbs(folder) {
		cwd, err := a.Getwd()
		if err != nil {
			return fmt.Errorf("find the working directory: %w", err)
		}
		folder = filepath.Join(cwd, folder)
	}
	list, err := openRegistries(a)
	if err != nil {
		return err
	}
	folders, err := list.folders()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(folders, func(f registryFolder) bool { return f.Folder == folder }) {
		return fmt.Errorf("registry %s: it has been added already", folder)
	}
	added := registryFolder{Folder: filepath.Clean(folder), Name: o.name}
	found, err := added.open()
	if err != nil {
		return err
	}
	var there []string
	for _, f := range folders {
		there = append(there, f.names()...)
	}
	for _, r := range found {
		if !app.ContextName().MatchString(r.name) {
			return app.Usagef("registry %q: name it with --name, of letters, digits and . _ -", r.name)
		}
		if slices.Contains(there, r.name) {
			return fmt.Errorf("registry %s: there is one of this name already: give it another with --name, or "+
				"`sparkrun recipe remove %[1]s` first", r.name)
		}
	}
	if err := list.write(append(folders, added)); err != nil {
		return err
	}
	for _, r := range found {
		files, err := r.files()
		if err != nil {
			a.Say(err.Error())
		}
		fmt.Fprintf(a.Out, "%s: %s\n", r.name, app.Count(len(files), "recipe"))
	}
	return nil
}

func newRecipeRemoveCmd(a *app.App) *cobra.Command {
	opts := &registryOptions{}
	cmd := &cobra.Command{
		Use: "remove REGISTRY", Aliases: []string{"rm"},
		Short:   "Look for recipes in a registry no longer",
		Long:    "Takes a registry off the list. Its folder stays as it is.",
		Example: "  sparkrun recipe remove eugr",
		Args:    app.Takes(1, "the registry"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if list, err := openRegistries(a); err == nil {
				folders, _ := list.folders()
				for _, f := range folders {
					names = append(names, f.names()...)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		opts.name = args[0]
		return app.Running(a, opts, removeRegistry)(cmd, args)
	}
	return cmd
}

func removeRegistry(_ context.Context, a *app.App, o registryOptions) error {
	list, err := openRegistries(a)
	if err != nil {
		return err
	}
	folders, err := list.folders()
	if err != nil {
		return err
	}
	var known []string
	for i, f := range folders {
		names := f.names()
		known = append(known, names...)
		if !slices.Contains(names, o.name) {
			continue
		}
		if len(names) > 1 {
			a.Say("with it go the others of " + f.Folder + ": " + strings.Join(names, ", "))
		}
		return list.write(slices.Delete(folders, i, i+1))
	}
	if len(known) == 0 {
		return fmt.Errorf("registry %s: %w: there is none", o.name, errNoRegistry)
	}
	return fmt.Errorf("registry %s: %w: there are %s", o.name, errNoRegistry, strings.Join(known, ", "))
}

var errNoRegistry = errors.New("no such registry")
