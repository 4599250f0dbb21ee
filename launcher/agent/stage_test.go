package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
)

// The page cache is dropped for a job that takes the GPU and has the node for
// itself, and a disk that can't is no reason to refuse.
func TestPageCacheIsDropped(t *testing.T) {
	gpu := func(a *launcher.Assignment) { a.Spec.Stages[0].GPU = true }
	for name, c := range map[string]struct {
		change []func(*launcher.Assignment)
		beside bool
		fails  error
		want   int64
	}{
		"GPU job":   {change: []func(*launcher.Assignment){gpu}, want: 1},
		"other job": {want: 0},
		"keep": {change: []func(*launcher.Assignment){gpu,
			func(a *launcher.Assignment) { a.Spec.KeepCache = true }}},
		"share": {change: []func(*launcher.Assignment){gpu,
			func(a *launcher.Assignment) { a.Spec.Share = true }}},
		"beside another":      {change: []func(*launcher.Assignment){gpu}, beside: true},
		"that cannot be done": {change: []func(*launcher.Assignment){gpu}, fails: syscall.EROFS, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var dropped atomic.Int64
			n := newNode(t, func(cfg *Config) {
				cfg.DropCache = func() error { dropped.Add(1); return c.fails }
			})
			if c.beside {
				n.prepare(n.as("gate", named("beside2345")))
				n.hear(launcher.Prepared)
			}
			n.prepare(n.as("true", c.change...))
			n.hear(launcher.Prepared)
			if got := dropped.Load(); got != c.want {
				t.Errorf("dropped %d times, want %d", got, c.want)
			}
		})
	}
}

// Ranks run in the folder of what their job has brought, which the node lays
// out before it looks for anything in it.
func TestRanksRunWhereTheirFilesAre(t *testing.T) {
	dir := t.TempDir()
	n := newNode(t, func(cfg *Config) {
		cfg.StageDir = dir
		cfg.Files = bringer(func(_ context.Context, as launcher.Assignment, uid, _ uint32) error {
			if uid != uint32(os.Getuid()) {
				t.Errorf("laid out for %d", uid)
			}
			tree := filepath.Join(dir, string(as.Job), "tree")
			if err := os.MkdirAll(tree, 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(tree, "run.sh"),
				[]byte("#!/bin/sh\necho $PWD $SPARKRUN_STAGE > $WITNESS\n"), 0o755)
		})
	})
	as := n.as("", func(a *launcher.Assignment) {
		a.Spec.Staged = &launcher.Staged{Sum: strings.Repeat("0", 64), Workdir: true}
		a.Spec.Stages[0].Argv = launcher.Lits("./run.sh")
	})
	if _, _, err := n.a.Explain(n.ctx, as, ""); err != nil {
		t.Errorf("a dry run looks for what has yet to come: %v", err)
	}
	n.launch(as)
	n.hear(launcher.Ended)
	tree := filepath.Join(dir, string(job), "tree")
	if got := n.witness(); !slices.Equal(got, []string{tree + ":" + tree}) {
		t.Errorf("the rank wrote %q", got)
	}
}

// What a job has brought goes with its output, and counts as such.
func TestStagedFilesArePruned(t *testing.T) {
	base := t.TempDir()
	a := &Agent{cfg: Config{LogDir: filepath.Join(base, "logs"), StageDir: filepath.Join(base, "stage"),
		Keep: logs.Keep{Jobs: 1}}}
	now := time.Now()
	for i, dir := range []string{"logs/both", "stage/both", "stage/onlyhere", "stage/newest"} {
		path := filepath.Join(base, dir)
		must(t, os.MkdirAll(filepath.Join(path, "tree"), 0o755))
		must(t, os.WriteFile(filepath.Join(path, "tree", "file"), make([]byte, 10), 0o644))
		must(t, os.Chtimes(path, now, now.Add(time.Duration(i-9)*time.Hour)))
	}
	for _, j := range logs.Jobs(a.keptDirs(), a.userOf) {
		if want := map[string]int64{"both": 20, "onlyhere": 10, "newest": 10}[j.Name]; j.Bytes() != want {
			t.Errorf("%s counts %d bytes, want %d", j.Name, j.Bytes(), want)
		}
	}
	a.pruneLogs()
	left, err := filepath.Glob(filepath.Join(base, "*", "*"))
	must(t, err)
	if want := []string{filepath.Join(base, "stage", "newest")}; !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
}

// bringer is Files of nobody's.
type bringer func(ctx context.Context, as launcher.Assignment, uid, gid uint32) error

func (b bringer) Bring(ctx context.Context, as launcher.Assignment, uid, gid uint32) error {
	return b(ctx, as, uid, gid)
}

func (bringer) UserOf(launcher.JobID) string { return "" }
