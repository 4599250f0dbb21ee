package nccltest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

// ErrNoTable is wrapped where a text holds no result at all.
var ErrNoTable = errors.New("no table of nccl-tests in it")

// maxRows bounds a table: a sweep by a factor of 2 has 64 at most, one by steps of
// bytes what its user likes.
const maxRows = 1 << 16

var (
	// Each from src/util.cu; the sweep's own header has the same shape.
	versionLine = plain.Pattern(`^# nccl-tests version (\S+) nccl-headers=\d+ nccl-library=(\d+)`)
	sweepLine   = plain.Pattern(`^# sparkrun sweep \d+ torch=(\S+) nccl=(\S+) backend=(\S+)`)
	startLine   = plain.Pattern(`^# Collective test starting: (\S+)`)
	optionsLine = plain.Pattern(`^# nThread \d+ nGpus \d+ `) // the first that every version prints
	deviceLine  = plain.Pattern(`^#\s+Rank\s+(\d+) (?:Group\s+\d+ )?(?:Pid\s+\d+ )?on\s+(\S+) device\s+(\d+) (?:\[[^]]*\] )?(.*)$`)
	boundsLine  = plain.Pattern(`^# Out of bounds values : (\d+) (\S+)`)
	averageLine = plain.Pattern(`^# Avg bus bandwidth\s+: (\S+)`)
	noteLine    = plain.Pattern(`^# (maxBytes lowered .*|Reducing maxBytes .*|error: .*)$`)
	tag         = plain.Pattern(`^\[\d+,\d+\]<stdout>: ?`) // of mpirun --tag-output
	// A row is begun before its test runs. What NCCL logs meanwhile stands behind its root, which
	// is a number, without a space: "-1spark1:605:605 [0] NCCL INFO ..."; its figures come later, on
	// a line of their own.
	gluedLine = plain.Pattern(`[A-Za-z][^\s:]*:\d+:\d+ \[-?\d+\] (?:\S+ (?:\S+ )?)?NCCL (?:INFO|WARN) `)
)

// maxNotes bounds the remarks on rows that are none.
const maxNotes = 20

// earlierRun is the remark on a text with more than one.
const earlierRun = "this text holds more than one run: only the last is judged"

// Parser reads a test's output line by line. Lines that are not the table's (NCCL's
// log, mpirun's own) are passed over.
type Parser struct {
	table   Table
	columns []string
	begun   []string // the fields of a row whose figures have not come yet
	ended   bool     // the footer came: no row does any more
}

// Line takes one line, without its newline. It reports whether the line was a row, or
// completed one.
func (p *Parser) Line(line string) (row bool) {
	line = strings.TrimRight(line, " \t\r")
	if strings.HasPrefix(line, "[") {
		line = tag().ReplaceAllString(line, "")
	}
	if strings.HasPrefix(line, "#") {
		p.begun = nil
		p.comment(line)
		return false
	}
	if p.columns == nil || p.ended || line == "" || len(p.table.Rows) == maxRows ||
		strings.IndexByte(" 0123456789", line[0]) < 0 {
		return false
	}
	if glued := gluedLine().FindStringIndex(line); glued != nil {
		line = line[:glued[0]]
	}
	fields := strings.Fields(line)
	if len(fields) == 0 {
		return false
	}
	if p.take(fields) || p.begun != nil && p.take(slices.Concat(p.begun, fields)) {
		p.begun = nil
		return true
	}
	if _, err := strconv.ParseInt(fields[0], 10, 64); err == nil && len(fields) >= 3 && len(fields) <= p.first() {
		p.begun = fields
	}
	return false
}

// take adds the row that these fields are, if they are one.
func (p *Parser) take(fields []string) bool {
	if len(fields) < 5 {
		return false
	}
	bytes, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil || bytes < 0 {
		return false
	}
	r, ok := p.row(bytes, fields)
	if ok {
		p.table.Rows = append(p.table.Rows, r)
	}
	return ok
}

// Table is what has come so far.
func (p *Parser) Table() Table {
	t := p.table
	if t.Tool == "" {
		t.Tool = "nccl-tests"
	}
	if t.Backend == "" {
		t.Backend = "nccl"
	}
	return t
}

func (p *Parser) comment(line string) {
	if (p.ended || len(p.table.Rows) > 0) &&
		(versionLine().MatchString(line) || sweepLine().MatchString(line) || startLine().MatchString(line) ||
			optionsLine().MatchString(line)) {
		*p = Parser{table: Table{Notes: []string{earlierRun}}}
	}
	t := &p.table
	if m := versionLine().FindStringSubmatch(line); m != nil {
		t.Tool, t.NCCL = "nccl-tests "+m[1], ncclVersion(m[2])
	} else if m := sweepLine().FindStringSubmatch(line); m != nil {
		t.Tool, t.Backend = "torch "+m[1], m[3]
		if m[2] != "none" {
			t.NCCL = m[2]
		}
	} else if m := startLine().FindStringSubmatch(line); m != nil {
		t.Op = operation(m[1])
	} else if m := deviceLine().FindStringSubmatch(line); m != nil {
		rank, _ := strconv.Atoi(m[1])
		d := Device{Rank: rank, Host: m[2], Name: strings.TrimSpace(m[4])}
		if slices.ContainsFunc(t.Devices, func(o Device) bool { return o.Rank == d.Rank && o.Host == d.Host }) {
			t.Devices = nil // of a run before that ended without a row
		}
		t.Devices = append(t.Devices, d)
	} else if m := boundsLine().FindStringSubmatch(line); m != nil {
		n, _ := strconv.Atoi(m[1])
		t.OutOfBounds, p.ended = &Bounds{Count: n, OK: m[2] == "OK"}, true
	} else if m := averageLine().FindStringSubmatch(line); m != nil {
		if v, ok := number(m[1]); ok {
			t.Average = &v
		}
	} else if m := noteLine().FindStringSubmatch(line); m != nil {
		t.Notes = append(t.Notes, m[1])
	} else if f := strings.Fields(line[1:]); len(f) > 3 && f[0] == "size" && slices.Contains(f, "busbw") {
		p.columns = f
	}
}

