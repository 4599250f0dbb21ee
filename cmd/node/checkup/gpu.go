package checkup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/envgen/doctor"
)

// again is how long after a suspect reading of the GPUs they are read once more: readings are a second old at most.
const again = 1100 * time.Millisecond

// gpus reads this machine's GPUs, twice where the first reading shows something: what passes in a second is nothing.
// Silent says why it tells nothing of them.
func (u *Checkup) gpus(ctx context.Context) (all []doctor.GPU, silent string) {
	first, silent := u.readGPUs(ctx)
	if !slices.ContainsFunc(first, doctor.GPU.Suspect) {
		return first, silent
	}
	select {
	case <-time.After(again):
	case <-ctx.Done():
		return nil, ""
	}
	second, silent := u.readGPUs(ctx)
	for i := range second {
		k := slices.IndexFunc(first, func(g doctor.GPU) bool { return g.Index == second[i].Index })
		if k < 0 {
			continue
		}
		was := first[k]
		if was.MHz != nil && second[i].MHz != nil {
			second[i].MHz = new(max(*was.MHz, *second[i].MHz))
		}
		second[i].Throttle = slices.DeleteFunc(slices.Clone(second[i].Throttle),
			func(why string) bool { return !slices.Contains(was.Throttle, why) })
	}
	return second, silent
}

func (u *Checkup) readGPUs(ctx context.Context) (out []doctor.GPU, silent string) {
	now, err := u.cfg.Usage(ctx)
	if err != nil {
		return nil, "" // facts of a machine that tells nothing of itself have none
	}
	for _, g := range now.GPUs {
		out = append(out, plainGPU(g))
	}
	return out, now.GPUSilent
}

// cacheKept says why this process may not drop the page cache; empty: it may. It only opens the file.
func cacheKept() string {
	f, err := os.OpenFile("/proc/sys/vm/drop_caches", os.O_WRONLY, 0)
	switch {
	case err == nil:
		f.Close()
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return ""
	}
	return fmt.Sprintf("%v; it runs as uid %d", err, os.Geteuid())
}
