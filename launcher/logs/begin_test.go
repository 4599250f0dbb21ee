package logs

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

// lay writes a stream's files: its parts by their suffix.
func lay(t *testing.T, parts map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for suffix, text := range parts {
		must(t, os.WriteFile(filepath.Join(dir, "rank-0.out"+suffix), []byte(text), 0o600))
	}
	return dir
}

// stamps packs pairs of seconds since t0 and offsets.
func stamps(t0 time.Time, pairs ...int64) string {
	var b []byte
	for i := 0; i < len(pairs); i += 2 {
		b = binary.BigEndian.AppendUint64(b, uint64(t0.Add(time.Duration(pairs[i])*time.Second).UnixMilli()))
		b = binary.BigEndian.AppendUint64(b, uint64(pairs[i+1]))
	}
	return string(b)
}

// from reads stdout of rank 0 from there on, and checks that the cursor is told
// before anything else.
func from(t *testing.T, dir string, f launcher.From) string {
	t.Helper()
	var got strings.Builder
	next := int64(-1)
	r := Request{Ranks: []int{0}, From: f, Cursors: []launcher.Cursor{{Stream: launcher.Stderr}}}
	l := newReader(dir, r, func(c launcher.Chunk) error {
		if c.Stream == launcher.Stdout && len(c.Data) == 0 {
			next = c.Offset
			return nil
		}
		if c.Offset != next {
			t.Errorf("%q at %d, the cursor is at %d", c.Data, c.Offset, next)
		}
		next += int64(len(c.Data))
		got.Write(c.Data)
		return nil
	})
	must(t, l.begin(r))
	l.allDirty()
	must(t, l.readAll(t.Context(), func() {}))
	return got.String()
}

func TestLastLines(t *testing.T) {
	long := strings.Repeat("x", 200_000) + "\n"
	for name, tc := range map[string]struct {
		parts map[string]string
		n     int
		want  string
	}{
		"one":                {map[string]string{"": "a\nb\nc\n"}, 1, "c\n"},
		"two":                {map[string]string{"": "a\nb\nc\n"}, 2, "b\nc\n"},
		"more than there is": {map[string]string{"": "a\nb\n"}, 9, "a\nb\n"},
		"none":               {map[string]string{"": "a\nb\n"}, 0, ""},
		"without an end":     {map[string]string{"": "a\nb\nc"}, 2, "b\nc"},
		"empty lines":        {map[string]string{"": "a\n\n\n"}, 2, "\n\n"},
		"across parts":       {map[string]string{"": "a\nb", ".3": "b\nc", ".6": "c\n"}, 2, "bb\ncc\n"},
		"not beyond a gap":   {map[string]string{"": "a\n", ".30": "b\nc\n"}, 9, "b\nc\n"},
		"long lines":         {map[string]string{"": "a\n" + long + long}, 2, long + long},
		"nothing yet":        {nil, 3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := from(t, lay(t, tc.parts), launcher.From{Lines: &tc.n}); got != tc.want {
				t.Errorf("%.40q, want %.40q", got, tc.want)
			}
		})
	}
}

