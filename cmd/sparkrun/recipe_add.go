package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

type registryOptions struct {
	folder, name string
}

func newRecipeAddCmd(a *app) *cobra.Command {
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
		Args: takes(1, "the folder"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		opts.folder = args[0]
		return running(a, opts, a.addRegistry)(cmd, args)
	}
	cmd.Flags().StringVar(&opts.name, "name", "", "what the registry is called (default: what it says itself, else the folder's name)")
	return cmd
}

func (a *app) addRegistry(_ context.Context, o registryOptions) error {
	if strings.Contains(o.folder, "://") || strings.HasPrefix(o.folder, "git@") {
		return usagef("%s: sparkrun fetches nothing by itself: git clone it, then add the folder", o.folder)
	}
	if o.name != "" && !contextName.MatchString(o.name) {
		return usagef("--name %q: want letters, digits and . _ -", o.name)
	}
	folder := o.folder
	if !filepath.IsAbs(folder) {
		cwd, err := a.getwd()
		if err != nil {
			return fmt.Errorf("find the working directory: %w", err)
		}
		folder = filepath.Join(cwd, folder)
	}
	list, err := a.registries()
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
		if !contextName.MatchString(r.name) {
			return usagef("registry %q: name it with --name, of letters, digits and . _ -", r.name)
		}
		if slices.Contains(there, r.name) {
			return fmt.Errorf("registry %s: there is one of this name already: give it another with --name, or `sparkrun recipe remove %[1]s` first", r.name)
		}
	}
	if err := list.write(append(folders, added)); err != nil {
		return err
	}
	for _, r := range found {
		files, err := r.files()
		if err != nil {
			a.say(err.Error())
		}
		fmt.Fprintf(a.out, "%s: %s\n", r.name, count(len(files), "recipe"))
	}
	return nil
}

func newRecipeRemoveCmd(a *app) *cobra.Command {
	opts := &registryOptions{}
	cmd := &cobra.Command{
		Use: "remove REGISTRY", Aliases: []string{"rm"},
		Short:   "Look for recipes in a registry no longer",
		Long:    "Takes a registry off the list. Its folder stays as it is.",
		Example: "  sparkrun recipe remove eugr",
		Args:    takes(1, "the registry"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if list, err := a.registries(); err == nil {
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
		return running(a, opts, a.removeRegistry)(cmd, args)
	}
	return cmd
}

func (a *app) removeRegistry(_ context.Context, o registryOptions) error {
	list, err := a.registries()
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
			a.say("with it go the others of " + f.Folder + ": " + strings.Join(names, ", "))
		}
		return list.write(slices.Delete(folders, i, i+1))
	}
	if len(known) == 0 {
		return fmt.Errorf("registry %s: %w: there is none", o.name, errNoRegistry)
	}
	return fmt.Errorf("registry %s: %w: there are %s", o.name, errNoRegistry, strings.Join(known, ", "))
}

var errNoRegistry = errors.New("no such registry")
