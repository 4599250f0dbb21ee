package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
)

// reading is one call of Logs and what it got so far.
type reading struct {
	cancel context.CancelFunc
	done   chan error
	slow   func(launcher.Chunk) // called in each fn

	mu   sync.Mutex
	got  map[launcher.Cursor][]byte // Offset: where it began
	next map[launcher.Cursor]int64
	more chan struct{}
}

func (n *node) read(r logs.Request, slow func(launcher.Chunk)) *reading {
	ctx, cancel := context.WithCancel(n.ctx)
	if r.Key == (launcher.Key{}) {
		r.Key = key
	}
	rd := &reading{cancel: cancel, done: make(chan error, 1), slow: slow,
		got: map[launcher.Cursor][]byte{}, next: map[launcher.Cursor]int64{}, more: make(chan struct{}, 1)}
	for _, c := range r.Cursors {
		rd.next[launcher.Cursor{Rank: c.Rank, Stream: c.Stream}] = c.Offset
	}
	a := n.a
	go func() { rd.done <- a.Logs(ctx, r, rd.take) }()
	n.t.Cleanup(cancel)
	return rd
}

func (r *reading) take(c launcher.Chunk) error {
	at := launcher.Cursor{Rank: c.Rank, Stream: c.Stream}
	r.mu.Lock()
	if c.Offset != r.next[at] {
		r.mu.Unlock()
		return fmt.Errorf("rank %d %s: chunk at %d, want %d", c.Rank, c.Stream, c.Offset, r.next[at])
	}
	r.next[at] += int64(len(c.Data))
	r.got[at] = append(r.got[at], c.Data...)
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
	if r.slow != nil {
		r.slow(c)
	}
	return nil
}

func (r *reading) text(rank int, s launcher.Stream) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.got[launcher.Cursor{Rank: rank, Stream: s}])
}

func (r *reading) cursors() []launcher.Cursor {
	r.mu.Lock()
	defer r.mu.Unlock()
	var cs []launcher.Cursor
	for c, offset := range r.next {
		c.Offset = offset
		cs = append(cs, c)
	}
	return cs
}

// until waits for a text at the end of a rank's stdout.
func (n *node) until(r *reading, rank int, text string) {
	n.t.Helper()
	for !strings.HasSuffix(r.text(rank, launcher.Stdout), text) {
		select {
		case <-r.more:
		case err := <-r.done:
			n.t.Fatalf("ended with %v before %q; got %q", err, text, r.text(rank, launcher.Stdout))
		case <-n.ctx.Done():
			n.t.Fatalf("waited in vain for %q; got %q", text, r.text(rank, launcher.Stdout))
		}
	}
}

func (n *node) finish(r *reading) {
	n.t.Helper()
	select {
	case err := <-r.done:
		must(n.t, err)
	case <-n.ctx.Done():
		n.t.Fatal("the output does not end")
	}
}

func TestLogsWithoutFollowing(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("echo out $RANK; echo err $RANK >&2; gate", ranks(3, 3)))
	n.poll("all output", func() bool {
		r := n.read(logs.Request{Ranks: []int{3, 4, 5}}, nil)
		n.finish(r)
		return len(r.got) == 6
	})
	// Rank ranges: what is asked for, each once, and nothing else.
	r := n.read(logs.Request{Ranks: []int{5, 3, 5, 77}}, nil)
	n.finish(r)
	want := map[launcher.Cursor][]byte{
		{Rank: 3, Stream: "out"}: []byte("out 3\n"), {Rank: 3, Stream: "err"}: []byte("err 3\n"),
		{Rank: 5, Stream: "out"}: []byte("out 5\n"), {Rank: 5, Stream: "err"}: []byte("err 5\n"),
	}
	if d := cmp.Diff(want, r.got); d != "" {
		t.Error(d)
	}
	// From the middle, and from behind the end.
	r = n.read(logs.Request{Ranks: []int{3, 4}, Cursors: []launcher.Cursor{
		{Rank: 3, Stream: "out", Offset: 4}, {Rank: 3, Stream: "err", Offset: 6}, {Rank: 4, Stream: "out", Offset: 999},
		{Rank: 5, Stream: "out", Offset: 1},
	}}, nil)
	n.finish(r)
	want = map[launcher.Cursor][]byte{{Rank: 3, Stream: "out"}: []byte("3\n"), {Rank: 4, Stream: "err"}: []byte("err 4\n")}
	if d := cmp.Diff(want, r.got); d != "" {
		t.Error(d)
	}
	for _, id := range []launcher.JobID{"../../../etc", "a/b/c/d", "", "..", "abcd\x00"} {
		err := n.a.Logs(n.ctx, logs.Request{Key: launcher.Key{Job: id, Generation: 1}, Ranks: []int{0}}, nil)
		if !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("job id %q: %v", id, err)
		}
	}
	if err := n.a.Logs(n.ctx,
		logs.Request{Key: key, Ranks: []int{3}, Cursors: []launcher.Cursor{{Rank: 3, Stream: "out", Offset: -1}}},
		nil); err == nil {
		t.Error("a cursor below zero is no error")
	}
	wantErr := errors.New("reader went away")
	if err := n.a.Logs(n.ctx, logs.Request{Key: key, Ranks: []int{3}},
		func(launcher.Chunk) error { return wantErr }); err != wantErr {
		t.Errorf("error %v", err)
	}
}

