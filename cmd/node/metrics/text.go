package metrics

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// page is an answer in Prometheus' text format, version 0.0.4:
// https://prometheus.io/docs/instrumenting/exposition_formats. client_golang writes it, too: it would add 3 MB to the
// program and a quarter to what its packages allocate before main, in each command.
type page struct{ families []*family }

const contentType = "text/plain; version=0.0.4; charset=utf-8"

// family are the samples of one name. Without samples nothing is said of it.
type family struct {
	name, kind, help string
	samples          []byte
}

func (p *page) family(name, kind, help string) *family {
	f := &family{name: name, kind: kind, help: help}
	p.families = append(p.families, f)
	return f
}

func (p *page) gauge(name, help string) *family   { return p.family(name, "gauge", help) }
func (p *page) counter(name, help string) *family { return p.family(name, "counter", help) }

// add adds a sample; labels are names and values by turns.
func (f *family) add(v float64, labels ...string) { f.sample("", v, labels) }

// is adds 1 for true, else 0.
func (f *family) is(yes bool, labels ...string) {
	v := 0.0
	if yes {
		v = 1
	}
	f.add(v, labels...)
}

func (f *family) sample(suffix string, v float64, labels []string) {
	b := append(append(f.samples, f.name...), suffix...)
	for i := 0; i+1 < len(labels); i += 2 {
		before := byte(',')
		if i == 0 {
			before = '{'
		}
		b = append(append(append(b, before), labels[i]...), `="`...)
		b = append(append(b, escape.Replace(strings.ToValidUTF8(labels[i+1], "?"))...), '"')
	}
	if len(labels) > 0 {
		b = append(b, '}')
	}
	b = append(b, ' ')
	f.samples = append(strconv.AppendFloat(b, v, 'g', -1, 64), '\n')
}

// histogram adds how many took no longer than each bound, how many there were, and how long all took together.
func (f *family) histogram(bounds []time.Duration, upTo []int64, count int64, sum time.Duration, labels ...string) {
	f.kind = "histogram"
	of := slices.Concat(labels, []string{"le", ""})
	for i, bound := range bounds {
		of[len(of)-1] = strconv.FormatFloat(bound.Seconds(), 'g', -1, 64)
		f.sample("_bucket", float64(upTo[i]), of)
	}
	of[len(of)-1] = "+Inf"
	f.sample("_bucket", float64(count), of)
	f.sample("_sum", sum.Seconds(), labels)
	f.sample("_count", float64(count), labels)
}

// bytes is the page as text.
func (p *page) bytes() []byte {
	var b []byte
	for _, f := range p.families {
		if len(f.samples) > 0 {
			b = append(b, "# HELP "+f.name+" "+f.help+"\n# TYPE "+f.name+" "+f.kind+"\n"...)
			b = append(b, f.samples...)
		}
	}
	return b
}

// escape is for a label's value. The texts of HELP are our own, and need none.
var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
