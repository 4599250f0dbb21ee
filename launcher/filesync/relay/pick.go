package relay

import (
	"context"
	"errors"
	"sync"
	"time"
)

// outsideIndex stands for the outside among the chain's indices.
const outsideIndex = -1

// answer is what a member said of the file.
type answer struct {
	State
	ok bool
}

// fetch takes chunks from one source after the other until all are verified.
func (f *File) fetch(ctx context.Context) error {
	now := time.Now()
	for i := range f.seen {
		f.seen[i] = now // they may not have been told of the file yet
	}
	away := false // the outside, and that was said
	for f.prefix() < f.count {
		i, ok := f.pick(ctx)
		if !ok {
			if err := pause(ctx, again); err != nil {
				return err
			}
			continue
		}
		name := f.name(i)
		if f.current != name {
			f.current = name
			f.cfg.Event(Event{Source: name, At: f.Have()})
		}
		before := f.prefix()
		err := f.take(ctx, i)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil || errors.Is(err, errNoMore) || errors.Is(err, errFollowed):
			continue
		case isHere(err), errors.Is(err, ErrGone), errors.Is(err, ErrSum):
			return err
		}
		if errors.Is(err, ErrWrongBytes) {
			f.out[i] = time.Now().AddDate(100, 0, 0)
		} else if _, hangs := errors.AsType[hangsError](err); hangs {
			f.out[i] = time.Now().Add(leftFor)
		} else if i != outsideIndex {
			f.seen[i] = time.Time{} // it is taken again when it answers
		}
		// The outside may be away for long, and is tried again and again: this is said once.
		if i != outsideIndex {
			f.current = ""
		} else if away && f.prefix() == before {
			continue
		}
		away = i == outsideIndex
		f.cfg.Event(Event{Source: name, At: f.Have(), Err: err})
	}
	return nil
}

func isHere(err error) bool {
	_, is := errors.AsType[hereError](err)
	return is
}

// Outside is the name of the outside in events.
const Outside = "outside"

func (f *File) name(i int) string {
	if i == outsideIndex {
		return Outside
	}
	return f.cfg.Chain[i].Name
}

// order lists the other nodes as this one likes to take from them: up the chain, then those
// after it.
func (f *File) order() (out []int) {
	for i := f.cfg.Self - 1; i >= 0; i-- {
		out = append(out, i)
	}
	for i := f.cfg.Self + 1; i < len(f.cfg.Chain); i++ {
		out = append(out, i)
	}
	return out
}

// left tells whether a member is not to be asked now.
func (f *File) left(i int) bool { return time.Now().Before(f.out[i]) }

// ask asks all members that were not left what they have beyond the prefix.
func (f *File) ask(ctx context.Context) map[int]answer {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	from := f.prefix()
	out, mu, asked := map[int]answer{}, sync.Mutex{}, sync.WaitGroup{}
	for _, i := range f.order() {
		if f.left(i) {
			continue
		}
		asked.Go(func() {
			s, err := f.cfg.Chain[i].Source.State(ctx, from, 0)
			mu.Lock()
			defer mu.Unlock()
			if out[i] = (answer{s, err == nil}); err == nil {
				f.seen[i] = time.Now()
			}
		})
	}
	asked.Wait()
	return out
}

// pick chooses the next source: the nearest living node before this one, also where it has
// no more yet, for a chain stays one by that; else a member that has more, else whoever
// reads from outside, else the outside. Not ok: a node before this one may come back within
// 5 s, or there is no source.
func (f *File) pick(ctx context.Context) (at int, ok bool) {
	answers := f.ask(ctx)
	for i := f.cfg.Self - 1; i >= 0; i-- {
		if a := answers[i]; a.ok && a.Failed == "" {
			return i, true
		}
		if f.awaited(i, answers) {
			return 0, false
		}
	}
	for _, i := range f.order() {
		if a := answers[i]; len(a.Sums) > 0 && a.Word != Wrong {
			return i, true
		}
	}
	for i, a := range answers {
		if a.ok && a.Outside {
			return i, true
		}
	}
	return outsideIndex, f.cfg.Outside != nil
}

// awaited tells whether a member does not answer, but did a moment ago.
func (f *File) awaited(i int, answers map[int]answer) bool {
	a, asked := answers[i]
	return asked && !a.ok && time.Since(f.seen[i]) < stall
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
