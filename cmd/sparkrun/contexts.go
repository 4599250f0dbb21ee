package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/launcher/durable"
)

// A context is a cluster that a user has logged in to from a machine that is none
// of its members. Each has a folder with its key; the file "current" names the one
// that commands use.

// localContext means no context: this machine's agent.
const localContext = "local"

const contextEnv = "SPARKRUN_CONTEXT"

// contexts is the folder of them all.
type contexts struct{ dir string }

// contexts are in the user's configuration folder.
func (a *app) contexts() (contexts, error) {
	dir, err := a.userFolder("XDG_CONFIG_HOME", ".config")
	if err != nil {
		return contexts{}, fmt.Errorf("find the folder of contexts: %w", err)
	}
	return contexts{dir}, nil
}

// userFolder is ours among those of the user: variable names their parent, below HOME it is
// at fallback (XDG Base Directory Specification).
func (a *app) userFolder(variable, fallback string) (string, error) {
	if dir, _ := a.getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sparkrun"), nil
	}
	home, _ := a.getenv("HOME")
	if home == "" {
		return "", fmt.Errorf("HOME is not set: set it, or %s", variable)
	}
	return filepath.Join(home, fallback, "sparkrun"), nil
}

func (c contexts) folder(name string) string { return filepath.Join(c.dir, "contexts", name) }

// mayWrite refuses root's files in another user's home, as `sudo -E` would leave them: that user
// could not use them, nor make others.
func (c contexts) mayWrite(uid int) error {
	for dir := c.dir; uid == 0; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at the folder of contexts: %w", err)
		}
		if of, ok := fi.Sys().(*syscall.Stat_t); ok && of.Uid != 0 {
			return usagef("%s is not root's: a key of root's there would be of no use to its owner. Run it as yourself, without sudo", dir)
		}
		return nil
	}
	return nil
}

var contextName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

func checkContextName(name string) error {
	if !contextName.MatchString(name) || name == localContext {
		return usagef("context %q: want a name of letters, digits and . _ -, other than %s", name, localContext)
	}
	return nil
}

// list names them, sorted.
func (c contexts) list() ([]string, error) {
	found, err := os.ReadDir(filepath.Join(c.dir, "contexts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list contexts: %w", err)
	}
	var names []string
	for _, f := range found {
		if f.IsDir() && contextName.MatchString(f.Name()) {
			names = append(names, f.Name())
		}
	}
	return names, nil
}

// has tells whether there is one of the name; if not, the error says which there are.
func (c contexts) has(name string) error {
	names, err := c.list()
	if err != nil || slices.Contains(names, name) {
		return err
	}
	known := "there is none: `sparkrun login HOST` makes one"
	if len(names) > 0 {
		known = "there are " + strings.Join(names, ", ") + ", and " + localContext
	}
	return fmt.Errorf("context %q: %w: %s", name, errNoContext, known)
}

var errNoContext = errors.New("no such context")

// current is the one that use has named; empty: none.
func (c contexts) current() (string, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, "current"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the current context: %w", err)
	}
	name := strings.TrimSpace(string(text))
	if name == localContext {
		return "", nil
	}
	return name, nil
}

// use makes one current; localContext means this machine's agent.
func (c contexts) use(name string) error {
	err := os.MkdirAll(c.dir, 0o700)
	if err == nil {
		err = durable.Write(filepath.Join(c.dir, "current"), []byte(name+"\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("use context %s: %w", name, err)
	}
	return nil
}

// forget removes a context's files; who was current is no more.
func (c contexts) forget(name string) error {
	if err := os.RemoveAll(c.folder(name)); err != nil {
		return fmt.Errorf("remove context %s: %w", name, err)
	}
	if now, err := c.current(); err != nil || now != name {
		return err
	}
	if err := os.Remove(filepath.Join(c.dir, "current")); err != nil {
		return fmt.Errorf("remove context %s: %w", name, err)
	}
	return nil
}

// chosen is the context that this command uses, and its folder; empty where it asks
// this machine's agent: --context, else SPARKRUN_CONTEXT, else the current one.
func (a *app) chosen() (name, dir string, err error) {
	fromEnv, _ := a.getenv(contextEnv)
	name = cmp.Or(a.context, fromEnv)
	if name == localContext {
		return "", "", nil
	}
	all, err := a.contexts()
	if err != nil {
		if name == "" {
			err = nil // without a home there is no context
		}
		return "", "", err
	}
	if name == "" {
		if name, err = all.current(); err != nil || name == "" {
			return "", "", err
		}
	}
	return name, all.folder(name), all.has(name)
}

// away is what is known of the cluster where this machine is none of its members;
// nil: the cluster is this machine's.
func (a *app) away() (*node.RemoteState, error) {
	_, dir, err := a.chosen()
	if err != nil || dir == "" {
		return nil, err
	}
	st, err := node.ReadRemote(dir)
	return &st, err
}

// dialChosen prepares calls to the context's cluster, or to this machine's agent.
// The dialler is all that differs.
func (a *app) dialChosen() *backend {
	name, dir, err := a.chosen()
	if err == nil && dir == "" {
		return dialAgent()
	}
	if err == nil {
		var r *node.Remote
		if r, err = node.OpenRemote(dir); err == nil {
			return backendOf(r.Client, calls{r.Client})
		}
		err = fmt.Errorf("context %s: %w (mend it, or `sparkrun logout %s` and log in again)", name, err, name)
	}
	c := node.Unusable(err)
	return backendOf(c, calls{c})
}

// atHome marks commands that are about this machine, whatever the context.
const atHome = "sparkrun.at-home"

func aboutThisMachine(cmds ...*cobra.Command) {
	for _, c := range cmds {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[atHome] = "yes"
	}
}

// checkContext refuses --context where it means nothing, and a context that is not
// there before anything is done.
func (a *app) checkContext(cmd *cobra.Command, _ []string) error {
	for c := cmd; c != nil; c = c.Parent() {
		if c.Annotations[atHome] == "" {
			continue
		}
		if a.context != "" && a.context != localContext {
			return usagef("--context %s: %s is about this machine, or done on a machine of the cluster", a.context, cmd.CommandPath())
		}
		return nil
	}
	if f := cmd.Flags().Lookup("standalone"); f != nil && f.Changed {
		if a.context != "" {
			return usagef("--context and --standalone: give one of them")
		}
		return nil
	}
	top := cmd
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	if slices.Contains(needsNone, top.Name()) {
		return nil
	}
	_, _, err := a.chosen()
	return err
}

// needsNone are the commands that a context which is not there any more does not
// hinder: those that mend it, and those that seldom ask anybody.
var needsNone = []string{"context", "logout", "version", "completion", "help", "sparkrun"}

// completeContext completes a context's name.
func (a *app) completeContext(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := a.contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := all.list()
	return append(names, localContext), cobra.ShellCompDirectiveNoFileComp
}

// completeLogin completes one that can be given up: this machine's own agent cannot.
func (a *app) completeLogin(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	names, how := a.completeContext(cmd, args, typed)
	return slices.DeleteFunc(names, func(name string) bool { return name == localContext }), how
}
