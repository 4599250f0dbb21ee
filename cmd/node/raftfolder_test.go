package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/scripts/apart"
)

// The raft folder is a mount point. A restore that dies at any step, also amid the
// copying that stands in for a rename, is finished by the next start; a record
// that is older than it was is put aside; and a node that leaves leaves nothing.
func TestRaftFolderIsAMountPoint(t *testing.T) {
	t.Parallel()
	if !apart.Inside() {
		apart.Run(t, "TestRaftFolderIsAMountPoint", unix.CLONE_NEWNS)
		return
	}
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	t.Run("damaged", func(t *testing.T) {
		t.Parallel()
		followsTheWayOut(t, onMount(t))
	})
	for name, crash := range map[string]func(t *testing.T, p Paths){
		"before anything": func(*testing.T, Paths) {},
		"a part of the old one is copied": func(t *testing.T, p Paths) {
			copyAll(t, filepath.Join(p.State, "raft.old"), filepath.Join(p.State, "raft"))
			must(t, os.Remove(filepath.Join(p.State, "raft.old", "raft.db")))
		},
		"a part of the old one is removed": func(t *testing.T, p Paths) {
			copyAll(t, filepath.Join(p.State, "raft.old"), filepath.Join(p.State, "raft"))
			must(t, os.WriteFile(filepath.Join(p.State, "raft", "moving"), nil, 0o600))
			must(t, os.Remove(filepath.Join(p.State, "raft", "raft.db")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			restoresAfter(t, onMount(t), crash)
		})
	}
	t.Run("put back, and left", func(t *testing.T) {
		t.Parallel()
		h := onMount(t)
		h.crash()
		must(t, os.WriteFile(filepath.Join(h.state("raft"), "life"), []byte("0\n"), 0o600))
		h.start()
		if n := h.now(); !n.failover.Blank() || n.failover.Raft().Votes() {
			t.Error("it votes with a folder that has forgotten")
		}
		if _, err := os.Stat(filepath.Join(h.state("raft.old"), "raft.db")); err != nil {
			t.Errorf("the old record: %v", err)
		}
		h.crash()
		must(t, h.cfg.Paths.Folder().Remove(h.cfg.Paths.Run))
		if names, err := os.ReadDir(h.state("raft")); err != nil || len(names) > 0 {
			t.Errorf("%v is left (%v)", names, err)
		}
	})
}

// A new record that was copied in part, its mark with it, is not taken for whole.
func TestHalfCopiedRecordIsNone(t *testing.T) {
	t.Parallel()
	restoresAfter(t, newCluster(t, 1).hosts[0], func(t *testing.T, p Paths) {
		must(t, os.Rename(filepath.Join(p.State, "raft"), filepath.Join(p.State, "raft.old")))
		must(t, os.Mkdir(filepath.Join(p.State, "raft"), 0o700))
		must(t, os.WriteFile(filepath.Join(p.State, "raft", "moving"), nil, 0o600))
		b, err := os.ReadFile(filepath.Join(p.State, "failover.json"))
		must(t, err)
		var k kept
		must(t, json.Unmarshal(b, &k))
		by := fmt.Sprintf("%d.%s\n", k.Epoch, k.EpochBy)
		must(t, os.WriteFile(filepath.Join(p.State, "raft", "restored"), []byte(by), 0o600))
	})
}

// onMount is a cluster of one whose raft folder is a file system of its own.
func onMount(t *testing.T) *host {
	t.Helper()
	c := newCluster(t, 1)
	h := c.hosts[0]
	h.crash()
	dir, was := h.state("raft"), filepath.Join(t.TempDir(), "was")
	must(t, os.Rename(dir, was))
	must(t, os.Mkdir(dir, 0o700))
	must(t, unix.Mount("none", dir, "tmpfs", 0, "mode=755"))
	t.Cleanup(func() {
		c.end()
		must(t, unix.Unmount(dir, unix.MNT_DETACH))
	})
	copyAll(t, dir, was)
	if err := os.Rename(dir, was+".2"); !errors.Is(err, syscall.EBUSY) {
		t.Fatalf("it can be renamed: %v", err)
	}
	h.start()
	h.wait(1)
	return h
}
