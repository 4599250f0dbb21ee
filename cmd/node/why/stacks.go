package why

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

const (
	stacksWithin = 4 * time.Second
	stacksMost   = 8       // ranks of a node whose stacks are read
	framesMost   = 12      // of a stack
	stacksBytes  = 4 << 20 // what py-spy may write of a program with hundreds of threads
)

// stacksScript runs beside a rank, as exec does: with its user's rights, in its container. It lists what NCCL's flight
// recorder has left, by the names of PyTorch 2.3 to 2.12, and has py-spy read where the program is, without stopping
// it.
const stacksScript = `for base in "$TORCH_FR_DUMP_TEMP_FILE" "$TORCH_NCCL_DEBUG_INFO_TEMP_FILE" \
	"${XDG_CACHE_HOME:-$HOME/.cache}/torch/comm_lib_trace_rank_" /tmp/nccl_trace_rank_; do
	[ -z "$base" ] || stat -c 'dump %Y %n' "$base$3" 2>/dev/null
done
PATH="$PATH:$1"
command -v py-spy >/dev/null 2>&1 || { echo none; exit 0; }
exec timeout 3 py-spy dump --nonblocking --json --pid "$2" 2>&1`

// stacks asks where the programs of ranks are.
func (w *Why) stacks(ctx context.Context, ranks []*watched) {
	ctx, cancel := context.WithTimeout(ctx, stacksWithin)
	defer cancel()
	var asked sync.WaitGroup
	for _, k := range ranks[:min(len(ranks), stacksMost)] {
		asked.Go(func() { w.stacksOf(ctx, k) })
	}
	asked.Wait()
}

func (w *Why) stacksOf(ctx context.Context, k *watched) {
	l := &k.look
	if l.Main.State == "T" || l.Main.In == "frozen" {
		return // a command beside it may be stopped, too
	}
	beside := ""
	if args := w.cfg.Proc.Args(l.PID); len(args) > 0 {
		beside = path.Dir(args[0]) // of a virtual environment
	}
	var out bytes.Buffer
	_, err := w.cfg.Agent.Exec(ctx, k.key, shim.Exec{
		Session: uuid.NewString(), Rank: l.Rank,
		Argv: []string{"/bin/sh", "-c", stacksScript, "sh", beside, strconv.Itoa(w.cfg.Proc.InnerPID(l.PID)),
			strconv.Itoa(l.Rank)},
	}, func() error { return nil }, func(_ launcher.Stream, data []byte) error {
		if out.Len() < stacksBytes {
			out.Write(data)
		}
		return nil
	})
	if err != nil {
		l.Unseen = plain.Line(err.Error())
		return
	}
	l.Dumps, l.Stacks, l.Unseen = readStacks(out.Bytes(), l.Since)
}

// readStacks reads what the script wrote: the files that are newer than the rank, and py-spy's word on its main
// thread.
func readStacks(b []byte, since time.Time) (dumps, stack []string, unseen string) {
	for {
		line, rest, more := bytes.Cut(b, []byte("\n"))
		f := strings.SplitN(string(line), " ", 3)
		if len(f) != 3 || f[0] != "dump" {
			break
		}
		if at, err := strconv.ParseInt(f[1], 10, 64); err == nil && time.Unix(at, 0).After(since) {
			dumps = append(dumps, plain.Line(f[2]))
		}
		if b = rest; !more {
			break
		}
	}
	if strings.TrimSpace(string(b)) == "none" {
		return dumps, nil, "py-spy is neither in PATH nor beside its program (pip install py-spy)"
	}
	var threads []struct {
		Name   string `json:"thread_name"`
		PID    int    `json:"pid"`
		TID    int    `json:"os_thread_id"`
		Frames []struct {
			Name string `json:"name"`
			File string `json:"short_filename"`
			Line int    `json:"line"`
		} `json:"frames"`
	}
	if err := json.Unmarshal(b, &threads); err != nil {
		said, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
		return dumps, nil, "py-spy: " + cmp.Or(plain.Line(plain.Cut(said, 200)), "it did not answer")
	}
	for _, t := range threads {
		if t.Name != "MainThread" && t.TID != t.PID {
			continue
		}
		for _, f := range t.Frames[:min(len(t.Frames), framesMost)] {
			stack = append(stack, plain.Line(fmt.Sprintf("%s (%s:%d)", f.Name, f.File, f.Line)))
		}
		break
	}
	return dumps, stack, ""
}
