package logs

import (
	"errors"
	"fmt"
	"github.com/google/go-cmp/cmp"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// told writes down what a reader is told: bytes, and remarks in brackets.
func told(t *testing.T, dir string, from int64) string {
	t.Helper()
	var got strings.Builder
	r := Request{Ranks: []int{0}, Cursors: []launcher.Cursor{{Stream: launcher.Stdout, Offset: from}}}
	l := newReader(dir, r, func(c launcher.Chunk) error {
		if c.Note != "" {
			fmt.Fprintf(&got, "[%s]", c.Note)
		}
		got.Write(c.Data)
		return nil
	})
	l.buf = make([]byte, 3) // so that parts take several turns
	l.allDirty()
	must(t, l.readAll(t.Context(), func() {}))
	return got.String()
}

// A stream in parts reads like one, from any offset; what was removed is named.
func TestReadingParts(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"rank-0.out": "01234", "rank-0.out.5": "56789", "rank-0.out.20": "abcde",
		"rank-0.out.25": "f", "rank-0.err": ""} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const gap = "[rank 0: 10 B of its stdout were not kept (--max-output)]"
	for from, want := range map[int64]string{
		0: "0123456789" + gap + "abcdef", 3: "3456789" + gap + "abcdef", 5: "56789" + gap + "abcdef", 9: "9" + gap + "abcdef",
		10: gap + "abcdef", 12: "[rank 0: 8 B of its stdout were not kept (--max-output)]abcdef", 22: "cdef", 25: "f",
		26: "", 99: "",
	} {
		if got := told(t, dir, from); got != want {
			t.Errorf("from %d: %q, want %q", from, got, want)
		}
	}
	must(t, os.Remove(filepath.Join(dir, "rank-0.out.5")))
	if got, want := told(t, dir, 4), "4[rank 0: 15 B of its stdout were not kept (--max-output)]abcdef"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := told(t, t.TempDir(), 0); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

func TestKeep(t *testing.T) {
	now := time.Now()
	var jobs []Job
	for i, name := range []string{"new", "mid", "old", "older", "ben's oldest"} {
		user := "ann"
		if strings.HasPrefix(name, "ben") {
			user = "ben"
		}
		jobs = append(jobs, Job{name, user, now.Add(-time.Duration(i) * time.Hour), func() int64 { return 100 }})
	}
	for name, tc := range map[string]struct {
		keep Keep
		want []string
	}{
		"all":     {Keep{Jobs: 9}, nil},
		"by many": {Keep{Jobs: 3}, []string{"older", "old"}},
		"by age":  {Keep{Jobs: 9, For: 90 * time.Minute}, []string{"ben's oldest", "older", "old"}},
		"by size": {Keep{Jobs: 9, Bytes: 250}, []string{"older", "old", "mid"}},
		"by each": {Keep{Jobs: 3, For: 210 * time.Minute, Bytes: 250}, []string{"ben's oldest", "older", "old"}},
	} {
		if d := cmp.Diff(tc.want, tc.keep.Beyond(slices.Clone(jobs), now)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// BenchmarkLogs reads the output of many ranks of one node, five lines each: what a
// rank costs must not grow with their number.
func BenchmarkLogs(b *testing.B) {
	last := 1
	for _, count := range []int{400, 4000} {
		dir, names := b.TempDir(), []string{"out", "err", "out.times", "err.times"}
		r := Request{}
		for rank := range count {
			r.Ranks = append(r.Ranks, rank)
			for i, text := range []string{"1\n2\n3\n4\n", "5\n", string(make([]byte, 16)), string(make([]byte, 16))} {
				must(b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("rank-%d.%s", rank, names[i])), []byte(text), 0o600))
			}
		}
		for name, from := range map[string]launcher.From{"all": {}, "tail": {Lines: &last}} {
			b.Run(fmt.Sprintf("%s/ranks=%d", name, count), func(b *testing.B) {
				r.From = from
				for b.Loop() {
					bytes := 0
					l := newReader(dir, r, func(c launcher.Chunk) error { bytes += len(c.Data); return nil })
					must(b, l.begin(r))
					l.allDirty()
					must(b, l.readAll(b.Context(), func() {}))
					if want := map[string]int{"all": 10, "tail": 2}[name] * count; bytes != want {
						b.Fatalf("%d bytes, want %d", bytes, want)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(count), "µs/rank")
			})
		}
	}
}

// After an overflow of inotify's queue everything is looked at again.
func TestLostNewsMakeEverythingDirty(t *testing.T) {
	l := newReader("/x", Request{Ranks: []int{0, 1}}, nil)
	lost := make(chan error, 1)
	l.lost = lost
	lost <- errors.New("overflow")
	l.mark()
	if slices.ContainsFunc(l.files, func(f *tail) bool { return !f.dirty }) {
		t.Error("a file would not be read again")
	}
}

func TestFollowWithoutInotify(t *testing.T) {
	l := newReader(lay(t, map[string]string{"": "one\n"}), Request{Ranks: []int{0}}, nil)
	l.poll()
	defer l.unwatch()
	l.look()
	if !l.files[0].dirty {
		t.Error("what was there is not read")
	}
	l.files[0].dirty = false
	select {
	case <-l.tick:
	case <-time.After(time.Minute):
		t.Fatal("nobody looks again")
	}
}

// A bar of progress is one line that has no end: of it the last state is told.
func TestLastLinesWithoutEnds(t *testing.T) {
	bar := ""
	for i := range 2000 {
		bar += fmt.Sprintf("\rLoading weights: %d of 2000", i)
	}
	for name, tt := range map[string]struct {
		text string
		want []string
	}{
		"lines": {"one\n\n  two  \r\n\nthree", []string{"one", "  two", "three"}},
		"a bar": {"begins\n" + bar[:len("\rLoading weights: 0 of 2000")] + "\r",
			[]string{"begins", "Loading weights: 0 of 2000"}},
		"a long bar":        {bar, []string{"Loading weights: 1999 of 2000"}},
		"a bar, and an end": {bar + "\ndone\n", []string{"Loading weights: 1999 of 2000", "done"}},
		"nothing":           {"\r\n\r\r\n", nil},
	} {
		path := filepath.Join(t.TempDir(), "out")
		must(t, os.WriteFile(path, []byte(tt.text), 0o644))
		if d := cmp.Diff(tt.want, LastLines(path)); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
	path := filepath.Join(t.TempDir(), "out")
	must(t, os.WriteFile(path, []byte(strings.Repeat("x", 100_000)), 0o644))
	if got := LastLines(path); len(got) != 1 || !strings.HasPrefix(got[0], "xxx") {
		t.Errorf("a line without an end: %d lines", len(got))
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
