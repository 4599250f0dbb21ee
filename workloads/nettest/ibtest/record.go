package ibtest

import (
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// Record is one line of a cluster's history: a test of its links at their worst.
type Record struct {
	At      time.Time `json:"at"`
	Cluster string    `json:"cluster"`
	Verb    string    `json:"verb"`
	Bytes   int64     `json:"bytes"`
	Hosts   []string  `json:"hosts"` // sorted
	// Gbps is the least of all cables, Micros the most; nil where it was not measured.
	Gbps   *float64      `json:"gbps,omitempty"`
	Micros *float64      `json:"us,omitempty"`
	Part   *float64      `json:"part,omitempty"`
	Grade  nettest.Grade `json:"grade"`
	Cause  string        `json:"cause,omitempty"`
}

// NewRecord sums a report up; whose and when is the caller's to fill in.
func NewRecord(p Plan, verb string, rep Report) Record {
	r := Record{Verb: verb, Bytes: p.Bytes, Part: rep.Verdict.Part, Grade: rep.Verdict.Grade}
	for _, n := range p.Nodes {
		r.Hosts = append(r.Hosts, n.Host)
	}
	slices.Sort(r.Hosts)
	for _, c := range rep.Cells {
		if c.Gbps != nil && (r.Gbps == nil || *c.Gbps < *r.Gbps) {
			r.Gbps = c.Gbps
		}
		if c.Micros != nil && (r.Micros == nil || *c.Micros > *r.Micros) {
			r.Micros = c.Micros
		}
	}
	if c := rep.Verdict.Cause; c != nil {
		r.Cause = c.Code
	}
	return r
}

// tells whether a record has a figure for each that now has.
func (r Record) tells(now Record) bool {
	return (now.Gbps == nil || r.Gbps != nil) && (now.Micros == nil || r.Micros != nil)
}

// Last is the latest record of a history that is like now.
func Last(history []byte, now Record) *Record {
	return nettest.Last(history, func(r Record) bool {
		return r.tells(now) && r.Cluster == now.Cluster && r.Verb == now.Verb && r.Bytes == now.Bytes &&
			slices.Equal(r.Hosts, now.Hosts)
	})
}
