package rendezvous

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// MaxAllocationBytes bounds the netplan allocation: 64 nodes with two ports
// each, the twins included, take about 40 KiB.
const MaxAllocationBytes = 128 << 10

// ErrAllocationTooLarge is met by a netplan allocation of a cluster larger than
// this record is for.
var ErrAllocationTooLarge = errors.New("the netplan allocation is too large to be recorded")

// Allocated says which node has which number, subnets and addresses on the
// fabric, so that the next plan moves nobody, whoever leads then. The record
// keeps it and does not read it: envgen/netplan does, and refuses what it does
// not know.
type Allocated struct {
	Allocation json.RawMessage `json:"allocation"`
}

func (s *state) allocate(a Allocated) error {
	if len(a.Allocation) > MaxAllocationBytes {
		return fmt.Errorf("record netplan allocation of %d bytes: %w", len(a.Allocation), ErrAllocationTooLarge)
	}
	s.Netplan = a.Allocation
	return nil
}

// Netplan gives the recorded allocation; nil where none has been made.
func (r *Record) Netplan() json.RawMessage {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.Clone(r.s.Netplan)
}
