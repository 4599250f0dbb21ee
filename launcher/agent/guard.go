package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// The guard keeps a node's ranks from using up its memory. Where CPU and GPU share the
// memory, one allocation too many can freeze the machine, sshd included, and the kernel's
// OOM killer neither sees what the GPU holds nor comes in time. So an attempt is ended while
// the machine still answers: headroom says when, victim which one.
type guard struct {
	headroom
	read    func() (sample, error)
	busy    func() bool                 // there is something to end
	changed <-chan struct{}             // busy may have changed
	end     func(s sample, text string) // returns once the memory is free again
	logger  *slog.Logger
	told    [ends + 1]time.Time // when a problem was logged last, by verdict
}

// tellAgain is the time between two warnings of one kind.
const tellAgain = 10 * time.Minute

// guard watches memory until ctx ends.
func (a *Agent) guard(ctx context.Context) {
	news := a.subscribe(bell)
	defer a.unsubscribe(news)
	g := &guard{headroom: headroom{floor: a.cfg.MemoryFloor}, read: readSample, busy: a.anyStarted, changed: news.more,
		logger: a.cfg.Logger}
	var last launcher.Key
	g.end = func(s sample, text string) {
		var err error
		last, err = a.endLargest(ctx, s, text, last)
		g.tell(ends, err)
	}
	g.run(ctx)
}

func (g *guard) run(ctx context.Context) {
	for ctx.Err() == nil {
		if !g.busy() { // nothing wakes an idle agent
			g.past = nil
			select {
			case <-g.changed:
			case <-ctx.Done():
			}
			continue
		}
		select {
		case <-time.After(guardEvery):
		case <-ctx.Done():
			return
		}
		s, err := g.read()
		if err != nil {
			g.tell(calm, fmt.Errorf("the memory guard cannot see: %w", err))
			continue
		}
		switch v, text := g.judge(s); v {
		case ends:
			g.end(s, text)
			g.past = nil // what was ended fell
		case warns:
			g.tell(warns, fmt.Errorf("this machine has %s", text))
		}
	}
}

func (g *guard) tell(of verdict, problem error) {
	if problem != nil && time.Since(g.told[of]) >= tellAgain {
		g.told[of] = time.Now()
		g.logger.Warn("memory", "error", problem)
	}
}

// readSample reads this machine's. A kernel without PSI or swap tells of no stalls.
func readSample() (sample, error) {
	m, err := proc.Here.Memory()
	onCPUs, _ := proc.Here.FreeOnCPUs()
	waited, _ := proc.Here.MemoryPressure()
	swapped, _ := proc.Here.SwappedIn()
	return sample{at: time.Now(), total: m.Total, available: m.Available + onCPUs, stalled: waited.Full, swapped: swapped}, err
}

// endLargest ends the attempt that has to go, which it returns; text is headroom's. Last is what was ended the time
// before: if it is still there, as what hangs in a driver is, another one has to. Its error says why nothing was ended.
func (a *Agent) endLargest(ctx context.Context, s sample, text string, last launcher.Key) (launcher.Key, error) {
	all := a.holdersNow(s.total - s.available)
	v := victim(all, last, a.cfg.MemoryFloor, a.cfg.ServicesFirst)
	if v == nil {
		return launcher.Key{}, fmt.Errorf("this machine has %s: nothing is ended, as no job here holds as much as that", text)
	}
	cause := fmt.Sprintf("ended because its machine had %s; it held about %s%s. Give it less memory or more machines; "+
		"on that machine sparkrun ps and sparkrun top show who holds what", text, v.size(), othersThan(v, all))
	a.cfg.Logger.Error("end ranks to save the machine", "job", v.key.Job, "had", text, "held", launcher.Size(v.bytes))
	ctx, cancel := context.WithTimeout(ctx, reapWait)
	defer cancel()
	client, err := a.reach(ctx, v.key)
	if err == nil {
		err = client.EndFor(ctx, cause)
	}
	if err != nil {
		return v.key, fmt.Errorf("end ranks of job %s to save the machine: %w", v.key.Job, err)
	}
	a.guarded.Add(1)
	a.awaitEnd(ctx, v.key)
	return v.key, nil
}

// awaitEnd gives an attempt that was ended time to release its memory, so that the next
// check does not end another one.
func (a *Agent) awaitEnd(ctx context.Context, k launcher.Key) {
	news := a.subscribe(bell)
	defer a.unsubscribe(news)
	for {
		a.mu.Lock()
		t := a.attempts[k]
		a.mu.Unlock()
		if t == nil || t.snapshot().Phase == launcher.PhaseEnded {
			return
		}
		select {
		case <-news.more:
		case <-ctx.Done():
			return
		}
	}
}

// anyStarted tells whether there is an attempt whose ranks may run.
func (a *Agent) anyStarted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.attempts {
		if t.snapshot().Phase == launcher.PhaseStarted {
			return true
		}
	}
	return false
}

// holder is an attempt with what it holds, in bytes.
type holder struct {
	key     launcher.Key
	bytes   int64 // all of it
	gpu     int64 // of that by the GPU, as far as the driver tells
	service bool
	began   time.Time // its oldest rank that runs
}

