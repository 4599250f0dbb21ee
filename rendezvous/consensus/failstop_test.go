package consensus

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// Who has no room is told what helps, however bbolt has put it.
func TestNoRoomIsSaid(t *testing.T) {
	for err, full := range map[error]bool{
		fmt.Errorf("write: %w", syscall.ENOSPC):                                         true,
		fmt.Errorf("write: %w", syscall.EDQUOT):                                         true,
		errors.New("file resize error: truncate /x/raft.db: " + syscall.ENOSPC.Error()): true,
		fmt.Errorf("write: %w", syscall.EIO):                                            false,
	} {
		text := (&DiskError{What: "write raft log", Dir: "/x", Err: err}).Error()
		if strings.Contains(text, "free some space there") != full {
			t.Error(text)
		}
	}
}
