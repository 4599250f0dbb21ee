package app

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/remote"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A context is a cluster that a user has logged in to from a machine outside it. Each
// context has a folder with its key; the file "current" names the one that commands use.

// LocalContext means no context: this machine's agent.
const LocalContext = "local"

// ContextEnv names the context where --context does not.
const ContextEnv = "SPARKRUN_CONTEXT"

// Contexts is the folder of all contexts.
type Contexts struct{ Dir string }

// Contexts are in the user's configuration folder.
func (a *App) Contexts() (Contexts, error) {
	dir, err := a.UserFolder("XDG_CONFIG_HOME", ".config")
	if err != nil {
		return Contexts{}, fmt.Errorf("find the folder of contexts: %w", err)
	}
	return Contexts{dir}, nil
}

// UserFolder is sparkrun's folder in one of the user's folders: variable names that one;
// where it is not set it is fallback below HOME (XDG Base Directory Specification).
func (a *App) UserFolder(variable, fallback string) (string, error) {
	if dir, _ := a.Getenv(variable); filepath.IsAbs(dir) {
		return filepath.Join(dir, "sparkrun"), nil
	}
	home, _ := a.Getenv("HOME")
	if home == "" {
		return "", fmt.Errorf("HOME is not set: set it, or %s", variable)
	}
	return filepath.Join(home, fallback, "sparkrun"), nil
}

// Folder has a context's key and addresses.
func (c Contexts) Folder(name string) string { return filepath.Join(c.Dir, "contexts", name) }

// MayWrite refuses to write root's files into another user's home, as `sudo -E` would:
// that user could then neither use them nor make new ones.
func (c Contexts) MayWrite(uid int) error {
	for dir := c.Dir; uid == 0; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) && dir != filepath.Dir(dir) {
			continue
		}
		if err != nil {
			return fmt.Errorf("look at the folder of contexts: %w", err)
		}
		if of, ok := fi.Sys().(*syscall.Stat_t); ok && of.Uid != 0 {
			return Usagef("%s is not root's: a key of root's there would be of no use to its owner. Run it as "+
				"yourself, without sudo", dir)
		}
		return nil
	}
	return nil
}