func TestFollowFromBeforeTheStartToTheEnd(t *testing.T) {
	n := newNode(t)
	n.prepare(n.as("echo one; gate; echo two; echo oops >&2; gate; printf three", ranks(0, 2)))
	n.hear(launcher.Prepared)
	r := n.read(logs.Request{Ranks: []int{0, 1}, Follow: true}, nil)
	n.start(key, 0)
	n.until(r, 0, "one\n")
	n.until(r, 1, "one\n")
	n.pass(0)
	n.until(r, 0, "two\n")
	n.pass(0)
	n.until(r, 0, "three") // without a newline, at once
	if r.text(1, launcher.Stdout) != "one\n" {
		t.Error("rank 1 went on by itself")
	}
	n.pass(1)
	n.pass(1)
	n.finish(r)
	if r.text(1, launcher.Stdout) != "one\ntwo\nthree" || r.text(0, launcher.Stderr) != "oops\n" {
		t.Errorf("got %v", r.got)
	}
	n.hear(launcher.Ended)
	for _, when := range []string{"after the end", "after it was forgotten"} {
		again := n.read(logs.Request{Ranks: []int{0, 1}, Follow: true}, nil)
		n.finish(again)
		if d := cmp.Diff(r.got, again.got); d != "" {
			t.Errorf("%s: %s", when, d)
		}
		n.order(launcher.Order{Forget: &key})
		n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	}
}

// A rank's follower is let go when his rank has ended, though others run.
// Who reads the record may be faster than the leader's order.
func TestFollowOfWhatIsYetToBePrepared(t *testing.T) {
	n := newNode(t)
	rd := n.read(logs.Request{Ranks: []int{0}, Follow: true}, nil)
	n.poll("a reader that waits", func() bool {
		n.a.mu.Lock()
		defer n.a.mu.Unlock()
		return len(n.a.feeds) > 1 // beside the test's own
	})
	n.launch(n.as("echo late"))
	n.finish(rd)
	if got := rd.text(0, launcher.Stdout); got != "late\n" {
		t.Errorf("got %q", got)
	}
}

func TestFollowEndsWithItsRanks(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("gate; echo $RANK", ranks(0, 3)))
	r := n.read(logs.Request{Ranks: []int{0, 2}, Follow: true}, nil)
	n.pass(0)
	n.pass(2)
	n.finish(r)
	if r.text(0, launcher.Stdout)+r.text(2, launcher.Stdout) != "0\n2\n" {
		t.Errorf("got %v", r.got)
	}
}

func TestFollowOfWhatNeverRanEndsAndLeavesNoTrace(t *testing.T) {
	n := newNode(t)
	n.finish(n.read(logs.Request{Key: launcher.Key{Job: "neverwas", Generation: 1}, Ranks: []int{0}, Follow: true}, nil))
	if dirs, _ := os.ReadDir(n.cfg.LogDir); len(dirs) > 0 {
		t.Errorf("asking left %v", dirs)
	}
}

func TestFollowOfWhatIsEndedInPrepare(t *testing.T) {
	change, reached, release := blocked(t)
	n := newNode(t, change)
	n.prepare(n.as("true"))
	reached()
	r := n.read(logs.Request{Ranks: []int{0}, Follow: true}, nil)
	n.end(key, 0)
	n.finish(r)
	release()
}

