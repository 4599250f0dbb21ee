package nccltest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/nettest"
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
	Average *javerage `json:"average_bus_bandwidth"`
	Written *javerage `json:"average_bus_bandwidith"` // so up to 2.17.8
	Errors  []string  `json:"errors"`
}

// bareWords are numbers that are none and that nothing quotes: nccl-tests looks for NaN alone, and prints
// an infinite bandwidth, of a time that is 0, as it is.
var bareWords = plain.Pattern(`":-?(?:inf|nan)\b`)

type javerage struct {
	Bandwidth jnumber `json:"bandwidth"`
	Written   jnumber `json:"bandwidith"`
}

// jpt is a point; a number that is none is written "nan". With -C the time is the CPU's.
type jpt struct {
	Time  jnumber `json:"time"`
	CPU   jnumber `json:"cpu_time"`
	Alg   jnumber `json:"alg_bw"`
	Bus   jnumber `json:"bus_bw"`
	Wrong jnumber `json:"nwrong"`
}

type jnumber struct {
	value float64
	known bool
}

// UnmarshalJSON takes a number, "nan", "N/A" or null; whatever is no number, or below 0, is not known.
func (n *jnumber) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseFloat(strings.Trim(string(b), `"`), 64)
	if err == nil && v >= 0 && !math.IsInf(v, 0) {
		n.value, n.known = v, true
	}
	return nil
}

// point is nil where there is none; ok is false where it has no bandwidth that is a number.
func (p *jpt) point() (out *Point, ok bool) {
	if p == nil {
		return nil, true
	}
	if !p.Bus.known {
		return nil, false
	}
	out = &Point{Micros: p.Time.value, Alg: p.Alg.value, Bus: p.Bus.value}
	if !p.Time.known {
		out.Micros = p.CPU.value
	}
	if p.Wrong.known {
		out.Wrong = &p.Wrong.value
	}
	return out, true
}

func parseJSON(b []byte) (Table, error) {
	var d document
	err := json.Unmarshal(b, &d)
	if err != nil && bareWords().Match(b) {
		d = document{}
		err = json.Unmarshal(bareWords().ReplaceAll(b, []byte(`":"nan"`)), &d)
	}
	if err != nil {
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
		out, ok := r.Out.point()
		in, okIn := r.In.point()
		switch {
		case ok && okIn && (out != nil || in != nil) && r.Size >= 0:
			t.Rows = append(t.Rows, Row{Bytes: r.Size, Type: r.Type, Redop: r.Redop, Out: out, In: in})
		case len(t.Notes) < maxNotes:
			t.Notes = append(t.Notes, fmt.Sprintf("no result of %s: it has no bandwidth", nettest.Size(r.Size)))
		}
	}
	if d.OutOfBounds != nil {
		t.OutOfBounds = &Bounds{Count: d.OutOfBounds.Count, OK: d.OutOfBounds.Okay == "true"}
	}
	if a := cmp.Or(d.Average, d.Written); a != nil {
		if n := cmp.Or(a.Bandwidth, a.Written); n.known {
			t.Average = &n.value
		}
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
