// Package login decides whom ranks run as on this node: which user a name stands for here, with which groups, and what
// that user may read, enter and execute.
//
// It must not decide who may run what: that is the policy's. It starts no process as somebody else: that is the
// shim's.
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

// User is whom ranks run as on this node.
type User struct {
	Name, Home, Shell string
	UID, GID          uint32
	Groups            []uint32
	Switches          bool // the ranks' credentials differ from ours
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Settings are the variables a login gives.
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

// Find looks a user up by name; its error names the user. The files are asked first, as nsswitch.conf does,
// because a launch waits for the answer; then the C library (getent), because LDAP
// and SSSD users are in no file.
func Find(ctx context.Context, name string) (User, error) {
	u, err := fromFiles(name)
	// getent takes a number for a uid: "0" would be root under another name.
	if errors.Is(err, errNoUser) && strings.Trim(name, "0123456789") != "" && !strings.ContainsAny(name, ":\n\x00") {
		u, err = fromLibrary(ctx, name)
	}
	if err != nil {
		return User{}, fmt.Errorf("user %q: %w", name, err)
	}
	return u, nil
}

// Lookup finds whom ranks are to run as. An empty name is the user we are.
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

// Self is the login this process runs as.
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
