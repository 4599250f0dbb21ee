package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

const suffix = ".jsonl"

func stateFolder(a *app.App) (string, error) {
	return a.UserFolder("XDG_STATE_HOME", filepath.Join(".local", "state"))
}

// folder has a file for each of the user's runs.
func folder(a *app.App) (string, error) {
	dir, err := stateFolder(a)
	return filepath.Join(dir, "bench"), err
}

// journal is the open file of a run, locked as long as that goes on.
type journal struct {
	f *os.File
	bench.Run
}

// create begins the file of a new run. As with reopen the journal is never nil.
func create(a *app.App, id string) (j *journal, err error) {
	j = &journal{}
	dir, err := folder(a)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		j.f, err = os.OpenFile(filepath.Join(dir, id+suffix), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	}
	if err != nil {
		return j, err
	}
	return j, errors.Join(unix.Flock(int(j.f.Fd()), unix.LOCK_EX), durable.SyncDir(dir))
}

// reopen goes on with the file of a run that was interrupted. A line that was cut off is taken away.
func reopen(path string) (j *journal, err error) {
	j = &journal{}
	if j.f, err = os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0); err != nil {
		return j, err
	}
	if err := unix.Flock(int(j.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return j, fmt.Errorf("%s: the run goes on elsewhere: %w", path, err)
	}
	text, err := os.ReadFile(path) // after the lock: nobody writes now
	if err != nil {
		return j, err
	}
	if end := bytes.LastIndexByte(text, '\n') + 1; end < len(text) {
		text = text[:end]
		if err := j.f.Truncate(int64(end)); err != nil {
			return j, err
		}
	}
	j.Run, err = bench.ReadRun(text)
	return j, err
}

// add writes a line, which is on the disk when it returns.
func (j *journal) add(l bench.Line) error {
	text, err := json.Marshal(l)
	if err == nil {
		_, err = j.f.Write(append(text, '\n'))
	}
	if err = errors.Join(err, j.f.Sync()); err != nil {
		return fmt.Errorf("keep what was measured: %w", err)
	}
	if l.Result != nil {
		j.Results = append(j.Results, *l.Result)
	}
	return nil
}

// saved is a run with its file.
type saved struct {
	path string
	bench.Run
}

// kept are all runs, the latest last.
func kept(a *app.App) (all []saved, err error) {
	dir, err := folder(a)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if path := filepath.Join(dir, e.Name()); strings.HasSuffix(path, suffix) {
			if r, err := read(path); err == nil { // else it has not even begun
				all = append(all, saved{path, r})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b saved) int { return a.Headers[0].At.Compare(b.Headers[0].At) })
	return all, nil
}

func read(path string) (bench.Run, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return bench.Run{}, err
	}
	r, err := bench.ReadRun(text)
	if err != nil {
		err = fmt.Errorf("%s: %w", path, err)
	}
	return r, err
}

// over is a command about runs. Each argument is one: the latest whose id, name of benchmarks or begin of an id it is,
// or a file that was kept elsewhere.
func over(a *app.App, do func([]bench.Run) error) func(*cobra.Command, []string) error {
	return func(_ *cobra.Command, args []string) error {
		all, err := kept(a)
		if err != nil {
			return err
		}
		runs := make([]bench.Run, len(args))
		for i, word := range args {
			if runs[i], err = pick(all, word); err != nil {
				return err
			}
		}
		return do(runs)
	}
}

func pick(all []saved, word string) (bench.Run, error) {
	if strings.HasSuffix(word, suffix) {
		return read(word)
	}
	for _, is := range []func(saved) bool{
		func(r saved) bool { return r.ID() == word },
		func(r saved) bool { return r.Name() == word },
		func(r saved) bool { return strings.HasPrefix(r.ID(), word) },
	} {
		for _, r := range slices.Backward(all) {
			if is(r) {
				return r.Run, nil
			}
		}
	}
	return bench.Run{}, fmt.Errorf("run %s: there is none: `sparkrun bench ls` lists them", word)
}

// completeRuns completes the id of a run.
func completeRuns(a *app.App) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) (ids []string, _ cobra.ShellCompDirective) {
		all, _ := kept(a) // none to offer then
		for _, r := range all {
			ids = append(ids, r.ID())
		}
		return ids, cobra.ShellCompDirectiveDefault
	}
}
