package follow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func TestPrinter(t *testing.T) {
	tests := map[string]struct {
		set      func(*Printer)
		chunks   []wire.LogChunk
		out, err string
		notes    []string
	}{
		"whole lines, the last without an end": {
			chunks: []wire.LogChunk{apptest.Out(0, 0, "a\nb"), apptest.Out(1, 0, "x\n"), apptest.Out(0, 3, "c\nd")},
			out:    "[0] a\n[1] x\n[0] bc\n[0] d\n",
		},
		"two streams of one rank do not mix": {
			chunks: []wire.LogChunk{apptest.Out(0, 0, "to out"), apptest.Errs(0, 0, "to err\n"), apptest.Out(0, 6, " again\n")},
			out:    "[0] to out again\n", err: "[0] to err\n",
		},
		"told twice": {
			chunks: []wire.LogChunk{apptest.Out(0, 0, "one\ntw"), apptest.Out(0, 0, "one\ntw"),
				apptest.Out(0, 2, "e\ntwo\n"), apptest.Out(0, 0, "one")},
			out: "[0] one\n[0] two\n",
		},
		"empty lines and none": {
			chunks: []wire.LogChunk{apptest.Out(0, 0, "\n\nx\n")},
			out:    "[0] \n[0] \n[0] x\n",
		},
		"bytes of any kind": {
			chunks: []wire.LogChunk{apptest.Out(0, 0, "\x00\xff\r\x1b[1m\n")},
			out:    "[0] \x00\xff\r\x1b[1m\n",
		},
		"aligned": {
			set:    func(p *Printer) { p.World(12) },
			chunks: []wire.LogChunk{apptest.Out(0, 0, "a\n"), apptest.Out(11, 0, "b\n")},
			out:    "[0]  a\n[11] b\n",
		},
		"coloured where it is a terminal": {
			set:    func(p *Printer) { p.errColour = true },
			chunks: []wire.LogChunk{apptest.Out(0, 0, "a\n"), apptest.Errs(0, 0, "b\n")},
			out:    "[0] a\n", err: "\x1b[36m[0]\x1b[0m b\n",
		},
		"remarks, once each": {
			chunks: []wire.LogChunk{{Host: "h", Note: "n"}, {Host: "h", Note: "n"}, {Host: "h", Note: "m"}, {}},
			notes:  []string{"n", "m"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var o, e bytes.Buffer
			var notes []string
			p := NewPrinter(&o, &e)
			p.Note = func(s string) { notes = append(notes, s) }
			if tc.set != nil {
				tc.set(p)
			}
			for _, c := range tc.chunks {
				if err := p.take(c); err != nil {
					t.Fatal(err)
				}
			}
			if err := p.Flush(); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.out, o.String()); diff != "" {
				t.Errorf("stdout -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tc.err, e.String()); diff != "" {
				t.Errorf("stderr -want +got:\n%s", diff)
			}
			if diff := cmp.Diff(tc.notes, notes); diff != "" {
				t.Errorf("notes -want +got:\n%s", diff)
			}
		})
	}
}

// However the output is cut up and repeated, what is printed is the same.
func TestPrinterAnyCuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var text strings.Builder
	for i := range 300 {
		fmt.Fprintf(&text, "line %d %s\n", i, strings.Repeat("x", rng.IntN(40)))
	}
	all := text.String()
	want := "[0] " + strings.ReplaceAll(strings.TrimSuffix(all, "\n"), "\n", "\n[0] ") + "\n"
	for range 50 {
		var o bytes.Buffer
		p := NewPrinter(&o, io.Discard)
		for at := 0; at < len(all); {
			from := max(0, at-rng.IntN(50)) // a resume that steps back
			to := min(len(all), at+rng.IntN(200))
			if err := p.take(apptest.Out(0, int64(from), all[from:to])); err != nil {
				t.Fatal(err)
			}
			at = to
			if cs := p.cursors(); to > 0 && cs[0].Offset != int64(to) {
				t.Fatalf("cursor %d after byte %d", cs[0].Offset, to)
			}
		}
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
		if o.String() != want {
			t.Fatalf("-want +got:\n%s", cmp.Diff(want, o.String()))
		}
	}
}

