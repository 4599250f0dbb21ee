package login

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
)

var errNoUser = errors.New("not known on this node: create the user here")

func fromFiles(name string) (User, error) {
	text, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return User{}, errNoUser
	}
	for line := range strings.Lines(string(text)) {
		if first, _, _ := strings.Cut(line, ":"); first != name {
			continue
		}
		u, err := parsePasswd(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return User{}, err
		}
		// Built without cgo, GroupIds reads /etc/group.
		ids, err := (&user.User{Username: name, Gid: strconv.Itoa(int(u.GID))}).GroupIds()
		if err != nil {
			return User{}, fmt.Errorf("groups: %w", err)
		}
		u.Groups, err = parseGroups(ids)
		return u, err
	}
	return User{}, errNoUser
}

func fromLibrary(ctx context.Context, name string) (User, error) {
	line, err := getent(ctx, "passwd", name)
	if err != nil {
		return User{}, err
	}
	u, err := parsePasswd(line)
	if err != nil {
		return User{}, err
	}
	out, err := exec.CommandContext(ctx, "id", "-G", "--", name).Output()
	if err != nil {
		return User{}, fmt.Errorf("groups: %w", err)
	}
	u.Groups, err = parseGroups(strings.Fields(string(out)))
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

// getent queries the C library's databases. Exit code 2 means "no such key" (getent(1)).
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
func parsePasswd(line string) (User, error) {
	f := strings.Split(line, ":")
	if len(f) != 7 {
		return User{}, fmt.Errorf("passwd line has %d fields, want 7", len(f))
	}
	uid, err1 := strconv.ParseUint(f[2], 10, 32)
	gid, err2 := strconv.ParseUint(f[3], 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return User{}, fmt.Errorf("passwd line: %w", err)
	}
	u := User{Name: f[0], Home: f[5], Shell: f[6], UID: uint32(uid), GID: uint32(gid)}
	if u.Shell == "" {
		u.Shell = "/bin/sh" // passwd(5)
	}
	return u, nil
}
