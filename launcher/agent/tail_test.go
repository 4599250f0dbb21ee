package agent

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// told writes down what a reader is told: bytes, and remarks in brackets.
func told(t *testing.T, dir string, from int64) string {
	t.Helper()
	var got strings.Builder
	r := LogsRequest{Ranks: []int{0}, Cursors: []launcher.Cursor{{Stream: launcher.Stdout, Offset: from}}}
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
	for name, text := range map[string]string{"rank-0.out": "01234", "rank-0.out.5": "56789", "rank-0.out.20": "abcde", "rank-0.out.25": "f", "rank-0.err": ""} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const gap = "[rank 0: 10 B of its stdout were not kept (--max-output)]"
	for from, want := range map[int64]string{
		0: "0123456789" + gap + "abcdef", 3: "3456789" + gap + "abcdef", 5: "56789" + gap + "abcdef", 9: "9" + gap + "abcdef",
		10: gap + "abcdef", 12: "[rank 0: 8 B of its stdout were not kept (--max-output)]abcdef", 22: "cdef", 25: "f", 26: "", 99: "",
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

// A follower crosses the parts' borders as they come to be, and misses nothing.
func TestFollowingParts(t *testing.T) {
	n := newNode(t)
	a := n.as(`i=0; while [ $i -lt 4 ]; do head -c 50000 /dev/zero | tr '\0' $i; i=$((i+1)); done`)
	a.Spec.MaxOutput = 1 // as little as there can be: eight parts of 64 KiB
	n.prepare(a)
	n.hear(launcher.Prepared)
	var got strings.Builder
	done := make(chan error, 1)
	go func() {
		done <- n.a.Logs(n.ctx, LogsRequest{Key: key, Ranks: []int{0}, Follow: true}, func(c launcher.Chunk) error {
			got.Write(c.Data)
			return nil
		})
	}()
	n.start(key, 0)
	must(t, <-done)
	want := ""
	for i := range 4 {
		want += strings.Repeat(fmt.Sprint(i), 50000)
	}
	if got.String() != want {
		t.Errorf("%d bytes, want %d", got.Len(), len(want))
	}
	if parts, _ := filepath.Glob(filepath.Join(n.cfg.LogDir, string(job), "1", "rank-0.out*")); len(parts) != 4+1 { // and its stamps
		t.Errorf("parts: %v", parts)
	}
}

func TestKeep(t *testing.T) {
	now := time.Now()
	var jobs []loggedJob
	for i, name := range []string{"new", "mid", "old", "older", "ben's oldest"} {
		user := "ann"
		if strings.HasPrefix(name, "ben") {
			user = "ben"
		}
		jobs = append(jobs, loggedJob{name, user, now.Add(-time.Duration(i) * time.Hour), func() int64 { return 100 }})
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
		if d := cmp.Diff(tc.want, tc.keep.beyond(slices.Clone(jobs), now)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// One user's many jobs leave another's last output where it is; whose a job is, its folder tells.
func TestManyJobsOfOneUserLeaveAnothersOutput(t *testing.T) {
	n := newNode(t, func(cfg *Config) { cfg.Keep = Keep{Jobs: 3} })
	put := func(id, owner string, age time.Duration) {
		dir := filepath.Join(n.cfg.LogDir, id)
		must(t, os.MkdirAll(dir, 0o750))
		must(t, os.WriteFile(filepath.Join(dir, userName), []byte(owner), 0o640))
		at := time.Now().Add(-age)
		must(t, os.Chtimes(dir, at, at))
	}
	put("ben2345678", "ben", 9*time.Hour)
	for i := range 5 {
		put(fmt.Sprintf("ann234567%d", i+2), "ann", time.Duration(5-i)*time.Hour)
	}
	n.a.pruneLogs()
	left, err := filepath.Glob(filepath.Join(n.cfg.LogDir, "*"))
	must(t, err)
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if d := cmp.Diff([]string{"ann2345675", "ann2345676", "ben2345678"}, left); d != "" {
		t.Errorf("left (-want +got): %s", d)
	}
	me, err := user.Current()
	must(t, err)
	n.launch(n.as("true", func(a *launcher.Assignment) { a.Spec.User = me.Username }))
	n.hear(launcher.Ended)
	if got := n.a.userOf(string(job)); got != me.Username {
		t.Errorf("the job is said to be of %q, want %q", got, me.Username)
	}
}

// What a full disk cost is told to who reads, while the job runs and after it.
func TestLostOutputIsTold(t *testing.T) {
	n := newNode(t)
	n.launch(n.as(`gate; yes gone | head -c 300000; exit 3`))
	shims := n.shimPIDs()
	if len(shims) != 1 {
		t.Fatalf("shims %v", shims)
	}
	// A limit of file sizes stands for the disk.
	must(t, unix.Prlimit(shims[0], unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 40 << 10, Max: unix.RLIM_INFINITY}, nil))
	n.pass(0)
	for _, follow := range []bool{true, false} {
		got, last := 0, ""
		must(t, n.a.Logs(n.ctx, LogsRequest{Key: key, Ranks: []int{0}, Follow: follow}, func(c launcher.Chunk) error {
			got += len(c.Data)
			if c.Note != "" {
				last = c.Note
			}
			return nil
		}))
		if want := "rank 0: 253 KiB of its stdout were lost at byte 40960: file too large"; got != 40<<10 || last != want {
			t.Errorf("follow %v: %d bytes and %q, want %q", follow, got, last, want)
		}
	}
	if ev := n.hear(launcher.Exited); ev.Exit.Code != 3 {
		t.Errorf("exit %+v", ev.Exit)
	}
}

// A disk that is so full that not even the loss can be noted on it.
func TestLostOutputIsToldWithoutItsFile(t *testing.T) {
	n := newNode(t)
	n.launch(n.as(`gate; yes gone | head -c 300000`))
	must(t, unix.Prlimit(n.shimPIDs()[0], unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 40 << 10, Max: unix.RLIM_INFINITY}, nil))
	must(t, os.MkdirAll(filepath.Join(n.a.logDir(key), lostName), 0o700))
	n.pass(0)
	last := ""
	must(t, n.a.Logs(n.ctx, LogsRequest{Key: key, Ranks: []int{0}, Follow: true}, func(c launcher.Chunk) error {
		if c.Note != "" {
			last = c.Note
		}
		return nil
	}))
	want := "rank 0: 253 KiB of its stdout were lost at byte 40960: file too large"
	if last != want {
		t.Errorf("%q, want %q", last, want)
	}

	// There is room again when the try is forgotten, and from then on the file alone knows.
	must(t, os.Remove(filepath.Join(n.a.logDir(key), lostName)))
	n.hear(launcher.Ended)
	n.order(launcher.Order{Forget: &key})
	for end := time.Now().Add(time.Minute); n.a.try(key) != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the try is not forgotten")
		}
	}
	last = ""
	must(t, n.a.Logs(n.ctx, LogsRequest{Key: key, Ranks: []int{0}}, func(c launcher.Chunk) error {
		last += c.Note
		return nil
	}))
	if last != want {
		t.Errorf("after the try was forgotten: %q, want %q", last, want)
	}
}
