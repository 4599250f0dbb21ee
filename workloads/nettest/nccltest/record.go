package nccltest

import (
	"time"

	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// Record is one line of a cluster's history.
type Record struct {
	At      time.Time `json:"at"`
	Cluster string    `json:"cluster"`
	Op      string    `json:"op"`
	// Tool without its version: "torch" and "nccl-tests" measure alike, and not the same.
	Tool string `json:"tool"`
	// Version is the tool's, and Program the one that sparkrun found and started; each
	// empty where it is not known.
	Version string `json:"version,omitempty"`
	Program string `json:"program,omitempty"`

	NCCL  string        `json:"nccl,omitempty"`
	Hosts []string      `json:"hosts"`
	Bytes int64         `json:"bytes"`
	Bus   float64       `json:"bus_gbps"`
	Part  *float64      `json:"part,omitempty"`
	Grade nettest.Grade `json:"grade"`
	Cause string        `json:"cause,omitempty"`
}

// HistoryFile is the history of all clusters, in the user's state folder.
const HistoryFile = "nccl-test.jsonl"

// Last is the latest record of a history that is like now. What a failed test has measured is worth no comparison.
func Last(history []byte, now Record) *Record {
	return nettest.Last(history, func(r Record) bool {
		_, ok := Compare(now, r)
		return ok && r.Op != "" && r.Cluster == now.Cluster && r.Grade != nettest.Failed
	})
}

// LastOf is the latest record of a cluster.
func LastOf(history []byte, cluster string) *Record {
	return nettest.Last(history, func(r Record) bool { return r.Op != "" && r.Cluster == cluster })
}
