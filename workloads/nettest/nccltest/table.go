// Package nccltest decides what the result of an NCCL bandwidth test says about the
// links under it: it reads what nccl-tests or our own sweep printed, and what NCCL
// itself logged, works out what this topology should reach with messages of that size,
// and gives a verdict with its likely cause, the evidence for it and the remedy.
//
// Whatever the speed, each #wrong has to be 0 and somebody has to have checked: nccl-tests with -c 0 prints "0 OK"
// although nobody did, and built without MPI every rank measures its own memory. Causes are looked for in this order:
// sockets, by NCCL's own word; facts of the ports, of which the one whose rate is nearest is likely; NCCL's errors;
// packets lost; a ConnectX that has degraded; unknown, with what was not looked at. -J's file has the whole
// environment, tokens included, in it: document does not declare that field, so nothing keeps it.
//
// It must not run or read anything: text, topology, inventories and counters come in,
// a Verdict goes out. It must not call a fast result good whose sums nobody checked.
package nccltest

import "slices"

// Table is one run of a test as it printed it.
type Table struct {
	// Tool made it: "nccl-tests 2.19.6", "nccl-tests" where it is too old to say, or "torch 2.11.0".
	Tool string `json:"tool"`
	// Op is all_gather, all_reduce, ...; empty where the text does not say.
	Op string `json:"op,omitempty"`
	// NCCL is the version of the library that ran, such as 2.28.9; empty where unknown.
	NCCL string `json:"nccl,omitempty"`
	// Backend is "nccl", or "gloo" on machines without a GPU: then NCCL had no part in it.
	Backend string   `json:"backend"`
	Devices []Device `json:"devices,omitempty"`
	// Rows are the sizes, in the order they were run.
	Rows []Row `json:"rows"`
	// OutOfBounds is what the line of that name says; nil where it never came.
	OutOfBounds *Bounds `json:"out_of_bounds,omitempty"`
	// Average is the tool's own mean over all sizes, GB/s; nil where the line never came.
	Average *float64 `json:"average_gbps,omitempty"`
	// Notes are the tool's remarks that a reader should see.
	Notes []string `json:"notes,omitempty"`
}

// Device is one rank's place.
type Device struct {
	Rank int    `json:"rank"`
	Host string `json:"host"`
	Name string `json:"name"`
}

// Row is one message size.
type Row struct {
	// Bytes is the size as nccl-tests counts it: of the larger buffer of a rank.
	Bytes int64  `json:"bytes"`
	Type  string `json:"type,omitempty"`
	Redop string `json:"redop,omitempty"`
	// Out and In are the out-of-place and in-place runs; nil where the tool has none.
	Out *Point `json:"out_of_place,omitempty"`
	In  *Point `json:"in_place,omitempty"`
}

// Point is what was measured.
type Point struct {
	Micros float64 `json:"us"`       // of one run
	Alg    float64 `json:"alg_gbps"` // 10^9 bytes a second: size / time
	Bus    float64 `json:"bus_gbps"` // what the slowest link carried in each direction
	// Wrong counts wrong elements; nil where nobody checked.
	Wrong *float64 `json:"wrong,omitempty"`
}

// Bounds is the tool's own word on correctness.
type Bounds struct {
	Count int  `json:"count"`
	OK    bool `json:"ok"`
}

// Bus is the row's bandwidth, the mean of what there is.
func (r Row) Bus() float64 { return r.mean(func(p Point) float64 { return p.Bus }) }

// Alg and Micros likewise.
func (r Row) Alg() float64    { return r.mean(func(p Point) float64 { return p.Alg }) }
func (r Row) Micros() float64 { return r.mean(func(p Point) float64 { return p.Micros }) }

func (r Row) mean(of func(Point) float64) float64 {
	sum, n := 0.0, 0
	for _, p := range []*Point{r.Out, r.In} {
		if p != nil {
			sum += of(*p)
			n++
		}
	}
	if n == 0 {
		return 0
	}
	return sum / float64(n)
}

// Wrong is the number of wrong elements; checked is false where neither run was looked at.
func (r Row) Wrong() (n float64, checked bool) {
	for _, p := range []*Point{r.Out, r.In} {
		if p != nil && p.Wrong != nil {
			n += *p.Wrong
			checked = true
		}
	}
	return n, checked
}

// Largest is the row by which a link is evaluated: that of the largest message. Nil
// without rows.
func (t Table) Largest() *Row {
	if len(t.Rows) == 0 {
		return nil
	}
	i := 0
	for j, r := range t.Rows {
		if r.Bytes > t.Rows[i].Bytes {
			i = j
		}
	}
	return &t.Rows[i]
}

// Hosts are those of the devices, by rank, each once.
func (t Table) Hosts() []string {
	var hosts []string
	for _, d := range t.Devices {
		if !slices.Contains(hosts, d.Host) {
			hosts = append(hosts, d.Host)
		}
	}
	return hosts
}
