package launcher

import "fmt"

// Memory is what a job plans to take of the memory of each of its nodes. On a machine whose GPU shares the
// processor's memory this is all that it takes, on both sides together. Jobs that say it share a node's GPUs, as
// long as all of them fit; one that does not say it has the GPUs to itself.
type Memory struct {
	// Bytes is what it takes once it is ready.
	Bytes int64 `json:"bytes"`
	// Peak is the most that it takes while it starts, in bytes; 0: no more than then.
	Peak int64 `json:"peak,omitempty"`
}

// Most is the most that it ever takes, in bytes.
func (m Memory) Most() int64 { return max(m.Bytes, m.Peak) }

// String is as --memory takes it.
func (m Memory) String() string {
	if m.Peak > m.Bytes {
		return Size(m.Bytes) + ", " + Size(m.Peak) + " while it starts"
	}
	return Size(m.Bytes)
}

// maxMemory bounds --memory, in bytes: more than any machine has, and far from an overflow of sums.
const maxMemory = 1 << 50

func (s Spec) validateMemory() error {
	m := s.Memory
	switch {
	case m == nil:
		return nil
	case m.Bytes <= 0 || m.Most() > maxMemory:
		return fmt.Errorf("--memory %s: %w: want a size such as 40G", m, ErrInvalid)
	case m.Peak != 0 && m.Peak < m.Bytes:
		return fmt.Errorf("--memory %s:%s: %w: want the larger size last: SIZE:PEAK", Size(m.Bytes), Size(m.Peak), ErrInvalid)
	case s.Share:
		return fmt.Errorf("--share: %w: --memory shares the GPUs with those that say theirs: leave --share out", ErrInvalid)
	}
	return nil
}

// TakenBy is the most memory that jobs take together, in bytes, if they start one after the other: all of them are
// ready but for the one that takes most beyond that while it starts.
func TakenBy(jobs []Memory) (bytes int64) {
	var beyond int64
	for _, m := range jobs {
		bytes += m.Bytes
		beyond = max(beyond, m.Most()-m.Bytes)
	}
	return bytes + beyond
}
