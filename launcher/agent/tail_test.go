package agent

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
)

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
		done <- n.a.Logs(n.ctx, logs.Request{Key: key, Ranks: []int{0}, Follow: true}, func(c launcher.Chunk) error {
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
	if parts, _ := filepath.Glob(filepath.Join(n.cfg.LogDir, string(job), "1",
		"rank-0.out*")); len(parts) != 4+1 { // and its stamps
		t.Errorf("parts: %v", parts)
	}
}

// One user's many jobs leave another's last output where it is; whose a job is, its folder tells.
func TestManyJobsOfOneUserLeaveAnothersOutput(t *testing.T) {
	n := newNode(t, func(cfg *Config) { cfg.Keep = logs.Keep{Jobs: 3} })
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
		must(t, n.a.Logs(n.ctx, logs.Request{Key: key, Ranks: []int{0}, Follow: follow}, func(c launcher.Chunk) error {
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
	must(t, os.MkdirAll(filepath.Join(n.a.logDir(key), "lost.json"), 0o700))
	n.pass(0)
	last := ""
	must(t, n.a.Logs(n.ctx, logs.Request{Key: key, Ranks: []int{0}, Follow: true}, func(c launcher.Chunk) error {
		if c.Note != "" {
			last = c.Note
		}
		return nil
	}))
	want := "rank 0: 253 KiB of its stdout were lost at byte 40960: file too large"
	if last != want {
		t.Errorf("%q, want %q", last, want)
	}

	// There is room again when the attempt is forgotten, and from then on the file alone knows.
	must(t, os.Remove(filepath.Join(n.a.logDir(key), "lost.json")))
	n.hear(launcher.Ended)
	n.order(launcher.Order{Forget: &key})
	for end := time.Now().Add(time.Minute); n.a.attempt(key) != nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the attempt is not forgotten")
		}
	}
	last = ""
	must(t, n.a.Logs(n.ctx, logs.Request{Key: key, Ranks: []int{0}}, func(c launcher.Chunk) error {
		last += c.Note
		return nil
	}))
	if last != want {
		t.Errorf("after the attempt was forgotten: %q, want %q", last, want)
	}
}