// operation is the program's name without its folder and _perf: all_gather.
func operation(program string) string {
	program = program[strings.LastIndexByte(program, '/')+1:]
	for _, end := range []string{"_mpi", "_perf"} { // a build may name the one with MPI
		program = strings.TrimSuffix(program, end)
	}
	return program
}

// first is the column of the first figure; -1: there is none.
func (p *Parser) first() int {
	return slices.IndexFunc(p.columns, func(name string) bool { return name == "time" || name == "cputime" })
}

// row reads the fields by the header's names. Old versions leave redop and root blank
// in the row while the header names them: what comes before the first time has then
// fewer fields than columns, and the table is read from the right.
func (p *Parser) row(bytes int64, fields []string) (Row, bool) {
	first := p.first()
	if first < 0 {
		return Row{}, false
	}
	measured := p.columns[first:]
	if len(measured) > 0 && measured[len(measured)-1] == "timestamp" {
		// Its value is a date and a time.
		measured = measured[:len(measured)-1]
		if len(fields) >= 2 && strings.Count(fields[len(fields)-2], "-") == 2 {
			fields = fields[:len(fields)-2]
		}
	}
	if len(fields) < len(measured)+3 || len(fields) > len(measured)+first { // size, count, type at least
		return Row{}, false
	}
	r := Row{Bytes: bytes, Type: fields[2]}
	if redop := slices.Index(p.columns, "redop"); redop >= 0 && redop < first && len(fields) == len(measured)+first {
		r.Redop = fields[redop]
	}
	values := fields[len(fields)-len(measured):]
	var points []*Point
	var ok bool
	for i, name := range measured {
		if name == "time" || name == "cputime" {
			points = append(points, &Point{})
		}
		if len(points) == 0 {
			continue
		}
		pt := points[len(points)-1]
		if name == "#wrong" || name == "error" { // error: before 2.13, the largest deviation
			if pt.Wrong, ok = wrongElements(name, values[i]); !ok {
				return Row{}, false
			}
			continue
		}
		var v float64
		v, ok = number(values[i])
		switch name {
		case "time", "cputime":
			pt.Micros = v
		case "algbw":
			pt.Alg = v
		case "busbw":
			pt.Bus = v
		}
		if !ok {
			if len(p.table.Notes) < maxNotes {
				p.table.Notes = append(p.table.Notes,
					fmt.Sprintf("no result of %s: %s is %s", nettest.Size(bytes), name, values[i]))
			}
			return Row{}, false
		}
	}
	if len(points) == 0 {
		return Row{}, false
	}
	r.Out = points[0]
	if len(points) > 1 {
		r.In = points[1]
	}
	return r, true
}

// wrongElements counts them; nil: nobody did. The largest relative deviation of old versions is no
// count, and what is too much of it depends on type and operation: their line "Out of bounds values"
// tells. But what is not a number no line tells: it is below every bound (src/common.cu of 2.12).
func wrongElements(column, text string) (n *float64, ok bool) {
	if text == "N/A" {
		return nil, true
	}
	v, err := strconv.ParseFloat(strings.TrimLeft(text, "+-"), 64)
	switch {
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return nil, false
	case math.IsNaN(v) || math.IsInf(v, 0) || strings.HasPrefix(text, "-") && v != 0:
		v = 1
	case column == "error":
		v = 0
	}
	return &v, true
}

// number reads a figure, which may be none: of a time that is 0 nccl-tests makes inf or nan.
func number(text string) (float64, bool) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v < 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0, text == "N/A"
	}
	return v, true
}

// ncclVersion reads NCCL_VERSION_CODE: 22803 is 2.28.3.
func ncclVersion(code string) string {
	n, err := strconv.Atoi(code)
	if err != nil || n < 10000 {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", n/10000, n/100%100, n%100)
}

// Parse reads a whole text: what nccl-tests printed, or the file that its -J wrote.
func Parse(text string) (Table, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return parseJSON([]byte(text))
	}
	var p Parser
	for line := range strings.Lines(text) {
		p.Line(strings.TrimSuffix(line, "\n"))
	}
	t := p.Table()
	if len(t.Rows) == 0 {
		return t, fmt.Errorf("read result: %w", ErrNoTable)
	}
	return t, nil
}
