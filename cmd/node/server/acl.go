package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// socketGroup is the group whose members may use the local socket.
const socketGroup = "sparkrun"

// directoryTimeout bounds the question who is in the group: a directory server that does
// not answer must not keep the agent from starting.
const directoryTimeout = 5 * time.Second

// grantMembers lets the group's members use the socket by their uid as well. A login
// session that is older than the membership lacks the group; its user would have to log
// in again before the first launch.
func grantMembers(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, directoryTimeout)
	defer cancel()
	uids, err := membersOf(ctx, socketGroup)
	if err != nil || len(uids) == 0 {
		return err
	}
	err = unix.Setxattr(path, "system.posix_acl_access", socketACL(uids), 0)
	if errors.Is(err, unix.ENOTSUP) {
		return nil // on such a file system the group bits have to do
	}
	if err != nil {
		return fmt.Errorf("open %s to the members of group %s: %w", path, socketGroup, err)
	}
	return nil
}

// membersOf are the uids of a group's members. getent knows LDAP and SSSD too.
func membersOf(ctx context.Context, group string) ([]uint32, error) {
	out, err := exec.CommandContext(ctx, "getent", "group", group).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 2 { // there is no such group: root alone
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the members of group %s: %w", group, err)
	}
	fields := strings.Split(strings.TrimSpace(string(out)), ":")
	var uids []uint32
	for _, name := range strings.Split(fields[len(fields)-1], ",") {
		out, err := exec.CommandContext(ctx, "getent", "passwd", name).Output()
		fields := strings.Split(string(out), ":")
		if name == "" || err != nil || len(fields) < 3 {
			continue // the group lists a name that is no user (any more)
		}
		if uid, err := strconv.ParseUint(fields[2], 10, 32); err == nil {
			uids = append(uids, uint32(uid))
		}
	}
	slices.Sort(uids) // the kernel requires this order
	return slices.Compact(uids), nil
}

// socketACL is an access list as the kernel stores it (linux/posix_acl_xattr.h): owner,
// group and these users may read and write, others nothing.
func socketACL(uids []uint32) []byte {
	const (
		version                                     = 2
		userObj, user, groupObj, mask, other        = 0x01, 0x02, 0x04, 0x10, 0x20
		nothing, readWrite                          = 0, 6
		nobody                               uint32 = 0xffffffff
	)
	acl := binary.LittleEndian.AppendUint32(nil, version)
	entry := func(tag, perm uint16, id uint32) {
		acl = binary.LittleEndian.AppendUint16(acl, tag)
		acl = binary.LittleEndian.AppendUint16(acl, perm)
		acl = binary.LittleEndian.AppendUint32(acl, id)
	}
	entry(userObj, readWrite, nobody)
	for _, uid := range uids {
		entry(user, readWrite, uid)
	}
	entry(groupObj, readWrite, nobody)
	entry(mask, readWrite, nobody)
	entry(other, nothing, nobody)
	return acl
}
