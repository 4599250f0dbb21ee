package audit

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// handClock is a clock that a test moves.
type handClock struct{ at time.Time }

func (c *handClock) now() time.Time { return c.at }

func open(t *testing.T, cfg Config) *Log {
	t.Helper()
	l, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func read(t *testing.T, path string) (lines []Line) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var l Line
		if err := json.Unmarshal(s.Bytes(), &l); err != nil {
			t.Fatalf("%v in %q", err, s.Text())
		}
		lines = append(lines, l)
	}
	return lines
}

func TestLinesAreAppended(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	clock := &handClock{time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	want := []Line{
		{What: "launch", Who: "ann", UID: new(uint32(1000)), From: "spark1", On: "job1", Outcome: OK},
		{What: "join", Who: "spark9\nroot", From: "10.0.0.9:4000", Outcome: Refused, Why: "token used up"},
	}
	for i := range want {
		l := open(t, Config{Path: path, Now: clock.now}) // each time anew: what was there stays
		l.Add(want[i])
		want[i].Time = clock.at
		l.Close()
		clock.at = clock.at.Add(time.Minute)
	}
	if diff := cmp.Diff(want, read(t, path)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, error %v; want 0600", info.Mode(), err)
	}
}

// A flood of unauthenticated calls writes few lines, which tell of the rest; a member's line is never left out.
func TestUnauthenticatedCannotFillTheDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	clock := &handClock{time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	l := open(t, Config{Path: path, Now: clock.now, Unauthenticated: 5})
	for range 1000 {
		l.Unauthenticated(Line{What: "handshake", Outcome: Refused})
	}
	l.Add(Line{What: "launch", Outcome: OK})
	clock.at = clock.at.Add(time.Second)
	l.Unauthenticated(Line{What: "handshake", Outcome: Refused})
	l.Unauthenticated(Line{What: "handshake", Outcome: Refused})
	clock.at = clock.at.Add(time.Hour)
	for range 1000 {
		l.Unauthenticated(Line{What: "handshake", Outcome: Refused})
	}
	var got []string
	for _, x := range read(t, path) {
		got = append(got, fmt.Sprint(x.What, " ", x.Dropped))
	}
	want := "handshake 0,handshake 0,handshake 0,handshake 0,handshake 0,launch 0,handshake 995,handshake 1,handshake 0,handshake 0,handshake 0,handshake 0"
	if diff := cmp.Diff(want, strings.Join(got, ",")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFilesArePutAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	l := open(t, Config{Path: path, MaxBytes: 1000, Keep: 2})
	for i := range 200 {
		l.Add(Line{What: "launch", On: fmt.Sprint(i), Why: strings.Repeat("x", 5000), Outcome: OK})
	}
	last := read(t, path)
	if got := last[len(last)-1].On; got != "199" {
		t.Errorf("the last line is of %s", got)
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 3 {
		t.Fatalf("%d files (%v), want 3", len(files), err)
	}
	for _, f := range files {
		if info, err := f.Info(); err != nil || info.Size() > 1000 {
			t.Errorf("%s has %d bytes (%v)", f.Name(), info.Size(), err)
		}
	}
	// Oldest to newest they go on from one to the next.
	if a, b := read(t, path+".1"), last; a[len(a)-1].On != fmt.Sprint(199-len(b)) {
		t.Errorf("%s ends with %s, %s has %d lines", path+".1", a[len(a)-1].On, path, len(b))
	}
}

// What is asked again and again has a line a minute, which tells how often; another caller's, and a refusal, have their own.
func TestOften(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	clock := &handClock{time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	l := open(t, Config{Path: path, Now: clock.now})
	for i := range 180 {
		l.Often(Line{What: "client call", Who: "ada", Client: "c1", From: fmt.Sprintf("book at 10.0.0.7:%d", 4000+i), On: "Status", Outcome: OK})
		if i == 10 {
			l.Often(Line{What: "client call", Who: "ada", Client: "c1", From: "book at 10.0.0.7:1", On: "Status", Outcome: Refused, Why: "no"})
			l.Often(Line{What: "client call", Who: "ada", Client: "c1", From: "book at 10.0.0.8:1", On: "Status", Outcome: OK})
			l.Add(Line{What: "launch", Who: "ada", Outcome: OK})
		}
		clock.at = clock.at.Add(time.Second)
	}
	var got []string
	for _, x := range read(t, path) {
		got = append(got, fmt.Sprint(x.What, " ", x.Outcome, " ", x.Again))
	}
	want := "client call ok 0,client call refused 0,client call ok 0,launch ok 0,client call ok 59,client call ok 59"
	if diff := cmp.Diff(want, strings.Join(got, ",")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i := range maxKinds {
		l.often[kind{client: fmt.Sprint(i)}] = &often{since: clock.at}
	}
	clock.at = clock.at.Add(2 * time.Minute)
	if l.Often(Line{What: "client call", Outcome: OK}); len(l.often) != 1 {
		t.Errorf("%d kinds are kept in mind", len(l.often))
	}
}

// One source that floods the list is counted after a while; others' lines stay, and its own come again.
func TestASourceCannotPutOthersAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	clock := &handClock{time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)}
	l := open(t, Config{Path: path, MaxBytes: 100 << 10, Keep: 1, SourceBytes: 5000, SourceBps: 100, Now: clock.now})
	l.Of(Line{What: "launch", Who: "ben", Outcome: OK})
	count := func() (ann, ben, dropped int) {
		for _, x := range read(t, path) {
			switch x.Who {
			case "ann":
				ann++
				dropped += x.Dropped
			case "ben":
				ben++
			}
		}
		return ann, ben, dropped
	}
	for range 10_000 {
		l.Of(Line{What: "launch", Who: "ann", Why: strings.Repeat("x", 100), Outcome: Refused})
	}
	flood, ben, _ := count()
	if info, err := os.Stat(path); err != nil || info.Size() > 6000 || ben != 1 || flood < 10 {
		t.Fatalf("%d lines of ann, %d of ben, %d bytes (%v)", flood, ben, info.Size(), err)
	}
	clock.at = clock.at.Add(10 * time.Second) // 1000 bytes
	for range 100 {
		l.Of(Line{What: "launch", Who: "ann", Why: strings.Repeat("x", 100), Outcome: Refused})
		l.Of(Line{What: "launch", Who: "ben", Outcome: OK})
		clock.at = clock.at.Add(time.Millisecond)
	}
	ann, _, dropped := count()
	if ann <= flood || ann > flood+8 || dropped != 10_000-flood {
		t.Errorf("%d lines of ann after %d, which tell of %d that were left out", ann, flood, dropped)
	}
	clock.at = clock.at.Add(-time.Hour)
	l.Of(Line{What: "launch", Who: "eve", Outcome: OK})
	for i := range maxKinds {
		l.sources[fmt.Sprint(i)] = &bucket{left: 5000, at: clock.at}
	}
	if l.Of(Line{What: "launch", Who: "new", Outcome: OK}); len(l.sources) > 4 {
		t.Errorf("%d sources are kept in mind", len(l.sources))
	}
}
