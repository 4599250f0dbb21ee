package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/launcher/durable"
)

// list is a rule that names what is allowed; an empty one allows nothing.
type list struct {
	line int
	of   []string
}

// Containers refuses a user whose ranks may not run in containers. Without a rule only
// root's may: a user who has the engine mount and run what they choose must be trusted as
// much as a user of the engine itself.
func (p Policy) Containers(host, user string, groups []string) error {
	w := p.containers
	if w == nil && user == "root" || w != nil && w.has(user, groups) {
		return nil
	}
	what := fmt.Sprintf("%s may not run containers on %s", user, host)
	if w == nil {
		return fmt.Errorf("%s: only root may until it is allowed there (as much as Docker's group gives): `sudo "+
			"sparkrun init --containers %s`, or this line in %s: %s", what, user, p.path, containersRule("users", user))
	}
	return fmt.Errorf("%s: rule containers, line %d of %s there, allows %s", what, w.line, p.path, w)
}

func containersRule(kind, name string) string {
	return fmt.Sprintf("containers: {%s: [%s]}", kind, name)
}

// AllowContainers writes a rule that lets a user, or else a group of that name, run ranks in containers. A file that
// has such a rule is left to its administrator; written tells whether it had to be changed.
func AllowContainers(path, name string) (written bool, err error) {
	kind := "users"
	if _, err := user.Lookup(name); err != nil {
		if _, err := user.LookupGroup(name); err != nil {
			return false, fmt.Errorf("allow containers: %q is neither a user nor a group of this machine", name)
		}
		kind = "groups"
	}
	p, err := Read(path)
	if err != nil {
		return false, err
	}
	if w := p.containers; w != nil {
		if slices.Contains(w.users, name) || slices.Contains(w.groups, name) {
			return false, nil
		}
		return false, fmt.Errorf("allow containers: line %d of %s has a rule already, which allows %s: add %s to it",
			w.line, path, w, name)
	}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("allow containers: %w", err)
	}
	if len(text) > 0 && text[len(text)-1] != '\n' {
		text = append(text, '\n')
	}
	text = append(text, containersRule(kind, name)+"\n"...)
	if p, err := parse(text); err != nil || p.containers == nil {
		return false, fmt.Errorf("allow containers: %s takes no further lines: add this rule yourself: %s", path,
			containersRule(kind, name))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return false, fmt.Errorf("allow containers: %w", err)
	}
	if err := durable.Write(path, text, 0o644); err != nil {
		return false, fmt.Errorf("allow containers: %w", err)
	}
	return true, nil
}

// Image refuses an image by its reference: the rule allows repositories
// (nvcr.io/nvidia/vllm, with or without a tag) and, if they end with a slash, all below
// (nvcr.io/, nvidia/).
func (p Policy) Image(host, ref string) error {
	if p.images == nil || slices.ContainsFunc(p.images.of, func(rule string) bool { return covers(rule, ref) }) {
		return nil
	}
	return p.images.refusal(fmt.Sprintf("image %s may not be launched on %s: rule images", ref, host), p.path)
}

// Mount refuses a file or folder of the host; source must have all links resolved.
func (p Policy) Mount(host, source string) error {
	if p.mounts == nil || slices.ContainsFunc(p.mounts.of, func(dir string) bool {
		rest, err := filepath.Rel(dir, source)
		return err == nil && rest != ".." && !strings.HasPrefix(rest, "../")
	}) {
		return nil
	}
	return p.mounts.refusal(fmt.Sprintf("%s may not be mounted on %s: rule mounts", source, host), p.path)
}

// Elevate refuses a user whose containers may not have more rights than the user has.
// Without a rule only root's may.
func (p Policy) Elevate(host, user string, groups, options []string) error {
	w := p.elevate
	if w == nil && user == "root" || w != nil && w.has(user, groups) {
		return nil
	}
	what := fmt.Sprintf("--docker-arg %s gives a container on %s more than %s has", strings.Join(options, ", "), host,
		user)
	if w == nil {
		return fmt.Errorf("%s: only root may, and users that a rule `elevate` in %s there names", what, p.path)
	}
	return fmt.Errorf("%s: rule elevate, line %d of %s there, allows %s", what, w.line, p.path, w)
}

func (l *list) refusal(what, path string) error {
	of := strings.Join(l.of, ", ")
	if of == "" {
		of = "nothing"
	}
	return fmt.Errorf("%s, line %d of %s there, allows %s: choose other machines, or ask its administrator", what,
		l.line, path, of)
}

// covers compares references by their full names: nginx is docker.io/library/nginx.
func covers(rule, ref string) bool {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil || strings.HasPrefix(ref, "sha256:") { // an ID says nothing about its origin
		return false
	}
	if below, all := strings.CutSuffix(rule, "/"); all {
		r, err := reference.ParseNormalizedNamed(below + "/x")
		return err == nil && strings.HasPrefix(named.Name(), strings.TrimSuffix(r.Name(), "x"))
	}
	r, err := reference.ParseNormalizedNamed(rule)
	if err != nil {
		return false
	}
	if reference.IsNameOnly(r) {
		return r.Name() == named.Name()
	}
	return r.String() == reference.TagNameOnly(named).String()
}

// images reads a list of references.
func images(n *yaml.Node) ([]string, error) {
	all, err := names(n)
	for i, rule := range all {
		text := rule
		if strings.HasSuffix(rule, "/") {
			text += "x"
		}
		if _, perr := reference.ParseNormalizedNamed(text); perr != nil {
			return nil, at(n.Content[i],
				"%q: %s: want a repository such as nvcr.io/nvidia/vllm, or a place such as nvcr.io/", rule, perr)
		}
	}
	return all, err
}

// folders reads a list of absolute paths.
func folders(n *yaml.Node) ([]string, error) {
	all, err := names(n)
	for i, dir := range all {
		if !filepath.IsAbs(dir) {
			return nil, at(n.Content[i], "%q: want an absolute path", dir)
		}
	}
	return all, err
}