func (h holder) size() string {
	if h.gpu == 0 {
		return launcher.Size(h.bytes)
	}
	return fmt.Sprintf("%s (%s by the GPU)", launcher.Size(h.bytes), launcher.Size(h.gpu))
}

// holders are the attempts whose ranks may run, the largest first.
func (a *Agent) holders(gpu map[int]int64, used int64) []holder {
	usages := shim.Usages()
	var all []holder
	a.mu.Lock()
	for k := range usages {
		t := a.attempts[k]
		if t == nil {
			delete(usages, k)
			continue
		}
		e := t.snapshot()
		if e.Phase != launcher.PhaseStarted {
			delete(usages, k)
			continue
		}
		h := holder{key: k, service: t.serves.Load()}
		for _, r := range e.Ranks {
			if r.State == launcher.RankRunning && (h.began.IsZero() || r.Time.Before(h.began)) {
				h.began = r.Time
			}
		}
		all = append(all, h)
	}
	a.mu.Unlock()
	held := heldBy(usages, gpu, used)
	for i := range all {
		all[i].bytes = held[all[i].key]
		for _, pid := range usages[all[i].key].PIDs {
			all[i].gpu += gpu[pid]
		}
	}
	slices.SortFunc(all, func(x, y holder) int {
		return cmp.Or(cmp.Compare(y.bytes, x.bytes), strings.Compare(x.key.String(), y.key.String()))
	})
	return all
}

// holdersNow are the holders while memory runs out. What the driver told may be a minute old: it is not believed where
// more of the used bytes is unseen than it tells of.
func (a *Agent) holdersNow(used int64) []holder {
	gpu, own := a.gpuHeld()
	all := a.holders(gpu, used)
	told, unseen := int64(0), used
	for _, bytes := range gpu {
		told += bytes
	}
	for _, h := range all {
		unseen -= h.bytes - h.gpu
	}
	if !own && unseen-told > told {
		return a.holders(nil, used)
	}
	return all
}

// victim is the one to end but for last: the largest, or with servicesFirst a service that came after it. nil: none
// holds as much as the floor, and has used up the machine.
func victim(all []holder, last launcher.Key, floor int64, servicesFirst bool) *holder {
	all = slices.DeleteFunc(slices.Clone(all), func(h holder) bool { return h.key == last })
	if len(all) == 0 || all[0].bytes < floor {
		return nil
	}
	for i, h := range all {
		if servicesFirst && !all[0].service && h.service && h.bytes >= floor && h.began.After(all[0].began) {
			return &all[i]
		}
	}
	return &all[0]
}

// othersThan names the two largest others.
func othersThan(v *holder, all []holder) string {
	var b strings.Builder
	for _, h := range all {
		if h.key != v.key && h.bytes > 0 && strings.Count(b.String(), ",") < 2 {
			fmt.Fprintf(&b, ", job %s %s", h.key.Job, h.size())
		}
	}
	return b.String()
}

// heldBy is how much memory each attempt holds, in bytes, with used bytes of the machine not available. The driver's
// allocations are in no RSS: they are gpu's, by PID. Where the driver does not tell (nil), memory that no process
// accounts for is the GPU's, and counts for the attempts that have the GPU open.
func heldBy(usages map[launcher.Key]shim.Usage, gpu map[int]int64, used int64) map[launcher.Key]int64 {
	unseen, users := used, int64(0)
	for _, u := range usages {
		unseen -= u.Bytes
		if u.GPU {
			users++
		}
	}
	all := map[launcher.Key]int64{}
	for k, u := range usages {
		all[k] = u.Bytes
		switch {
		case gpu != nil:
			for _, pid := range u.PIDs {
				all[k] += gpu[pid]
			}
		case u.GPU:
			all[k] += max(unseen, 0) / users
		}
	}
	return all
}

func (a *Agent) gpuHeld() (held map[int]int64, own bool) {
	if a.cfg.GPUHeld == nil {
		return nil, false
	}
	return a.cfg.GPUHeld()
}

// MemoryFloor is the guard's, in bytes; 0: there is no guard.
func (a *Agent) MemoryFloor() int64 { return a.cfg.MemoryFloor }

// Guarded is how many attempts the guard has ended.
func (a *Agent) Guarded() int64 { return a.guarded.Load() }

// Held is how much memory each attempt whose ranks may run holds now, in bytes. While there is one it reads the whole
// process table.
func (a *Agent) Held() map[launcher.Key]int64 {
	if !a.anyStarted() {
		return nil
	}
	m, err := proc.ReadMemory()
	if err != nil {
		return nil
	}
	held := map[launcher.Key]int64{}
	gpu, _ := a.gpuHeld()
	for _, h := range a.holders(gpu, m.Total-m.Available) {
		held[h.key] = h.bytes
	}
	return held
}

// measured is how much memory an attempt holds now, in bytes; nil: it cannot be told.
func (a *Agent) measured(k launcher.Key) *int64 {
	held, found := a.Held()[k]
	if !found {
		return nil
	}
	return &held
}
