package model

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/workloads/recipe"
)

// foundRecipe is a recipe and where it was found.
type foundRecipe struct {
	recipe.Recipe
	name string // a name that finds it again
	file string
	from *registry // nil: a file outside any registry
}

// errNoRecipe says that no recipe has the name.
var errNoRecipe = errors.New("no such recipe")

// findRecipe looks for a recipe: @REGISTRY/NAME, a file, NAME.yaml here, or NAME in the
// registries, where it must be unique.
func findRecipe(a *app.App, name string) (foundRecipe, error) {
	if strings.Contains(name, "://") {
		return foundRecipe{}, app.Usagef("recipe %s: an address is not fetched: download the file, read it, and "+
			"name it here", name)
	}
	scope, rest, scoped := strings.Cut(strings.TrimPrefix(name, "@"), "/")
	scoped = scoped && strings.HasPrefix(name, "@")
	if !scoped {
		if file, ok := recipeFile(a, name); ok {
			return openRecipe(name, file, registryOf(a, file))
		}
		rest = name
	}
	all, err := allRegistries(a)
	if err != nil {
		return foundRecipe{}, err
	}
	var hits []foundRecipe
	var names []string
	known := false
	for i := range all {
		r := &all[i]
		if scoped && r.name != scope || !scoped && r.hidden {
			continue
		}
		known = true
		files, err := r.files()
		if err != nil { // another registry may have it
			a.Say(err.Error())
		}
		for _, f := range files {
			names = append(names, stem(f))
			if stem(f) == strings.TrimSuffix(rest, filepath.Ext(f)) || r.nested(f) == rest {
				hits = append(hits, foundRecipe{name: "@" + r.name + "/" + r.nested(f), file: f, from: r})
			}
		}
	}
	switch {
	case len(hits) == 1:
		return openRecipe(hits[0].name, hits[0].file, hits[0].from)
	case len(hits) > 1:
		var names []string
		for _, h := range hits {
			names = append(names, h.name)
		}
		return foundRecipe{}, app.Usagef("recipe %s: there are several: %s", name, strings.Join(names, ", "))
	case scoped && !known:
		return foundRecipe{}, fmt.Errorf("recipe %s: %w: no registry is called %s (`sparkrun recipe list` shows them)",
			name, errNoRecipe, scope)
	case len(all) == 0:
		return foundRecipe{}, fmt.Errorf("recipe %s: %w: there is no such file, and no registry yet: `sparkrun "+
			"recipe add FOLDER`%s", name, errNoRecipe, otherwise(name))
	}
	if near := nearRecipes(names, rest); near != "" {
		return foundRecipe{}, fmt.Errorf("recipe %s: %w: did you mean %s?", name, errNoRecipe, near)
	}
	return foundRecipe{}, fmt.Errorf("recipe %s: %w: there is no such file, and none of the registries has it: "+
		"`sparkrun recipe search TEXT`%s", name, errNoRecipe, otherwise(name))
}

// otherwise says how something is run that is not meant for a recipe: an image as docker run has it, or a model.
func otherwise(name string) string {
	return fmt.Sprintf("; an image is run by `sparkrun launch exec --image %[1]s -- COMMAND`, a model is served by "+
		"`sparkrun launch vllm %[1]s`", app.Quote(name))
}

// nearRecipes are the names that one may have been meant for: those with it inside, or those spelt nearly so.
func nearRecipes(names []string, typed string) string {
	const most = 5
	typed = strings.ToLower(stem(typed))
	near := slices.DeleteFunc(slices.Clone(names), func(n string) bool {
		return !strings.Contains(strings.ToLower(n), typed)
	})
	if len(near) == 0 {
		near = help.Near(names, typed)
	}
	slices.Sort(near)
	near = slices.Compact(near)
	if len(near) > most {
		near = append(near[:most], "others: `sparkrun recipe search "+app.Quote(typed)+"`")
	}
	return strings.Join(near, " or ")
}

// nested is a recipe's path in its registry, without its extension.
func (r registry) nested(file string) string {
	rel, err := filepath.Rel(r.recipes, file)
	if err != nil {
		return stem(file)
	}
	return strings.TrimSuffix(rel, filepath.Ext(rel))
}

// recipeFile is a file of that name, with its extension or without, from the working
// directory.
func recipeFile(a *app.App, name string) (string, bool) {
	path := name
	if !filepath.IsAbs(path) {
		cwd, err := a.Getwd()
		if err != nil {
			return "", false
		}
		path = filepath.Join(cwd, path)
	}
	for _, p := range []string{path, path + ".yaml", path + ".yml"} {
		if fi, err := os.Stat(p); err == nil && !fi.IsDir() && (p != path || isYAML(p) || strings.Contains(name, "/")) {
			return p, true
		}
	}
	return "", false
}

func allRegistries(a *app.App) ([]registry, error) {
	r, err := openRegistries(a)
	if err != nil {
		return nil, err
	}
	return r.all(a.Say)
}

// registryOf is the registry that contains a file, for its mods; nil: none.
func registryOf(a *app.App, file string) *registry {
	list, err := openRegistries(a)
	if err != nil {
		return nil
	}
	all, err := list.all(func(string) {})
	if err != nil {
		return nil
	}
	for i := range all {
		if rel, err := filepath.Rel(all[i].recipes, file); err == nil && filepath.IsLocal(rel) {
			return &all[i]
		}
	}
	return nil
}

func openRecipe(name, file string, from *registry) (foundRecipe, error) {
	text, err := app.ReadFile(file, recipe.MaxBytes)
	if err != nil {
		return foundRecipe{}, fmt.Errorf("read recipe %s: %w", name, err)
	}
	r, err := recipe.Read(text)
	if err != nil {
		return foundRecipe{}, fmt.Errorf("recipe %s: %w", name, err)
	}
	return foundRecipe{Recipe: r, name: name, file: file, from: from}, nil
}

// modFolder is the folder of a mod: beside the recipe, in its repository, in its
// registry, or, as in the Python tool, in a registry called eugr.
func modFolder(a *app.App, r foundRecipe, mod string) (string, error) {
	list, err := openRegistries(a)
	if err != nil {
		return "", err
	}
	all, err := list.all(func(string) {}) // findRecipe has printed these already
	if err != nil {
		return "", err
	}
	var places []string
	look := func(mods string, rest string) {
		if p := filepath.Join(mods, rest); mods != "" && !slices.Contains(places, p) {
			places = append(places, p)
		}
	}
	if scope, rest, ok := strings.Cut(strings.TrimPrefix(mod, "@"), "/"); ok && strings.HasPrefix(mod, "@") {
		for _, reg := range all {
			if reg.name == scope {
				look(reg.mods, strings.TrimPrefix(rest, "mods/"))
			}
		}
	} else {
		bare, dir := strings.TrimPrefix(mod, "mods/"), filepath.Dir(r.file)
		for _, beside := range []string{".", "mods", "../mods"} {
			look(filepath.Join(dir, beside), bare)
		}
		if r.from != nil {
			look(r.from.mods, bare)
		}
		for _, reg := range all {
			if reg.name == "eugr" {
				look(reg.mods, bare)
			}
		}
	}
	for _, p := range places {
		if fi, err := os.Stat(filepath.Join(p, "run.sh")); err == nil && fi.Mode().IsRegular() {
			return p, nil
		}
	}
	if len(places) == 0 {
		return "", fmt.Errorf("mod %s: there is no registry of that name with mods", mod)
	}
	return "", fmt.Errorf("mod %s: there is no run.sh in %s: `sparkrun recipe add FOLDER` adds a checkout that has it",
		mod, strings.Join(places, ", nor in "))
}
