package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Each stream has a file of its own, with its bytes as they were, and a file
// that was there is left alone.
func TestOutputFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	line := []string{"logs", "job", "--output", "files=" + dir}
	g := &fakeGangs{logs: prints(out(0, 0, "a\x00"), errs(1, 0, "e\n"), out(0, 2, "\xffb"), out(0, 0, "a\x00"), wire.LogChunk{Host: "spark1", Note: "spark1: rank 0: 3 B of its stdout were lost at byte 9: disk full"})}
	code, o, e := cli(t, &backend{gangs: g}, line...)
	if code != 0 || o != "" || e != "sparkrun: spark1: rank 0: 3 B of its stdout were lost at byte 9: disk full\n" {
		t.Errorf("%d %q %q", code, o, e)
	}
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range entries {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got[f.Name()] = string(b)
	}
	if d := cmp.Diff(map[string]string{"rank-0.out": "a\x00\xffb", "rank-1.err": "e\n"}, got); d != "" {
		t.Error(d)
	}
	if code, _, e := cli(t, &backend{gangs: g}, line...); code != 1 || !strings.Contains(e, "rank-0.out: file already exists, and is not written over") {
		t.Errorf("a second time: %d %q", code, e)
	}
	if code, _, e := cli(t, &backend{gangs: g, close: func() {}}, "launch", "exec", "--standalone", "--output", "files="+dir, "--", "true"); code != 125 || !strings.Contains(e, "name another folder") {
		t.Errorf("launch: %d %q", code, e)
	}
}

func TestParseSince(t *testing.T) {
	zone := time.FixedZone("", 2*3600)
	now := time.Date(2026, 3, 4, 5, 6, 7, 0, zone)
	for text, want := range map[string]time.Time{
		"5m": now.Add(-5 * time.Minute), "90": now.Add(-90 * time.Second),
		"05:00": time.Date(2026, 3, 4, 5, 0, 0, 0, zone), "05:06:08": time.Date(2026, 3, 3, 5, 6, 8, 0, zone),
		"2026-03-01": time.Date(2026, 3, 1, 0, 0, 0, 0, zone), "2026-03-01 12:30": time.Date(2026, 3, 1, 12, 30, 0, 0, zone),
		"2026-03-01T12:00:00Z": time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
	} {
		if got, err := parseSince(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-5m", "25:00", "tomorrow"} {
		if got, err := parseSince(text, now); err == nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// BenchmarkPrinter is what a line costs on its way to a terminal or a file.
func BenchmarkPrinter(b *testing.B) {
	text := strings.Repeat("step 1234 loss 0.12345678 lr 3e-4 tokens/s 12345.6 mem 45.6 GiB\n", 2000)
	for name, set := range map[string]func(*printer){
		"prefix": func(*printer) {}, "raw": func(p *printer) { p.raw = true }, "json": func(p *printer) { p.json = true },
	} {
		b.Run(name, func(b *testing.B) {
			p := newPrinter(io.Discard, io.Discard)
			set(p)
			b.SetBytes(int64(len(text)))
			var at int64
			for b.Loop() {
				if err := p.take(out(0, at, text)); err != nil {
					b.Fatal(err)
				}
				at += int64(len(text))
			}
			b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "lines/s")
		})
	}
}
