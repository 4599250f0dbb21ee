package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
)

// removeTree removes what ranks may have written into. os.RemoveAll holds a descriptor for
// each level of folders, and ranks can nest more than the agent has descriptors, which raft
// needs too; rm(1) holds few, whatever the depth.
func removeTree(path string) error {
	entries, _ := os.ReadDir(path)
	if !slices.ContainsFunc(entries, fs.DirEntry.IsDir) {
		return os.RemoveAll(path)
	}
	out, err := exec.Command("rm", "-rf", "--", path).CombinedOutput()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return os.RemoveAll(path)
	case err != nil:
		return fmt.Errorf("remove %s: %w: %s", path, err, bytes.TrimSpace(out[:min(len(out), 200)]))
	}
	return nil
}
