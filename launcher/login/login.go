// Package login decides which user ranks run as on this node: the user behind a name, with
// which groups, and what that user may read, enter and execute.
//
// It must not decide who may run what: the policy does. It starts no process as another
// user: the shim does.
package login

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// User is the user that ranks run as on this node.
type User struct {
	Name, Home, Shell string
	UID, GID          uint32
	Groups            []uint32
	Switches          bool // the ranks' credentials differ from this process's
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Settings are the variables that a login sets.
func (u User) Settings() []launcher.Setting {
	source := "login of " + u.Name
	return []launcher.Setting{
		{Name: "HOME", Value: u.Home, Source: source},
		{Name: "USER", Value: u.Name, Source: source},
		{Name: "LOGNAME", Value: u.Name, Source: source},
		{Name: "SHELL", Value: u.Shell, Source: source},
		{Name: "PATH", Value: defaultPath, Source: "default"},
	}
}

// Find looks a user up by name; its error names the user. The files come first, as in
// nsswitch.conf, because a launch waits for the answer; then the C library (getent),
// because LDAP and SSSD users are in no file.
func Find(ctx context.Context, name string) (User, error) {
	u, err := fromFiles(name)
	// getent takes a number as a uid: "0" would be root under another name.
	if errors.Is(err, errNoUser) && strings.Trim(name, "0123456789") != "" && !strings.ContainsAny(name, ":\n\x00") {
		u, err = fromLibrary(ctx, name)
	}
	if err != nil {
		return User{}, fmt.Errorf("user %q: %w", name, err)
	}
	return u, nil
}

// Lookup finds the user that ranks are to run as. An empty name is this process's user.
func Lookup(ctx context.Context, name string) (User, error) {
	if name == "" {
		return Self(), nil
	}
	u, err := Find(ctx, name)
	if err != nil {
		return User{}, err
	}
	u.Switches = u.UID != uint32(os.Geteuid())
	if u.Switches && os.Geteuid() != 0 {
		return User{}, fmt.Errorf("user %q: the agent runs as uid %d and cannot become another: run it as root", name,
			os.Geteuid())
	}
	return u, nil
}

// Self is the user that this process runs as.
func Self() User {
	l := User{Name: os.Getenv("USER"), Home: os.Getenv("HOME"), Shell: os.Getenv("SHELL"), UID: uint32(os.Geteuid()),
		GID: uint32(os.Getegid())}
	if me, err := user.Current(); err == nil {
		l.Name, l.Home = me.Username, me.HomeDir
	}
	if l.Shell == "" {
		l.Shell = "/bin/sh"
	}
	return l
}
