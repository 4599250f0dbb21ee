// Package policy decides who may run ranks on a node, and where its models lie, by a file
// that the node's administrator writes:
//
//	launch:
//	  users: [alice]
//	  groups: [ml, sparkrun]
//	containers:
//	  groups: [ml]
//	images: [nvcr.io/nvidia/, vllm/vllm-openai]
//	mounts: [/home, /models]
//	elevate:
//	  users: [carol]
//	model_cache: /data/models
//	model_readers:
//	  groups: [ml]
//
// It must not promise what is not enforced: what it does not know is an error.
package policy

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// maxFile bounds the file, in bytes.
const maxFile = 1 << 20

// Policy is what the file says. The zero Policy has no rules.
type Policy struct {
	path string
	// nil, each: no rule
	launch         *who
	containers     *who // whose ranks may run in containers
	images, mounts *list
	elevate        *who // whose containers may have more rights than their user
	modelCache     *list
	modelReaders   *who
}

// who lists the users that a rule allows; empty: nobody.
type who struct {
	line          int
	users, groups []string
}

// Read reads the file of a node; if there is none, or path is empty, there are no rules. An
// error names file, line and remedy: a file that cannot be understood never counts as
// missing.
func Read(path string) (Policy, error) {
	if path == "" {
		return Policy{}, nil
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Policy{path: path}, nil
	}
	if err != nil {
		return Policy{}, fmt.Errorf("read policy: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return Policy{}, fmt.Errorf("read policy %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o022 != 0 || st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return Policy{}, fmt.Errorf("read policy %s: %w: users other than root may write it: chown root and chmod 644 it",
			path, launcher.ErrInvalid)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Policy{}, fmt.Errorf("read policy %s: %w", path, err)
	}
	p, err := parse(text)
	if err != nil {
		return Policy{}, fmt.Errorf("read policy %s: %w", path, err)
	}
	p.path = path
	return p, nil
}

// NeedsGroups reports whether an answer may depend on a user's groups.
func (p Policy) NeedsGroups() bool {
	return slices.ContainsFunc([]*who{p.launch, p.containers, p.elevate},
		func(w *who) bool { return w != nil && len(w.groups) > 0 })
}

// Launch refuses a user, by login name, whose ranks may not run here; groups are the names
// of the user's groups. root is a user like any other.
func (p Policy) Launch(host, user string, groups []string) error {
	w := p.launch
	if w == nil || w.has(user, groups) {
		return nil
	}
	return fmt.Errorf("%s may not launch on %s: rule launch, line %d of %s there, allows %s: choose other "+
		"machines, or ask its administrator", user, host, w.line, p.path, w)
}

func (w *who) has(user string, groups []string) bool {
	return slices.Contains(w.users, user) ||
		slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(w.groups, g) })
}

func (w *who) String() string {
	var parts []string
	if len(w.users) > 0 {
		parts = append(parts, "users "+strings.Join(w.users, ", "))
	}
	if len(w.groups) > 0 {
		parts = append(parts, "groups "+strings.Join(w.groups, ", "))
	}
	if len(parts) == 0 {
		return "nobody"
	}
	return strings.Join(parts, "; ")
}

// at makes an error with its line.
func at(n *yaml.Node, format string, args ...any) error {
	return fmt.Errorf("line %d: %w: "+format, append([]any{n.Line, launcher.ErrInvalid}, args...)...)
}

func parse(text []byte) (Policy, error) {
	if len(text) > maxFile {
		return Policy{}, fmt.Errorf("%w: it has more than %d bytes", launcher.ErrInvalid, maxFile)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil { // its text names the line
		return Policy{}, fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	}
	if doc.Kind == 0 { // empty, or comments alone
		return Policy{}, nil
	}
	var p Policy
	err := fields(doc.Content[0], func(key, value *yaml.Node) error {
		switch key.Value {
		case "launch":
			p.launch = &who{line: key.Line}
			return p.launch.read(key.Value, value)
		case "containers":
			p.containers = &who{line: key.Line}
			return p.containers.read(key.Value, value)
		case "elevate":
			p.elevate = &who{line: key.Line}
			return p.elevate.read(key.Value, value)
		case "model_cache":
			dir, err := folder(value)
			p.modelCache = &list{key.Line, []string{dir}}
			return err
		case "model_readers":
			p.modelReaders = &who{line: key.Line}
			return p.modelReaders.read(key.Value, value)
		case "images":
			of, err := images(value)
			p.images = &list{key.Line, of}
			return err
		case "mounts":
			of, err := folders(value)
			p.mounts = &list{key.Line, of}
			return err
		}
		return at(key, "unknown rule %q: want launch, containers, images, mounts, elevate, model_cache or "+
			"model_readers", key.Value)
	})
	return p, err
}

func (w *who) read(rule string, value *yaml.Node) error {
	return fields(value, func(key, value *yaml.Node) (err error) {
		switch key.Value {
		case "users":
			w.users, err = names(value)
		case "groups":
			w.groups, err = names(value)
		default:
			err = at(key, "%s has no %q: want users or groups", rule, key.Value)
		}
		return err
	})
}

// fields goes through a mapping, in which each key may occur once.
func fields(n *yaml.Node, fn func(key, value *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return at(n, "want names and values, such as `users: [alice]`")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if seen[key.Value] {
			return at(key, "%s is there twice: merge the two", key.Value)
		}
		seen[key.Value] = true
		if err := fn(key, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// names reads a list of words; anchors and aliases are refused.
func names(n *yaml.Node) ([]string, error) {
	if n.Kind != yaml.SequenceNode {
		return nil, at(n, "want a list, such as [alice, bob]")
	}
	out := []string{}
	for _, e := range n.Content {
		if e.Kind != yaml.ScalarNode || e.Tag != "!!str" || e.Value == "" {
			return nil, at(e, "%q: want a name; put one that looks like a number in quotes", e.Value)
		}
		out = append(out, e.Value)
	}
	return out, nil
}
