package model

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/durable"
)

// A registry is a folder with recipes: one of the user's, or a checkout of a git
// repository. The list of registries is a file beside the contexts.

// registryFolder is an entry of that file.
type registryFolder struct {
	Folder string `json:"folder"`         // absolute
	Name   string `json:"name,omitempty"` // empty: the folder's name, or the names in its manifest
}

// registry is one registry in which recipes are looked for. A folder with a manifest may
// have several.
type registry struct {
	name, description string
	folder            string // the folder that was added
	recipes, mods     string // folders; mods may be empty
	hidden            bool   // not listed; @NAME finds it
}

// registries is the file that lists them.
type registries struct{ file string }

func openRegistries(a *app.App) (registries, error) {
	dir, err := a.UserFolder("XDG_CONFIG_HOME", ".config")
	if err != nil {
		return registries{}, fmt.Errorf("find the list of registries: %w", err)
	}
	return registries{filepath.Join(dir, "registries.json")}, nil
}

func (r registries) folders() (out []registryFolder, err error) {
	text, err := os.ReadFile(r.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		return nil, fmt.Errorf("read the list of registries %s: %w", r.file, err)
	}
	return out, nil
}

// write replaces the file atomically.
func (r registries) write(all []registryFolder) error {
	text, err := json.MarshalIndent(all, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(r.file), 0o700)
	}
	if err == nil {
		err = durable.Write(r.file, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the list of registries: %w", err)
	}
	return nil
}

// all are the registries, in the order in which they were added. A folder that cannot be
// read is reported to say and skipped: its disk may not be mounted.
func (r registries) all(say func(string)) ([]registry, error) {
	folders, err := r.folders()
	if err != nil {
		return nil, err
	}
	var out []registry
	for _, f := range folders {
		found, err := f.open()
		if err != nil {
			say(fmt.Sprintf("%v: `sparkrun recipe remove %s` takes it off the list", err, f.plain().name))
		}
		out = append(out, found...)
	}
	return out, nil
}

// names are the names of a folder's registries; one that cannot be read has its own name
// or its folder's.
func (f registryFolder) names() (out []string) {
	found, err := f.open()
	if err != nil {
		found = []registry{f.plain()}
	}
	for _, r := range found {
		out = append(out, r.name)
	}
	return out
}

// manifest is .sparkrun/registry.yaml of a repository; the longer field names are those
// of the Python tool's own list.
type manifest struct {
	Registries []struct {
		Name        string `yaml:"name"`
		Description string `yaml:"description"`
		Recipes     string `yaml:"recipes"`
		Subpath     string `yaml:"subpath"`
		Mods        string `yaml:"mods"`
		ModsSubpath string `yaml:"mods_subpath"`
		Enabled     *bool  `yaml:"enabled"`
		Visible     *bool  `yaml:"visible"`
	} `yaml:"registries"`
}

// maxManifest bounds a manifest's size, in bytes.
const maxManifest = 1 << 20

// open reads the registries of a folder.
func (f registryFolder) open() ([]registry, error) {
	wrong := func(err error) ([]registry, error) {
		return nil, fmt.Errorf("registry %s: %w", cmp.Or(f.Name, f.Folder), err)
	}
	if fi, err := os.Stat(f.Folder); errors.Is(err, fs.ErrNotExist) {
		return wrong(fmt.Errorf("%s: no such file or directory", f.Folder))
	} else if err != nil {
		return wrong(err)
	} else if !fi.IsDir() {
		return wrong(fmt.Errorf("%s is no folder", f.Folder))
	}
	text, err := app.ReadFile(filepath.Join(f.Folder, ".sparkrun", "registry.yaml"), maxManifest)
	if errors.Is(err, fs.ErrNotExist) {
		return []registry{f.plain()}, nil
	}
	var m manifest
	if err == nil {
		err = yaml.Unmarshal(text, &m)
	}
	if err == nil && len(m.Registries) == 0 {
		err = errors.New("it names no registry")
	}
	if err != nil {
		return wrong(fmt.Errorf("its .sparkrun/registry.yaml: %w", err))
	}
	var out []registry
	for _, e := range m.Registries {
		if e.Enabled != nil && !*e.Enabled {
			continue
		}
		one := registry{name: e.Name, description: e.Description, folder: f.Folder, hidden: e.Visible != nil && !*e.Visible}
		switch {
		case f.Name != "" && len(m.Registries) == 1:
			one.name = f.Name
		case f.Name != "":
			one.name = f.Name + "-" + e.Name
		}
		if !app.ContextName().MatchString(one.name) {
			return wrong(fmt.Errorf("its .sparkrun/registry.yaml: %q is no name: want letters, digits "+
				"and . _ -", one.name))
		}
		for _, sub := range []struct {
			to   *string
			path string
		}{{&one.recipes, cmp.Or(e.Subpath, e.Recipes, "recipes")}, {&one.mods, cmp.Or(e.ModsSubpath, e.Mods)}} {
			if sub.path != "" && !filepath.IsLocal(sub.path) {
				return wrong(fmt.Errorf("its .sparkrun/registry.yaml: %s leads out of the folder", sub.path))
			}
			if sub.path != "" {
				*sub.to = filepath.Join(f.Folder, sub.path)
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// plain is a folder without a manifest: its recipes are in recipes/ where that exists,
// its mods in mods/.
func (f registryFolder) plain() registry {
	one := registry{name: cmp.Or(f.Name, filepath.Base(f.Folder)), folder: f.Folder, recipes: f.Folder,
		mods: filepath.Join(f.Folder, "mods")}
	if sub := filepath.Join(f.Folder, "recipes"); isFolder(sub) {
		one.recipes = sub
	}
	return one
}

func isFolder(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// Bounds on walking through a registry.
const (
	maxRecipes     = 2000
	maxRecipeDepth = 4
)

// files are a registry's recipes. Links are not followed, since what they lead to is not
// in the registry. The error is about folders that could not be read; the recipes of the
// others are returned with it.
func (r registry) files() (out []string, err error) {
	var unread error
	err = filepath.WalkDir(r.recipes, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && path != r.recipes:
			unread = errors.Join(unread, err)
			return nil
		case err != nil:
			return err
		case path == r.recipes && d.Type()&fs.ModeSymlink != 0:
			return fmt.Errorf("%s is a link, which is not followed: add the folder that it leads to", path)
		case path == r.recipes:
			return nil
		case strings.HasPrefix(d.Name(), "."), d.IsDir() &&
			strings.Count(strings.TrimPrefix(path, r.recipes), "/") > maxRecipeDepth:
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.Type().IsRegular() && isYAML(path):
			if out = append(out, path); len(out) > maxRecipes {
				return fmt.Errorf("more than %d recipes", maxRecipes)
			}
		}
		return nil
	})
	if err = errors.Join(err, unread); err != nil {
		err = fmt.Errorf("registry %s: %w", r.name, err)
	}
	slices.Sort(out)
	return out, err
}

func isYAML(path string) bool {
	return slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(path))
}

// stem is a recipe's name, from its file.
func stem(path string) string {
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}
