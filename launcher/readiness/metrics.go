package readiness

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"

	"github.com/sparkrun/sparkrun/launcher"
)

// metricsMost bounds what is read of a server's metrics, in bytes: vLLM's are some 100 KiB.
const metricsMost = 8 << 20

// metricMost is more than any server can have counted, and fits any numeric type.
const metricMost = 1e15

// metrics are the few metrics of a server that show whether it works.
type metrics struct {
	running       float64 // requests
	generated     float64 // tokens since its start
	throughput    float64 // tokens a second, if the server reports that itself
	hasThroughput bool
	// progress are the metrics that only work changes: another value of any is a sign of
	// work.
	progress [launcher.MaxProgress]float64
}

// readMetrics reads Prometheus' text format; nil: it is of no known server, or was cut off,
// as the sums of a part would look like work. A value that is no count (NaN, which never
// equals itself; Inf; a negative one) is ignored.
func readMetrics(r io.Reader, servers []launcher.Server) *metrics {
	sums := map[string]float64{}
	in := bufio.NewReader(r)
	for {
		line, err := in.ReadSlice('\n')
		if name, value, ok := sample(line); ok && err == nil {
			if of := wanted(name, servers); of != "" && value >= 0 && value <= metricMost {
				sums[of] = min(sums[of]+value, metricMost)
			}
		}
		if errors.Is(err, bufio.ErrBufferFull) { // none of our lines is that long
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = in.ReadSlice('\n')
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil
		}
	}
	for _, s := range servers {
		running, known := sums[s.Metrics.Running]
		if !known {
			continue
		}
		m := metrics{running: running, generated: sums[s.Metrics.Generated]}
		if s.Metrics.Throughput != "" {
			m.throughput, m.hasThroughput = sums[s.Metrics.Throughput]
		}
		for i, name := range s.Metrics.Progress[:min(len(s.Metrics.Progress), launcher.MaxProgress)] {
			m.progress[i] = sums[name]
		}
		return &m
	}
	return nil
}

// wanted is the metric's name if it is one of ours; else empty.
func wanted(name []byte, servers []launcher.Server) string {
	for _, s := range servers {
		m := s.Metrics
		for _, own := range []string{m.Running, m.Generated, m.Throughput} {
			if own != "" && string(name) == own {
				return own
			}
		}
		for _, own := range m.Progress {
			if string(name) == own {
				return own
			}
		}
	}
	return ""
}

// sample splits a line as name{labels} value [time].
func sample(line []byte) (name []byte, value float64, ok bool) {
	line = bytes.TrimSpace(line)
	if len(line) == 0 || line[0] == '#' {
		return nil, 0, false
	}
	rest := line
	if i := bytes.IndexByte(line, '{'); i >= 0 {
		end := bytes.LastIndexByte(line, '}') // a label's value may contain one, too
		if end < i {
			return nil, 0, false
		}
		name, rest = line[:i], line[end+1:]
	} else if i := bytes.IndexAny(line, " \t"); i >= 0 {
		name, rest = line[:i], line[i:]
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return nil, 0, false
	}
	value, err := strconv.ParseFloat(string(fields[0]), 64)
	return bytes.TrimSpace(name), value, err == nil
}