func TestPrinterLongLine(t *testing.T) {
	var o bytes.Buffer
	p := NewPrinter(&o, io.Discard)
	piece := strings.Repeat("y", 100_000)
	var at int64
	for range 25 { // 2.5 MB without an end
		if err := p.take(apptest.Out(0, at, piece)); err != nil {
			t.Fatal(err)
		}
		at += int64(len(piece))
		if held := cap(p.tails[TailKey{0, wire.Stdout}].partial); held > 2*MaxLine {
			t.Fatalf("%d bytes are held of one line", held)
		}
	}
	if err := p.take(apptest.Out(0, at, "end\n")); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(o.String(), "\n"), "\n")
	if len(lines) != 3 || len(lines[0]) != MaxLine+len("[0] ") || !strings.HasSuffix(lines[2], "yend") {
		t.Errorf("%d lines, the first of %d bytes", len(lines), len(lines[0]))
	}
	for i, begin := range []string{"[0] y", "[0+] y", "[0+] y"} {
		if !strings.HasPrefix(lines[i], begin) {
			t.Errorf("piece %d begins %.8q, want %q", i, lines[i], begin)
		}
	}
	if n := strings.Count(o.String(), "y"); n != 2_500_000 {
		t.Errorf("%d bytes printed, want 2500000", n)
	}
}

func TestPrinterGap(t *testing.T) {
	var o bytes.Buffer
	var notes []string
	p := NewPrinter(&o, io.Discard)
	p.Note = func(s string) { notes = append(notes, s) }
	if err := p.take(apptest.Out(0, 0, "ab")); err != nil {
		t.Fatal(err)
	}
	if err := p.take(apptest.Out(0, 5, "fg\n")); !errors.Is(err, errGap) {
		t.Fatalf("a chunk that leaves out 3 bytes: %v", err)
	}
	if got := p.cursors()[0].Offset; got != 2 {
		t.Errorf("asks again from %d, want 2", got)
	}
	if err := p.take(apptest.Out(0, 5, "fg\n")); err != nil { // gone for good
		t.Fatal(err)
	}
	if o.String() != "[0] abfg\n" || len(notes) != 1 || !strings.Contains(notes[0], "3 bytes") {
		t.Errorf("printed %q, said %q", o.String(), notes)
	}
}