// ContextName matches a valid name of a context.
var ContextName = plain.Pattern(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// CheckContextName refuses an invalid name.
func CheckContextName(name string) error {
	if !ContextName().MatchString(name) || name == LocalContext {
		return Usagef("context %q: want a name of letters, digits and . _ -, other than %s", name, LocalContext)
	}
	return nil
}

// List names them, sorted.
func (c Contexts) List() ([]string, error) {
	found, err := os.ReadDir(filepath.Join(c.Dir, "contexts"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list contexts: %w", err)
	}
	var names []string
	for _, f := range found {
		if f.IsDir() && ContextName().MatchString(f.Name()) {
			names = append(names, f.Name())
		}
	}
	return names, nil
}

// Has tells whether a context has that name; if not, the error lists those that there
// are.
func (c Contexts) Has(name string) error {
	names, err := c.List()
	if err != nil || slices.Contains(names, name) {
		return err
	}
	known := "there is none: `sparkrun login HOST` makes one"
	if len(names) > 0 {
		known = "there are " + strings.Join(names, ", ") + ", and " + LocalContext
	}
	return fmt.Errorf("context %q: %w: %s", name, ErrNoContext, known)
}

// ErrNoContext says that no context has the name.
var ErrNoContext = errors.New("no such context")

// Current is the context that `context use` has chosen; empty: none.
func (c Contexts) Current() (string, error) {
	text, err := os.ReadFile(filepath.Join(c.Dir, "current"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the current context: %w", err)
	}
	name := strings.TrimSpace(string(text))
	if name == LocalContext {
		return "", nil
	}
	return name, nil
}

// Use makes a context the current one; LocalContext means this machine's agent.
func (c Contexts) Use(name string) error {
	err := os.MkdirAll(c.Dir, 0o700)
	if err == nil {
		err = durable.Write(filepath.Join(c.Dir, "current"), []byte(name+"\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("use context %s: %w", name, err)
	}
	return nil
}

// Forget removes a context's files; if it was the current one, there is none afterwards.
func (c Contexts) Forget(name string) error {
	if err := os.RemoveAll(c.Folder(name)); err != nil {
		return fmt.Errorf("remove context %s: %w", name, err)
	}
	if now, err := c.Current(); err != nil || now != name {
		return err
	}
	if err := os.Remove(filepath.Join(c.Dir, "current")); err != nil {
		return fmt.Errorf("remove context %s: %w", name, err)
	}
	return nil
}

// Chosen is the context of this command, by --context, else SPARKRUN_CONTEXT, else the
// current one, and its folder; both are empty where the command asks this machine's
// agent.
func (a *App) Chosen() (name, dir string, err error) {
	fromEnv, _ := a.Getenv(ContextEnv)
	name = cmp.Or(a.Context, fromEnv)
	if name == LocalContext {
		return "", "", nil
	}
	all, err := a.Contexts()
	if err != nil {
		if name == "" {
			err = nil // without a home there is no context
		}
		return "", "", err
	}
	if name == "" {
		if name, err = all.Current(); err != nil || name == "" {
			return "", "", err
		}
	}
	return name, all.Folder(name), all.Has(name)
}

// Away is what is known of the context's cluster; nil where the command asks this
// machine's agent.
func (a *App) Away() (*remote.State, error) {
	_, dir, err := a.Chosen()
	if err != nil || dir == "" {
		return nil, err
	}
	st, err := remote.Read(dir)
	return &st, err
}

// DialAgent gives a client of this machine's agent. It connects at the first call.
func DialAgent() *wire.Client { return node.Dial(node.DefaultPaths().Socket) }

// DialChosen gives a client of the context's cluster, or of this machine's agent. Only
// the dialler differs.
func (a *App) DialChosen() *wire.Client {
	name, dir, err := a.Chosen()
	if err == nil && dir == "" {
		return DialAgent()
	}
	if err == nil {
		var r *remote.Cluster
		if r, err = remote.Open(dir, nil); err == nil {
			return r.Client
		}
		err = fmt.Errorf("context %s: %w (mend it, or `sparkrun logout %s` and log in again)", name, err, name)
	}
	return remote.Unusable(err)
}

// atHome marks commands that are about this machine, whatever the context.
const atHome = "sparkrun.at-home"

// AboutThisMachine marks commands that take no context.
func AboutThisMachine(cmds ...*cobra.Command) {
	for _, c := range cmds {
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[atHome] = "yes"
	}
}

// CheckContext refuses --context where it means nothing, and a context that does not
// exist, before anything is done.
func (a *App) CheckContext(cmd *cobra.Command, _ []string) error {
	for c := cmd; c != nil; c = c.Parent() {
		if c.Annotations[atHome] == "" {
			continue
		}
		if a.Context != "" && a.Context != LocalContext {
			return Usagef("--context %s: %s is about this machine, or done on a machine of the cluster", a.Context,
				cmd.CommandPath())
		}
		return nil
	}
	if f := cmd.Flags().Lookup("standalone"); f != nil && f.Changed {
		if a.Context != "" {
			return Usagef("--context and --standalone: give one of them")
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
	_, _, err := a.Chosen()
	return err
}

// needsNone are the commands that work even if the chosen context no longer exists: those
// that repair it, and those that seldom call a cluster.
var needsNone = []string{"context", "logout", "version", "completion", "help", "sparkrun"}

// CompleteContext completes a context's name.
func (a *App) CompleteContext(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	all, err := a.Contexts()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names, _ := all.List()
	return append(names, LocalContext), cobra.ShellCompDirectiveNoFileComp
}

// CompleteLogin completes a context that one can log out of, which excludes LocalContext.
func (a *App) CompleteLogin(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	names, how := a.CompleteContext(cmd, args, typed)
	return slices.DeleteFunc(names, func(name string) bool { return name == LocalContext }), how
}
