package nccltest

import (
	"bytes"
	"encoding/json"
	"time"
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

	NCCL  string   `json:"nccl,omitempty"`
	Hosts []string `json:"hosts"`
	Bytes int64    `json:"bytes"`
	Bus   float64  `json:"bus_gbps"`
	Part  *float64 `json:"part,omitempty"`
	Grade Grade    `json:"grade"`
	Cause string   `json:"cause,omitempty"`
}

// HistoryFile is the history of all clusters, in the user's state folder.
const HistoryFile = "nccl-test.jsonl"

// History reads lines of records. A line that is none (a disk that was full, a newer
// version's) is passed over.
func History(data []byte) []Record {
	var all []Record
	for line := range bytes.Lines(data) {
		var r Record
		if json.Unmarshal(line, &r) == nil && r.Op != "" {
			all = append(all, r)
		}
	}
	return all
}

// Last is the latest record like now of its cluster; nil where there is none. What a failed test
// has measured is worth no comparison.
func Last(history []Record, now Record) *Record {
	for i := len(history) - 1; i >= 0; i-- {
		if _, ok := Compare(now, history[i]); ok && history[i].Cluster == now.Cluster && history[i].Grade != Failed {
			return &history[i]
		}
	}
	return nil
}