func TestPrinterJSON(t *testing.T) {
	var o, e bytes.Buffer
	p := NewPrinter(&o, &e)
	p.json = true
	for _, err := range []error{
		p.event(rendezvous.Progress{Step: rendezvous.StepStarted, Job: "j", Host: "spark1"}),
		p.event(rendezvous.Progress{Step: rendezvous.StepExited, Job: "j", Host: "spark1", Rank: new(0)}),
		p.event(rendezvous.Progress{Step: rendezvous.StepEnded, Job: "j"}), // while output is on its way
		p.take(apptest.Out(0, 0, "a <b>\n")),
		p.take(apptest.Errs(1, 0, "")), // nothing
		p.take(apptest.Errs(1, 0, "\xff\n\n")),
		p.take(wire.LogChunk{Host: "spark2", Note: "away"}),
		p.take(apptest.Out(0, 6, "tail")),
		p.Flush(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if e.Len() > 0 {
		t.Errorf("stderr: %s", &e)
	}
	var got []map[string]any
	for line := range strings.Lines(o.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		delete(m, "time")
		got = append(got, m)
	}
	want := []map[string]any{
		{"type": "event", "step": "started", "job": "j", "host": "spark1"},
		{"type": "event", "step": "exited", "job": "j", "host": "spark1", "rank": 0.0},
		{"type": "output", "rank": 0.0, "host": "spark1", "stream": "out", "offset": 0.0, "line": "a <b>"},
		{"type": "output", "rank": 1.0, "host": "spark2", "stream": "err", "offset": 0.0, "base64": "/w=="},
		{"type": "output", "rank": 1.0, "host": "spark2", "stream": "err", "offset": 2.0, "line": ""},
		{"type": "note", "host": "spark2", "text": "away"},
		{"type": "output", "rank": 0.0, "host": "spark1", "stream": "out", "offset": 6.0, "line": "tail", "partial": true},
		{"type": "event", "step": "ended", "job": "j"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if strings.Contains(o.String(), `\u003c`) {
		t.Error("what ranks print is escaped as if for HTML")
	}
}

func TestPrinterBrokenPipe(t *testing.T) {
	p := NewPrinter(apptest.Failing{Err: syscall.EPIPE}, io.Discard)
	err := p.take(apptest.Out(0, 0, "a\n"))
	if !errors.Is(err, ErrOutput) || !errors.Is(err, syscall.EPIPE) {
		t.Errorf("take: %v", err)
	}
	if err := p.take(apptest.Out(0, 2, "b\n")); !errors.Is(err, ErrOutput) {
		t.Errorf("the second take: %v", err)
	}
}

func FuzzPrinter(f *testing.F) {
	f.Add(0, int64(0), []byte("a\nb"), int64(1), []byte("\nbc\n"))
	f.Fuzz(func(t *testing.T, rank int, at int64, a []byte, again int64, b []byte) {
		p := NewPrinter(io.Discard, io.Discard)
		p.outColour = true
		for _, c := range []launcher.Chunk{
			{Rank: rank & 0xffff, Stream: wire.Stdout, Offset: at & 0xffff, Data: a},
			{Rank: rank & 0xffff, Stream: wire.Stdout, Offset: again & 0xffff, Data: b},
			{Rank: rank & 0xffff, Stream: wire.Stdout, Offset: again & 0xffff, Data: b},
		} {
			if err := p.take(c); err != nil && !errors.Is(err, errGap) {
				t.Fatal(err)
			}
		}
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
	})
}

// Output that a node did not keep is named once, and what follows it is no
// continuation of the line before.
func TestPrinterSkipsWhatWasNotKept(t *testing.T) {
	var out, errs bytes.Buffer
	var notes []string
	p := NewPrinter(&out, &errs)
	p.Note = func(s string) { notes = append(notes, s) }
	for _, c := range []wire.LogChunk{
		{Stream: wire.Stdout, Data: []byte("one\ntw")},
		{Stream: wire.Stdout, Offset: 106, Note: "100 B were not kept"},
		{Stream: wire.Stdout, Offset: 106, Data: []byte("end\n")},
	} {
		if err := p.take(c); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := out.String(), "[0] one\n[0] tw\n[0] end\n"; got != want || len(notes) != 1 {
		t.Errorf("printed %q, noted %q; want %q", got, notes, want)
	}
}

// BenchmarkPrinter is what a line costs on its way to a terminal or a file.
func BenchmarkPrinter(b *testing.B) {
	text := strings.Repeat("step 1234 loss 0.12345678 lr 3e-4 tokens/s 12345.6 mem 45.6 GiB\n", 2000)
	for name, set := range map[string]func(*Printer){
		"prefix": func(*Printer) {}, "raw": func(p *Printer) { p.raw = true }, "json": func(p *Printer) { p.json = true },
	} {
		b.Run(name, func(b *testing.B) {
			p := NewPrinter(io.Discard, io.Discard)
			set(p)
			b.SetBytes(int64(len(text)))
			var at int64
			for b.Loop() {
				if err := p.take(apptest.Out(0, at, text)); err != nil {
					b.Fatal(err)
				}
				at += int64(len(text))
			}
			b.ReportMetric(float64(b.N)*2000/b.Elapsed().Seconds(), "lines/s")
		})
	}
}
