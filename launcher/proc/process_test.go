package proc

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A SIGSTOP that a busy machine has not carried out yet counts as carried out.
func TestStopPending(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tsh\nState:\tR (running)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000040000\nSigBlk:\t0000000000000000\n": true,
		"Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000040200\n":                                                 true,
		"Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000020000\n":                                                 false, // SIGCONT
		"Name:\tsh\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\nSigBlk:\t0000000000040000\n":                      false,
		"": false,
	} {
		if got := stopPending(status); got != want {
			t.Errorf("%q: %v", status, got)
		}
	}
}

func TestListening(t *testing.T) {
	text := `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:4E20 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:4E21 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
`
	for port, want := range map[int]bool{20000: true, 20001: false, 8080: false} {
		if got := len(Listening(text, port)) > 0; got != want {
			t.Errorf("%d: %t", port, got)
		}
	}
}

func TestTreeOfFiles(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"self/cgroup":                           "5:cpu,freezer:/a/b:c\n1:name=systemd:/user\n0::/sparkrun/x\n",
		"7/task/7/children":                     "8 ",
		"7/task/9/children":                     "",
		"10/task/10/children":                   "11 12 ",
		"driver/nvidia/gpus/0000:01:00.0/about": "",
		"driver/nvidia/gpus/0000:02:00.0/about": "",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	fs := FS(root)
	for controller, want := range map[string]string{"": "/sparkrun/x", "freezer": "/a/b:c", "cpu": "/a/b:c", "memory": ""} {
		if got, err := fs.Cgroup(controller); err != nil || got != want {
			t.Errorf("the group of %q: %q, %v, want %q", controller, got, err, want)
		}
	}
	for pid, want := range map[int]int{7: 8, 10: 0, 13: 0} {
		if got := fs.OnlyChild(pid); got != want {
			t.Errorf("the child of %d: %d, want %d", pid, got, want)
		}
	}
	if got := fs.GPUs(); got != 2 {
		t.Errorf("%d GPUs", got)
	}
	if _, err := FS(filepath.Join(root, "none")).Cgroup(""); err == nil {
		t.Error("a group without a file")
	}
}

// This test's program is mapped once, on the file system that holds it; its own files and sockets are counted.
func TestMappedAndMount(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(slices.DeleteFunc(Here.Mapped(os.Getpid()), func(f string) bool { return f != program })); n != 1 {
		t.Errorf("it is mapped %d times: %q", n, Here.Mapped(os.Getpid()))
	}
	dir := t.TempDir()
	fs := FS(dir)
	if err := os.Mkdir(filepath.Join(dir, "7"), 0o700); err != nil {
		t.Fatal(err)
	}
	const mounts = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 21 0:40 / /data rw shared:1 - nfs4 nas:/data rw\n" +
		"31 30 0:41 / /data/x rw - fuse.sshfs nas: rw\n"
	if err := os.WriteFile(filepath.Join(dir, "7/mountinfo"), []byte(mounts), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"/etc/x": "/ ext4", "/data/m.bin": "/data nfs4", "/data/x/m": "/data/x fuse.sshfs",
		"/data/xy": "/data nfs4", "/database": "/ ext4"} {
		if at, kind := fs.Mount(7, file); at+" "+kind != want {
			t.Errorf("%s: %s %s, want %s", file, at, kind, want)
		}
	}
	if open, sockets, limit := Here.OpenFiles(os.Getpid()); open < 3 || sockets > open || limit < open {
		t.Errorf("%d files, %d sockets, at most %d", open, sockets, limit)
	}
}
