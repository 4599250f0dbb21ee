package launcher

import (
	"fmt"
	"time"
)

// PartitionPolicy says what happens to ranks whose node gets no answer from a leader.
type PartitionPolicy string

const (
	// ContinueOnPartition lets them run; also what "" means. No other generation begins
	// before they are proven gone.
	ContinueOnPartition PartitionPolicy = "continue"
	// EndOnPartition gives them a lease: see Spec.Lease.
	EndOnPartition PartitionPolicy = "end"
)

// Uptime is a moment by one machine's CLOCK_BOOTTIME: the time since its boot, including
// sleep. Values of two machines, or of two boots, cannot be compared. 0 is none.
type Uptime time.Duration

// MinLease is the shortest lease: a change of leaders takes up to 4 s.
const MinLease = 5 * time.Second

// Lease is how long after a leader's last answer the ranks may run; 0: for ever.
func (s Spec) Lease() time.Duration {
	if s.OnPartition != EndOnPartition {
		return 0
	}
	return s.WithDefaults().NodeTimeout
}

// LeaseOver is how long after that answer no process of the job is left on a node that got
// no later one: the lease, the grace, and a margin. rendezvous/DESIGN.md says what it
// consists of, and what it does not prove.
func (s Spec) LeaseOver() time.Duration {
	const margin = 5 * time.Second
	d := s.Lease() + s.WithDefaults().Grace
	return d + margin + d/1000
}

// validateLease refuses a lease that would only end ranks, if no other attempt could
// replace them.
func (s Spec) validateLease() error {
	switch {
	case s.OnPartition != "" && s.OnPartition != ContinueOnPartition && s.OnPartition != EndOnPartition:
		return fmt.Errorf("--on-partition %q: %w: want %s or %s", s.OnPartition, ErrInvalid, ContinueOnPartition,
			EndOnPartition)
	case s.OnPartition != EndOnPartition:
		return nil
	case s.MaxRestarts == 0:
		return fmt.Errorf("--on-partition end: %w: it makes room for another attempt: add --max-restarts", ErrInvalid)
	case s.Spare == 0 && (s.MinNodes == 0 || s.MinNodes == s.Nodes):
		return fmt.Errorf("--on-partition end: %w: without the machine that is cut off there are too few for another "+
			"attempt: add --spare, or give --nodes MIN:MAX", ErrInvalid)
	case s.NodeTimeout == Never:
		return fmt.Errorf("--on-partition end: %w: ranks are ended after --node-timeout: give one of %s or more",
			ErrInvalid, MinLease)
	case s.NodeTimeout != 0 && s.NodeTimeout < MinLease:
		return fmt.Errorf("--node-timeout %s: %w: with --on-partition end want %s or more, as a change of leaders "+
			"takes some seconds", s.NodeTimeout, ErrInvalid, MinLease)
	}
	return nil
}
