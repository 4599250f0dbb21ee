package server

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A process of a uid that the list names may connect, whatever groups it has;
// another one may not.
func TestSocketIsOpenToMembersByUid(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("needs root, to be other users: run it by scripts/test")
	}
	dir, err := os.MkdirTemp("/dev/shm", "sparkrun-socket-") // a tmpfs, as /run is
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "agent.sock")
	l, err := listenLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	connects := func(uid uint32) bool {
		c := exec.Command("/usr/bin/python3", "-c", "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])", path)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 54399}}
		return c.Run() == nil
	}
	if connects(54321) {
		t.Fatal("the socket is open to anybody")
	}
	if err := unix.Setxattr(path, "system.posix_acl_access", socketACL([]uint32{54321, 54323}), 0); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]bool{54321: true, 54322: false, 54323: true} {
		if connects(uid) != want {
			t.Errorf("uid %d connects: %v, want %v", uid, !want, want)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
}

func TestMembersOf(t *testing.T) {
	bin := t.TempDir()
	// getent is what knows LDAP: here a fake one, with a member who is no user any more.
	fake := `#!/bin/sh
case "$1 $2" in
"group sparkrun") echo 'sparkrun:x:995:zoe,gone,adam' ;;
"passwd zoe") echo 'zoe:x:1002:1002::/home/zoe:/bin/sh' ;;
"passwd adam") echo 'adam:x:1001:1001:,,:/home/adam:/bin/sh' ;;
"group empty") echo 'empty:x:996:' ;;
*) exit 2 ;;
esac`
	if err := os.WriteFile(filepath.Join(bin, "getent"), []byte(fake), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	for group, want := range map[string][]uint32{"sparkrun": {1001, 1002}, "empty": nil, "none": nil} {
		if got, err := membersOf(t.Context(), group); err != nil || !slices.Equal(got, want) {
			t.Errorf("group %s: %v, %v, want %v", group, got, err, want)
		}
	}
}
