package envgen

import "time"

// Severity says what a finding means for a job.
type Severity string

const (
	// SeverityError is a fault with which a job fails, hangs, or runs without the fabric it asked for.
	SeverityError Severity = "error"
	// SeverityWarning is a fault that costs speed or will cause trouble later.
	SeverityWarning Severity = "warning"
	// SeverityInfo is a fact worth knowing; nothing needs to be done.
	SeverityInfo Severity = "info"
)

// Finding is one fault, described so that its owner can repair it.
type Finding struct {
	// Code is stable and names the kind of fault: twins-one-subnet.
	Code     string   `json:"code"`
	Severity Severity `json:"severity"`
	// Node is the id of the node to repair and Host its name; empty where the finding is about the whole
	// cluster.
	Node string `json:"node,omitempty"`
	Host string `json:"host,omitempty"`
	// Port is the slot of the physical port and Device the RDMA device or interface; empty where it is not about
	// one.
	Port   string `json:"port,omitempty"`
	Device string `json:"device,omitempty"`
	// Text is a sentence: what is wrong, where, and what it leads to.
	Text string `json:"text"`
	// Evidence is what was read: "enp1s0f0np0 mtu 1500".
	Evidence string `json:"evidence"`
	// Remedy is a command to run on Host (on any node where that is empty): one that repairs the fault, or where
	// that takes hands, as for a cable, one that shows the place.
	Remedy string `json:"remedy"`
}

// Rank orders severities: the worst is lowest.
func (s Severity) Rank() int {
	switch s {
	case SeverityError:
		return 0
	case SeverityWarning:
		return 1
	}
	return 2
}

// Counters are what one RDMA device counted during a span of time. They are not in an inventory, which must stay
// equal while nothing changes.
type Counters struct {
	// HCA is the device.
	HCA string `json:"hca"`
	// Span is the time between the two readings.
	Span time.Duration `json:"span"`
	// Counts are the increases, by file name in ports/1/counters and ports/1/hw_counters: packet_seq_err.
	Counts map[string]uint64 `json:"counts"`
}

// Measurement is a bandwidth measured over one RDMA device that had the link to itself.
type Measurement struct {
	HCA string `json:"hca"`
	// Gbps is in 10^9 bits a second.
	Gbps float64 `json:"gbps"`
	// By names the test: ib_write_bw.
	By string `json:"by"`
}

// Explanation says what a code means.
type Explanation struct {
	Code string `json:"code"`
	// Text is a sentence that is true for every finding of the code.
	Text string `json:"text"`
}
