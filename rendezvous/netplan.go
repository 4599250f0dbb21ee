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

// ErrAllocationTooLarge refuses the netplan allocation of a cluster larger than this
// record is made for.
var ErrAllocationTooLarge = errors.New("the netplan allocation is too large to be recorded")

// Allocated says which node has which number, subnets and addresses on the fabric, so
// that the next plan changes no node's addresses, whoever leads then. The record keeps it
// without reading it: envgen/netplan reads it, and refuses what it does not know.
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
