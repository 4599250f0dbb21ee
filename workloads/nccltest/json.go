package nccltest

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// document is what nccl-tests -J writes (version 3, since 2.17.3). Its "env" holds the
// whole environment of the run, tokens included: it is not even declared here, so that
// none of it can be kept. Booleans are strings.
type document struct {
	Args   []string `json:"args"`
	NCCL   int      `json:"nccl_version"`
	Config struct {
		Devices []struct {
			Rank int    `json:"rank"`
			Host string `json:"hostname"`
			Info string `json:"device_info"`
		} `json:"devices"`
	} `json:"config"`
	Results []struct {
		Size  int64  `json:"size"`
		Type  string `json:"type"`
		Redop string `json:"redop"`
		Out   *jpt   `json:"out_of_place"`
		In    *jpt   `json:"in_place"`
	} `json:"results"`
	OutOfBounds *struct {
		Count int    `json:"count"`
		Okay  string `json:"okay"`
	} `json:"out_of_bounds"`
	Average *struct {
		Bandwidth float64 `json:"bandwidth"`
	} `json:"average_bus_bandwidth"`
	Errors []string `json:"errors"`
}

// jpt is a point; a number that is none is written "nan".
type jpt struct {
	Time  float64  `json:"time"`
	Alg   float64  `json:"alg_bw"`
	Bus   float64  `json:"bus_bw"`
	Wrong *jnumber `json:"nwrong"`
}

type jnumber struct {
	value float64
	known bool
}

// UnmarshalJSON takes a number, "nan", "N/A" or null; whatever is no number is not known.
func (n *jnumber) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	if err == nil && v == v {
		n.value, n.known = v, true
	}
	return nil
}

func (p *jpt) point() *Point {
	if p == nil {
		return nil
	}
	out := &Point{Micros: p.Time, Alg: p.Alg, Bus: p.Bus}
	if p.Wrong != nil && p.Wrong.known {
		out.Wrong = &p.Wrong.value
	}
	return out
}

func parseJSON(b []byte) (Table, error) {
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		return Table{}, fmt.Errorf("read result: as the JSON of nccl-tests -J: %w", err)
	}
	t := Table{Tool: "nccl-tests", Backend: "nccl", NCCL: ncclVersion(strconv.Itoa(d.NCCL))}
	if len(d.Args) > 0 {
		t.Op = operation(d.Args[0])
	}
	for _, dev := range d.Config.Devices {
		t.Devices = append(t.Devices, Device{Rank: dev.Rank, Host: dev.Host, Name: dev.Info})
	}
	for _, r := range d.Results {
		t.Rows = append(t.Rows, Row{Bytes: r.Size, Type: r.Type, Redop: r.Redop, Out: r.Out.point(), In: r.In.point()})
	}
	if d.OutOfBounds != nil {
		t.OutOfBounds = &Bounds{Count: d.OutOfBounds.Count, OK: d.OutOfBounds.Okay == "true"}
	}
	if d.Average != nil {
		t.Average = &d.Average.Bandwidth
	}
	for _, e := range d.Errors {
		if e != "" {
			t.Notes = append(t.Notes, "error: "+e)
		}
	}
	if len(t.Rows) == 0 {
		return t, fmt.Errorf("read result: %w", ErrNoTable)
	}
	return t, nil
}