// The last lines of a rank are those of both streams that came last.
func TestLastLinesOfARank(t *testing.T) {
	t0 := time.UnixMilli(1_700_000_000_000)
	for name, tc := range map[string]struct {
		out, err           string
		outTimes, errTimes []int64 // pairs of seconds and offsets
		n                  int
		want               string
	}{
		"out is later":         {"a\nb\n", "x\ny\n", []int64{0, 0, 30, 2}, []int64{10, 0, 20, 2}, 1, "b\n|"},
		"err is later":         {"a\nb\n", "x\ny\n", []int64{0, 0, 10, 2}, []int64{5, 0, 20, 2}, 1, "|y\n"},
		"one of each":          {"a\nb\n", "x\ny\n", []int64{0, 0, 30, 2}, []int64{10, 0, 20, 2}, 2, "b\n|y\n"},
		"three":                {"a\nb\n", "x\ny\n", []int64{0, 0, 30, 2}, []int64{10, 0, 20, 2}, 3, "b\n|x\ny\n"},
		"all there are":        {"a\nb\n", "x\ny\n", []int64{0, 0, 30, 2}, []int64{10, 0, 20, 2}, 4, "a\nb\n|x\ny\n"},
		"more than there are":  {"a\nb\n", "x\n", []int64{0, 0, 30, 2}, []int64{10, 0}, 100, "a\nb\n|x\n"},
		"none":                 {"a\n", "x\n", []int64{0, 0}, []int64{0, 0}, 0, "|"},
		"at the same time":     {"a\nb\n", "x\n", []int64{7, 0}, []int64{7, 0}, 1, "|x\n"},
		"without stamps":       {"a\nb\n", "x\n", nil, nil, 2, "b\n|x\n"},
		"out alone":            {"a\nb\nc\n", "", []int64{0, 0}, nil, 2, "b\nc\n|"},
		"err alone":            {"", "x\ny\nz\n", nil, []int64{0, 0}, 2, "|y\nz\n"},
		"the last has no end":  {"a\nb", "x\n", []int64{0, 0, 30, 2}, []int64{10, 0}, 1, "b|"},
		"err long before":      {"a\nb\nc\n", "warning\n", []int64{50, 0}, []int64{1, 0}, 2, "b\nc\n|"},
		"one line of each, n2": {"a", "x", []int64{0, 0}, []int64{9, 0}, 2, "a|x"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range map[string]string{"out": tc.out, "err": tc.err,
				"out.times": stamps(t0, tc.outTimes...), "err.times": stamps(t0, tc.errTimes...)} {
				must(t, os.WriteFile(filepath.Join(dir, "rank-0."+name), []byte(text), 0o600))
			}
			got := map[launcher.Stream]string{}
			r := Request{Ranks: []int{0}, From: launcher.From{Lines: &tc.n}}
			l := newReader(dir, r, func(c launcher.Chunk) error { got[c.Stream] += string(c.Data); return nil })
			must(t, l.begin(r))
			l.allDirty()
			must(t, l.readAll(t.Context(), func() {}))
			if s := got[launcher.Stdout] + "|" + got[launcher.Stderr]; s != tc.want {
				t.Errorf("%q, want %q", s, tc.want)
			}
		})
	}
}

// What may have come since is shown, whole lines of it, and nothing that had
// surely come before.
func TestSince(t *testing.T) {
	t0 := time.UnixMilli(1_700_000_000_000)
	dir := lay(t, map[string]string{
		"": "a\nb\nc", ".5": "c\nd\n", ".times": stamps(t0, 0, 0, 10, 2, 20, 5, 30, 7),
	})
	for seconds, want := range map[float64]string{
		-5: "a\nb\ncc\nd\n", 0: "a\nb\ncc\nd\n", 0.9: "a\nb\ncc\nd\n",
		5: "b\ncc\nd\n", 10.5: "b\ncc\nd\n",
		15: "cc\nd\n", 20: "cc\nd\n", // from the line's begin, in the part before
		25: "d\n", 30.5: "d\n", 32: "", 1e6: "",
	} {
		if got := from(t, dir, launcher.From{Since: t0.Add(time.Duration(seconds * float64(time.Second)))}); got != want {
			t.Errorf("since %v s: %q, want %q", seconds, got, want)
		}
	}
	one := 1
	if got := from(t, dir, launcher.From{Since: t0, Lines: &one}); got != "d\n" {
		t.Errorf("both: %q", got)
	}
	if got := from(t, lay(t, map[string]string{"": "a\n"}), launcher.From{Since: t0.Add(time.Hour)}); got != "a\n" {
		t.Errorf("without stamps: %q", got)
	}
}

// Each chunk says when its bytes came, where that is asked for.
func TestTimes(t *testing.T) {
	t0 := time.UnixMilli(1_700_000_000_000)
	dir := lay(t, map[string]string{"": "a\nb\nc\n", ".times": stamps(t0, 0, 0, 10, 2, 20, 2)})
	type piece struct {
		Text string
		At   time.Duration
	}
	var got []piece
	l := newReader(dir, Request{Ranks: []int{0}, Times: true}, func(c launcher.Chunk) error {
		got = append(got, piece{string(c.Data), c.Time.Sub(t0)})
		return nil
	})
	l.allDirty()
	must(t, l.readAll(t.Context(), func() {}))
	if d := cmp.Diff([]piece{{"a\n", 0}, {"b\nc\n", 20 * time.Second}}, got); d != "" {
		t.Error(d)
	}
}
