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

// folder has a file for each of the user's runs.
func folder(a *app.App) (string, error) {
	dir, err := a.UserFolder("XDG_STATE_HOME", filepath.Join(".local", "state"))
	return filepath.Join(dir, "bench"), err
}

// journal is the open file of a run, locked as long as that goes on.
type journal struct {
	f *os.File
	bench.Run
}

// create begins the file of a new run, which gets another id where one has that already.
func create(dir, first string) (j *journal, id string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", err
	}
	id = first
	for n := 2; ; n++ {
		f, err := os.OpenFile(filepath.Join(dir, id+suffix), os.O_RDWR|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
		if err == nil {
			return &journal{f: f}, id, errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_EX), durable.SyncDir(dir))
		}
		if !errors.Is(err, fs.ErrExist) {
			return nil, "", err
		}
		id = fmt.Sprintf("%s-%d", first, n)
	}
}

// reopen goes on with the file of a run that was interrupted. A line that was cut off is taken away.
func reopen(dir, id string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, id+suffix), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	j := &journal{f: f}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return j, fmt.Errorf("run %s goes on elsewhere: %w", id, err)
	}
	text, err := os.ReadFile(f.Name()) // after the lock: nobody writes now
	if err != nil {
		return j, err
	}
	if end := bytes.LastIndexByte(text, '\n') + 1; end < len(text) {
		text = text[:end]
		if err := f.Truncate(int64(end)); err != nil {
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

// kept are the ids of all runs, the latest last.
func kept(dir string) (ids []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	began := map[string]int64{}
	for _, e := range entries {
		if id, is := strings.CutSuffix(e.Name(), suffix); is {
			if r, err := read(filepath.Join(dir, e.Name())); err == nil {
				ids, began[id] = append(ids, id), r.Headers[0].At.UnixNano()
			}
		}
	}
	slices.SortStableFunc(ids, func(a, b string) int {
		if began[a] < began[b] {
			return -1
		}
		return 1
	})
	return ids, nil
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

// find reads a run: by its id or the begin of one, by the name of its file's benchmarks (the latest of them), or from a
// file that was kept elsewhere.
func find(a *app.App, word string) (bench.Run, error) {
	if strings.HasSuffix(word, suffix) {
		return read(word)
	}
	dir, err := folder(a)
	if err != nil {
		return bench.Run{}, err
	}
	ids, err := kept(dir)
	if err != nil {
		return bench.Run{}, err
	}
	var like []string
	var named *bench.Run
	for _, id := range ids {
		r, err := read(filepath.Join(dir, id+suffix))
		switch {
		case err != nil:
			return r, err
		case id == word:
			return r, nil
		case r.Name() == word:
			named = &r
		}
		if strings.HasPrefix(id, word) {
			like = append(like, id)
		}
	}
	switch {
	case named != nil:
		return *named, nil
	case len(like) == 1:
		return read(filepath.Join(dir, like[0]+suffix))
	case len(like) > 1:
		return bench.Run{}, fmt.Errorf("run %s: it may be %s", word, strings.Join(like, " or "))
	}
	return bench.Run{}, fmt.Errorf("run %s: there is none: `sparkrun bench ls` lists them", word)
}

// completeRuns completes the id of a run.
func completeRuns(a *app.App) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		dir, err := folder(a)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ids, _ := kept(dir) // none to offer then
		return ids, cobra.ShellCompDirectiveDefault
	}
}
