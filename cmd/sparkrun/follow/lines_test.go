package follow

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What has no end for a second is shown; another line never begins inside it,
// and what follows stands where it would without the wait.
func TestOpenLines(t *testing.T) {
	type step struct {
		after time.Duration
		chunk wire.LogChunk
		want  string // on stdout from now on, added to what was there
	}
	for name, steps := range map[string][]step{
		"a question and its answer": {
			{chunk: apptest.Out(0, 0, "name? ")}, {after: 900 * time.Millisecond},
			{after: 200 * time.Millisecond, want: "[0] name? "},
			{chunk: apptest.Out(0, 6, "ada\nx\n"), want: "ada\n[0] x\n"},
		},
		"a row of dots": {
			{chunk: apptest.Out(0, 0, ".")}, {after: 600 * time.Millisecond, chunk: apptest.Out(0, 1, ".")},
			{after: 600 * time.Millisecond, want: "[0] .."}, // the first dot's second
			{chunk: apptest.Out(0, 2, ".")}, {after: 2 * time.Second, want: "."},
			{chunk: apptest.Out(0, 3, "\n"), want: "\n"},
		},
		"another rank comes between": {
			{chunk: apptest.Out(0, 0, "half")}, {after: 2 * time.Second, want: "[0] half"},
			{chunk: apptest.Out(1, 0, "whole\n"), want: "\n[1] whole\n"},
			{chunk: apptest.Out(0, 4, " other\n"), want: "[0+]  other\n"},
		},
		"an end that comes too late": {
			{chunk: apptest.Out(0, 0, "half")}, {after: 2 * time.Second, want: "[0] half"},
			{chunk: apptest.Out(1, 0, "whole\n"), want: "\n[1] whole\n"},
			{chunk: apptest.Out(0, 4, "\n\n"), want: "[0] \n"},
		},
		"the other stream comes between": {
			{chunk: apptest.Out(0, 0, "half")}, {after: 2 * time.Second, want: "[0] half"},
			{chunk: apptest.Errs(0, 0, "e\n"), want: "\n"},
		},
		"a remark comes between": {
			{chunk: apptest.Out(0, 0, "half")}, {after: 2 * time.Second, want: "[0] half"},
			{chunk: wire.LogChunk{Host: "h", Note: "n"}, want: "\n"},
		},
		"two at once": {
			{chunk: apptest.Out(0, 0, "a")}, {after: 500 * time.Millisecond, chunk: apptest.Out(1, 0, "b")},
			{after: 600 * time.Millisecond, want: "[0] a"}, {after: 500 * time.Millisecond, want: "\n[1] b"},
		},
		"the end": {{chunk: apptest.Out(0, 0, "half")}, {after: 2 * time.Second, want: "[0] half"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &apptest.SyncBuffer{}
				p := NewPrinter(o, io.Discard)
				want := ""
				for i, s := range steps {
					time.Sleep(s.after)
					synctest.Wait()
					if s.chunk.Data != nil || s.chunk.Note != "" {
						if err := p.take(s.chunk); err != nil {
							t.Fatal(err)
						}
					}
					if want += s.want; o.String() != want {
						t.Errorf("step %d: %q, want %q", i, o.String(), want)
					}
				}
				if err := p.Flush(); err != nil {
					t.Fatal(err)
				}
				if got := o.String(); !strings.HasSuffix(got, "\n") {
					t.Errorf("ends with %q", got)
				}
				time.Sleep(time.Minute) // nothing is shown after the end
			})
		})
	}
}

func TestOpenLinesAsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &apptest.SyncBuffer{}
		p := NewPrinter(o, io.Discard)
		p.json = true
		c := apptest.Out(0, 0, "half")
		c.Job, c.Time = "job2345678", time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		for _, c := range []wire.LogChunk{c, apptest.Out(0, 4, " done\n")} {
			if err := p.take(c); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		want := `{"type":"output","job":"job2345678","rank":0,"host":"spark1","stream":"out","time":"2026-01-02T03:04:05Z","offset":0,"line":"half","partial":true}
{"type":"output","job":"job2345678","rank":0,"host":"spark1","stream":"out","offset":4,"line":" done"}
`
		if d := cmp.Diff(want, o.String()); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
	})
}

// A cursor that is told moves the reading; what is asked for again starts there.
func TestPrinterBeginsLater(t *testing.T) {
	var o bytes.Buffer
	p := NewPrinter(&o, io.Discard)
	for _, c := range []wire.LogChunk{{Rank: 2, Stream: wire.Stdout, Offset: 100}, {Rank: 2, Stream: wire.Stderr},
		apptest.Out(2, 100, "late\n")} {
		if err := p.take(c); err != nil {
			t.Fatal(err)
		}
	}
	want := []wire.Cursor{{Rank: 2, Stream: wire.Stdout, Offset: 105}, {Rank: 2, Stream: wire.Stderr}}
	if d := cmp.Diff(want, p.cursors()); d != "" || o.String() != "[2] late\n" {
		t.Errorf("%s %q", d, o.String())
	}
}
