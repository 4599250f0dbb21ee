package ibtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Measured is what one perftest printed. Absent figures are nil.
type Measured struct {
	// Bytes is the message size, Iters how many messages or exchanges there were.
	Bytes int64  `json:"bytes,omitempty"`
	Iters uint64 `json:"iters,omitempty"`
	// Gbps is the average, in 10^9 bits a second; MsgRate in 10^6 messages a second.
	Gbps    *float64 `json:"gbps,omitempty"`
	MsgRate *float64 `json:"msg_rate_mpps,omitempty"`
	// Times of one way, in microseconds; a read's of both. With a duration only Avg is told.
	Min     *float64 `json:"min_us,omitempty"`
	Max     *float64 `json:"max_us,omitempty"`
	Typical *float64 `json:"typical_us,omitempty"` // the median
	Avg     *float64 `json:"avg_us,omitempty"`
	P99     *float64 `json:"p99_us,omitempty"`
	// MTU is RoCE's, in bytes: 4096 where the interface has 9000.
	MTU int `json:"roce_mtu,omitempty"`
	// GIDIndex is this side's; Local and Remote are the GIDs that spoke.
	GIDIndex *int       `json:"gid_index,omitempty"`
	Local    netip.Addr `json:"local_gid,omitzero"`
	Remote   netip.Addr `json:"remote_gid,omitzero"`
}

// ErrNoResult: nothing in a text is a figure of perftest's.
var ErrNoResult = errors.New("no result of perftest in it")

// Read takes what a perftest printed and, where it wrote one, its JSON file. Figures are
// the file's where it has them; GIDs are in the text alone. In JSON no unit is named: it
// is of a run with --report_gbits.
func Read(text, file string) (Measured, error) {
	m := readText(text)
	if file != "" {
		m.readJSON(file)
	}
	if m.Gbps == nil && m.latency() == nil {
		return m, ErrNoResult
	}
	return m, nil
}

// latency is the figure to judge; nil where there is none.
func (m Measured) latency() *float64 {
	if m.Typical != nil {
		return m.Typical
	}
	return m.Avg
}

var (
	// Names of columns hold single spaces; those of one unit end with it in brackets.
	columnName = plain.Pattern(`#\w+|[\w.%]+(?: \w+)*\[[^\]]*\]|tps average`)
	mtuLine    = plain.Pattern(`^\s*Mtu\s*:\s*(\d+)\[B\]`)
	gidIndex   = plain.Pattern(`(?i)^\s*GID index\s*:\s*(\d+)`) // 4.4: gid index
	gidLine    = plain.Pattern(`^\s*M?GID\s*:\s*((?:\d{1,3}:){15}\d{1,3})`)
	sideLine   = plain.Pattern(`^\s*(local|remote) address:`)
)

// readText finds the table by its header, and what the lines before it say.
func readText(text string) Measured {
	var m Measured
	var columns []string
	side := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		if f := mtuLine().FindStringSubmatch(line); f != nil {
			m.MTU, _ = strconv.Atoi(f[1]) // of digits; one too long stays 0
		} else if f := gidIndex().FindStringSubmatch(line); f != nil {
			if n, err := strconv.Atoi(f[1]); err == nil {
				m.GIDIndex = &n
			}
		} else if f := sideLine().FindStringSubmatch(line); f != nil {
			side = f[1]
		} else if f := gidLine().FindStringSubmatch(line); f != nil {
			if gid, ok := parseGID(f[1]); ok && side == "local" {
				m.Local = gid
			} else if ok && side == "remote" {
				m.Remote = gid
			}
		} else if strings.Contains(line, "#bytes") {
			columns = columnName().FindAllString(line, -1)
		} else if columns != nil {
			m.row(columns, strings.Fields(line))
		}
	}
	return m
}

// row takes a line beneath a header, if it is a row; of several sizes the last one stays.
func (m *Measured) row(columns, fields []string) {
	if len(fields) != len(columns) {
		return
	}
	values := make([]float64, len(fields))
	for i, f := range fields {
		v, err := strconv.ParseFloat(f, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return
		}
		values[i] = v
	}
	for i, c := range columns {
		name, unit, _ := strings.Cut(strings.TrimSuffix(c, "]"), "[")
		m.set(name, unit, values[i])
	}
}

// set takes one figure, by its name in a header or in JSON. A unit that is not known makes it
// no figure.
func (m *Measured) set(name, unit string, v float64) {
	switch name {
	case "#bytes", "MsgSize":
		if v < math.MaxInt64 {
			m.Bytes = int64(v)
		}
	case "#iterations", "n_iterations":
		if v < math.MaxInt64 {
			m.Iters = uint64(v)
		}
	case "BW average", "BW_average", "bw_avg":
		switch unit {
		case "Gb/sec":
			m.Gbps = &v
		case "MB/sec", "MiB/sec": // 2^20 bytes, under either name (perftest_parameters.c, format_factor)
			v *= 8 * (1 << 20) / 1e9
			m.Gbps = &v
		}
	case "MsgRate":
		m.MsgRate = &v
	}
	if unit != "usec" {
		return
	}
	switch name {
	case "t_min":
		m.Min = &v
	case "t_max":
		m.Max = &v
	case "t_typical":
		m.Typical = &v
	case "t_avg", "avg_lat":
		m.Avg = &v
	case "99% percentile", "percentile_99":
		m.P99 = &v
	}
}

// parseGID reads a GID as perftest prints it: sixteen decimal bytes.
func parseGID(text string) (netip.Addr, bool) {
	var raw [16]byte
	for i, part := range strings.Split(text, ":") {
		n, err := strconv.ParseUint(part, 10, 8)
		if err != nil {
			return netip.Addr{}, false
		}
		raw[i] = byte(n)
	}
	return netip.AddrFrom16(raw), true
}

// jsonLine is one setting of perftest's file. Up to 4.5 it is no JSON: names without quotes, and a
// comma behind the last.
var jsonLine = plain.Pattern(`^\s*"?([\w.]+)"?\s*:\s*"?([^",]*)"?\s*,?\s*$`)

func (m *Measured) readJSON(text string) {
	found := map[string]string{}
	var doc struct {
		Info    map[string]any `json:"test_info"`
		Results map[string]any `json:"results"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err == nil {
		for _, of := range []map[string]any{doc.Info, doc.Results} {
			for name, v := range of {
				found[name] = fmt.Sprint(v)
			}
		}
	} else {
		for line := range strings.Lines(text) {
			if f := jsonLine().FindStringSubmatch(strings.TrimRight(line, "\r\n")); f != nil {
				found[f[1]] = f[2]
			}
		}
	}
	for name, value := range found {
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			continue
		}
		switch {
		case name == "Mtu" && v <= 1<<20:
			m.MTU = int(v)
		case name == "GID_index" && v < 1<<16:
			n := int(v)
			m.GIDIndex = &n
		case strings.HasPrefix(name, "t_"), strings.HasPrefix(name, "percentile"), name == "avg_lat":
			m.set(name, "usec", v)
		default:
			m.set(name, "Gb/sec", v)
		}
	}
}
