package launcher

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// MaxStagedBytes bounds the files of one job: programs and their configuration. Models
// belong on shared storage.
const MaxStagedBytes = 4 << 30

// StageEnv tells ranks the folder of the job's files.
const StageEnv = "SPARKRUN_STAGE"

// Staged are the files that a job brings to each of its nodes before a rank starts there.
type Staged struct {
	Sum   string `json:"sum"` // of the manifest: SHA-256 in hex
	Bytes int64  `json:"bytes"`
	From  NodeID `json:"from"` // the node that got them from the user
	// Workdir makes their folder the ranks' working directory.
	Workdir bool `json:"workdir,omitempty"`
}

func (s *Staged) validate() error {
	if s == nil {
		return nil
	}
	b, err := hex.DecodeString(s.Sum)
	if err != nil || len(b) != 32 || s.Bytes < 0 || s.Bytes > MaxStagedBytes ||
		strings.ContainsAny(string(s.From), "/\x00") {
		return fmt.Errorf("--stage: %w: %d bytes with the sum %q, handed over to node %q", ErrInvalid, s.Bytes, s.Sum, s.From)
	}
	return nil
}