func TestFollowWhileTheAgentIsReopened(t *testing.T) {
	n := newNode(t)
	n.launch(n.as(`i=0; while [ $i -lt 4000 ]; do echo "$RANK line $i"; i=$((i+1)); done; gate; echo last`, ranks(0, 2)))
	want := map[int]*bytes.Buffer{0: {}, 1: {}}
	var at []launcher.Cursor
	for range 6 {
		r := n.read(logs.Request{Ranks: []int{0, 1}, Follow: true, Cursors: at}, nil)
		n.poll("some output", func() bool { return len(r.cursors()) > 0 })
		n.drop()
		if err := <-r.done; !errors.Is(err, context.Canceled) {
			t.Fatalf("the reader of a closed agent got %v", err)
		}
		at = r.cursors()
		for rank, b := range want {
			b.WriteString(r.text(rank, launcher.Stdout))
		}
		n.open()
	}
	r := n.read(logs.Request{Ranks: []int{0, 1}, Follow: true, Cursors: at}, nil)
	n.pass(0)
	n.pass(1)
	n.finish(r)
	for rank, b := range want {
		b.WriteString(r.text(rank, launcher.Stdout))
		var whole strings.Builder
		for i := range 4000 {
			fmt.Fprintf(&whole, "%d line %d\n", rank, i)
		}
		whole.WriteString("last\n")
		if b.String() != whole.String() {
			t.Errorf("rank %d: %d bytes, want %d", rank, b.Len(), whole.Len())
		}
	}
}

// 20 MB through a reader: every byte, in order, and the other rank's few lines
// do not wait for them.
func TestFollowMuchOutput(t *testing.T) {
	n := newNode(t)
	n.launch(n.as(`gate; if [ $RANK = 0 ]; then seq 1 2700000; else echo small; fi; gate`, ranks(0, 2)))
	r := n.read(logs.Request{Ranks: []int{0, 1}, Follow: true}, nil)
	n.pass(0)
	n.pass(1)
	n.until(r, 1, "small\n")
	n.until(r, 0, "\n2700000\n")
	n.pass(0)
	n.pass(1)
	n.finish(r)
	var want bytes.Buffer
	for i := 1; i <= 2700000; i++ {
		fmt.Fprintln(&want, i)
	}
	if want.Len() < 20e6 {
		t.Fatalf("only %d bytes", want.Len())
	}
	if got := r.text(0, launcher.Stdout); got != want.String() {
		t.Errorf("%d bytes, want %d", len(got), want.Len())
	}
}

// Nobody waits behind a rank that writes without a pause.
func TestANoisyRankHidesNoOther(t *testing.T) {
	n := newNode(t)
	n.launch(n.as(`if [ $RANK = 0 ]; then exec yes; fi; gate; echo heard`, ranks(0, 2)))
	heard := make(chan struct{})
	r := n.read(logs.Request{Ranks: []int{0, 1}, Follow: true}, func(c launcher.Chunk) {
		if c.Rank == 1 {
			close(heard)
		}
		<-time.After(time.Millisecond) // slower than yes
	})
	n.until(r, 0, "\n")
	n.pass(1)
	select {
	case <-heard:
	case <-n.ctx.Done():
		t.Fatal("rank 1 was never heard")
	}
	r.cancel()
	if err := <-r.done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled, and it says %v", err)
	}
}

// Rows 33: a reader that stands still costs the ranks nothing, and finds all
// when he goes on, whatever has happened meanwhile. More files change than
// inotify's queue holds.
func TestAReaderThatStandsStill(t *testing.T) {
	n := newNode(t)
	const lines = 12000
	n.launch(n.as(fmt.Sprintf(`echo first; gate; i=0; while [ $i -lt %d ]; do echo $i; echo $i >&2; i=$((i+1)); done; gate`, lines), ranks(0, 2)))
	stuck, goOn := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(stuck); <-goOn })
	r := n.read(logs.Request{Ranks: []int{0, 1}, Follow: true}, func(launcher.Chunk) { once() })
	<-stuck
	n.pass(0)
	n.pass(1)
	// Each rank ends up behind its last line though nobody reads.
	n.poll("the ranks' last lines", func() bool {
		for rank := range 2 {
			b, _ := os.ReadFile(filepath.Join(n.cfg.LogDir, string(job), "1", fmt.Sprintf("rank-%d.err", rank)))
			if !bytes.HasSuffix(b, fmt.Appendf(nil, "\n%d\n", lines-1)) {
				return false
			}
		}
		return true
	})
	close(goOn)
	for rank := range 2 {
		n.until(r, rank, fmt.Sprintf("\n%d\n", lines-1)) // while they still run
	}
	n.pass(0)
	n.pass(1)
	n.finish(r)
	for rank := range 2 {
		var want strings.Builder
		for i := range lines {
			fmt.Fprintln(&want, i)
		}
		if r.text(rank, launcher.Stderr) != want.String() || r.text(rank, launcher.Stdout) != "first\n"+want.String() {
			t.Errorf("rank %d: %d and %d bytes, want %d", rank, len(r.text(rank, "out")), len(r.text(rank, "err")), want.Len())
		}
	}
}

