package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// login is whom ranks run as on this node.
type login struct {
	name, home, shell string
	uid, gid          uint32
	groups            []uint32
	switches          bool // the ranks' credentials differ from ours
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// settings are the variables a login gives.
func (u login) settings() []launcher.Setting {
	source := "login of " + u.name
	return []launcher.Setting{
		{Name: "HOME", Value: u.home, Source: source},
		{Name: "USER", Value: u.name, Source: source},
		{Name: "LOGNAME", Value: u.name, Source: source},
		{Name: "SHELL", Value: u.shell, Source: source},
		{Name: "PATH", Value: defaultPath, Source: "default"},
	}
}

// Account is what this node knows of a user.
type Account struct {
	UID  uint32
	Home string
}

// FindAccount looks a user up by name, as ranks' users are; its error names the user.
func FindAccount(ctx context.Context, name string) (Account, error) {
	u, err := find(ctx, name)
	return Account{UID: u.uid, Home: u.home}, err
}

// find looks a login up by name. The files are asked first, as nsswitch.conf does,
// because a launch waits for the answer; then the C library (getent), because LDAP
// and SSSD users are in no file.
func find(ctx context.Context, name string) (login, error) {
	u, err := loginFromFiles(name)
	// getent takes a number for a uid: "0" would be root under another name.
	if errors.Is(err, errNoUser) && strings.Trim(name, "0123456789") != "" && !strings.ContainsAny(name, ":\n\x00") {
		u, err = loginFromLibrary(ctx, name)
	}
	if err != nil {
		return login{}, fmt.Errorf("user %q: %w", name, err)
	}
	return u, nil
}

// lookup finds whom ranks are to run as. An empty name is the user we are.
func lookup(ctx context.Context, name string) (login, error) {
	if name == "" {
		return self(), nil
	}
	u, err := find(ctx, name)
	if err != nil {
		return login{}, err
	}
	u.switches = u.uid != uint32(os.Geteuid())
	if u.switches && os.Geteuid() != 0 {
		return login{}, fmt.Errorf("user %q: the agent runs as uid %d and cannot become another: run it as root", name, os.Geteuid())
	}
	return u, nil
}

// do calls f with the login's rights to files, as its ranks will have them. The
// kernel keeps these apart for each thread (credentials(7)), so f runs in one
// of its own, which ends with its goroutine because it is never unlocked.
func (u login) do(f func() error) error {
	if !u.switches {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := u.take()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}

// take gives this thread the login's rights to files. Raw calls: those of
// package syscall change every thread.
func (u login) take() error {
	var groups unsafe.Pointer
	if len(u.groups) > 0 {
		groups = unsafe.Pointer(&u.groups[0])
	}
	if _, _, no := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(u.groups)), uintptr(groups), 0); no != 0 {
		return fmt.Errorf("take the groups of user %s: %w", u.name, no)
	}
	if _, err := unix.SetfsgidRetGid(int(u.gid)); err != nil {
		return fmt.Errorf("take the group of user %s: %w", u.name, err)
	}
	if _, err := unix.SetfsuidRetUid(int(u.uid)); err != nil {
		return fmt.Errorf("take the uid of user %s: %w", u.name, err)
	}
	return nil
}

var errNoUser = errors.New("not known on this node: create the user here")

func loginFromFiles(name string) (login, error) {
	text, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return login{}, errNoUser
	}
	for line := range strings.Lines(string(text)) {
		if first, _, _ := strings.Cut(line, ":"); first != name {
			continue
		}
		u, err := parsePasswd(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return login{}, err
		}
		// Built without cgo, GroupIds reads /etc/group.
		ids, err := (&user.User{Username: name, Gid: strconv.Itoa(int(u.gid))}).GroupIds()
		if err != nil {
			return login{}, fmt.Errorf("groups: %w", err)
		}
		u.groups, err = parseGroups(ids)
		return u, err
	}
	return login{}, errNoUser
}

func loginFromLibrary(ctx context.Context, name string) (login, error) {
	line, err := getent(ctx, "passwd", name)
	if err != nil {
		return login{}, err
	}
	u, err := parsePasswd(line)
	if err != nil {
		return login{}, err
	}
	out, err := exec.CommandContext(ctx, "id", "-G", "--", name).Output()
	if err != nil {
		return login{}, fmt.Errorf("groups: %w", err)
	}
	u.groups, err = parseGroups(strings.Fields(string(out)))
	return u, err
}

func parseGroups(ids []string) ([]uint32, error) {
	var out []uint32
	for _, id := range ids {
		g, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("groups: %w", err)
		}
		out = append(out, uint32(g))
	}
	return out, nil
}

// getent asks the C library's databases. Exit code 2 means "no such key"
// (getent(1)).
func getent(ctx context.Context, database, key string) (string, error) {
	out, err := exec.CommandContext(ctx, "getent", database, "--", key).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 {
		return "", errNoUser
	}
	if err != nil {
		return "", fmt.Errorf("getent %s: %w", database, err)
	}
	return strings.TrimSuffix(string(out), "\n"), nil
}

// parsePasswd reads one line of passwd(5).
func parsePasswd(line string) (login, error) {
	f := strings.Split(line, ":")
	if len(f) != 7 {
		return login{}, fmt.Errorf("passwd line has %d fields, want 7", len(f))
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return login{}, fmt.Errorf("passwd line: %w", err)
	}
	u := login{name: f[0], home: f[5], shell: f[6], uid: uint32(uid), gid: uint32(gid)}
	if u.shell == "" {
		u.shell = "/bin/sh" // passwd(5)
	}
	return u, nil
}

// self is the login this process runs as.
func self() login {
	l := login{name: os.Getenv("USER"), home: os.Getenv("HOME"), shell: os.Getenv("SHELL"), uid: uint32(os.Geteuid()), gid: uint32(os.Getegid())}
	if me, err := user.Current(); err == nil {
		l.name, l.home = me.Username, me.HomeDir
	}
	if l.shell == "" {
		l.shell = "/bin/sh"
	}
	return l
}