func TestCancellationEndsAReaderPromptly(t *testing.T) {
	n := newNode(t)
	n.launch(n.as("echo here; gate"))
	r := n.read(logs.Request{Ranks: []int{0}, Follow: true}, nil)
	n.until(r, 0, "here\n")
	began := time.Now()
	r.cancel()
	if err := <-r.done; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("it took %s", d)
	}
	n.pass(0)
	n.hear(launcher.Ended)
}

func TestOldOutputIsPruned(t *testing.T) {
	n := newNode(t, func(c *Config) { c.Keep.Jobs = 3 })
	output := func(id launcher.JobID) string { return filepath.Join(n.cfg.LogDir, string(id)) }
	now := time.Now()
	old := func(id launcher.JobID, hours int) {
		must(t, os.MkdirAll(output(id)+"/1", 0o750))
		at := now.Add(-time.Duration(hours) * time.Hour)
		must(t, os.Chtimes(output(id), at, at))
	}
	n.launch(n.as("gate", named("alive123")))
	old("alive123", 99) // the oldest of all, and it runs
	for i := range 5 {
		old(launcher.JobID(fmt.Sprintf("gone%d", i)), 10-i)
	}
	must(t, os.Mkdir(output("lost+found"), 0o700))
	must(t, os.Chtimes(output("lost+found"), time.Unix(0, 0), time.Unix(0, 0)))
	n.launch(n.as("true"))
	n.hear(launcher.Ended)
	n.order(launcher.Order{Forget: &key})
	var left []string
	n.poll("the pruning", func() bool {
		left = nil
		dirs, _ := os.ReadDir(n.cfg.LogDir)
		for _, d := range dirs {
			left = append(left, d.Name())
		}
		return len(left) < 8 && len(n.a.Ledger()) == 1
	})
	n.poll("its end", func() bool { dirs, _ := os.ReadDir(n.cfg.LogDir); return len(dirs) == 5 })
	for _, id := range []string{"alive123", string(job), "gone3", "gone4", "lost+found"} {
		if _, err := os.Stat(filepath.Join(n.cfg.LogDir, id)); err != nil {
			t.Error(err)
		}
	}
	n.pass(0)
}

// What ranks print has a time that is near, and a past attempt is read whole without
// its ranks being named.
func TestLogsOfAPastAttempt(t *testing.T) {
	n := newNode(t)
	began := time.Now()
	n.launch(n.as("echo rank $RANK", ranks(2, 2)))
	n.hear(launcher.Ended)
	n.order(launcher.Order{Forget: &key})
	n.poll("an empty ledger", func() bool { return len(n.a.Ledger()) == 0 })
	got := map[int]string{}
	must(t, n.a.Logs(n.ctx, logs.Request{Key: key, Follow: true, Times: true}, func(c launcher.Chunk) error {
		got[c.Rank] += string(c.Data)
		if c.Time.Before(began.Add(-time.Second)) || c.Time.After(time.Now().Add(time.Second)) {
			t.Errorf("rank %d at %s", c.Rank, c.Time)
		}
		return nil
	}))
	if d := cmp.Diff(map[int]string{2: "rank 2\n", 3: "rank 3\n"}, got); d != "" {
		t.Error(d)
	}
	note := ""
	other := launcher.Key{Job: key.Job, Generation: 9}
	must(t, n.a.Logs(n.ctx, logs.Request{Key: other}, func(c launcher.Chunk) error { note = c.Note; return nil }))
	if !strings.Contains(note, "(attempt 9) is kept here") {
		t.Errorf("of an attempt that never was: %q", note)
	}
}
