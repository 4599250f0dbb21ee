package relay

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Among the chain's indices these stand for the outside, and for no source at this moment.
const (
	outsideIndex = -1
	nobody       = -2
)

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
	f.grew = now
	for f.prefix() < f.count {
		i, err := f.pick(ctx)
		switch {
		case err != nil:
			return err
		case i == nobody:
			if err := pause(ctx, again); err != nil {
				return err
			}
			continue
		case i != outsideIndex:
			f.setStuck(false)
		}
		name := f.name(i)
		if f.current != name {
			f.current = name
			f.cfg.Event(Event{Source: name, At: f.Have()})
		}
		before := f.prefix()
		err = f.take(ctx, i)
		grew := f.prefix() > before
		if grew {
			f.grew = time.Now()
		}
		if grew && i == outsideIndex {
			f.noWay = nil
		}
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
		} else if !grew {
			f.noWay, f.tried = err, time.Now()
			if away {
				continue
			}
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
// reads from outside, else the outside. A node that is stuck is passed over. Nobody: a node
// before this one may come back within 5 s, or the outside is not to be tried now.
func (f *File) pick(ctx context.Context) (at int, err error) {
	answers := f.ask(ctx)
	for i := f.cfg.Self - 1; i >= 0; i-- {
		if a := answers[i]; a.ok && a.Failed == "" && (!a.Stuck || len(a.Sums) > 0) {
			return i, nil
		}
		if f.awaited(i, answers) {
			return nobody, nil
		}
	}
	for _, i := range f.order() {
		if a := answers[i]; len(a.Sums) > 0 && a.Word != Wrong {
			return i, nil
		}
	}
	for i, a := range answers {
		if a.ok && a.Outside && !a.Stuck {
			return i, nil
		}
	}
	if f.noWay == nil {
		return outsideIndex, nil
	}
	return f.stickOut(answers)
}

// stickOut is for a node to which the outside gave nothing. It leaves the outside to those
// that have not tried it; where all have, they try it again one at a time, for a while.
func (f *File) stickOut(answers map[int]answer) (at int, err error) {
	f.setStuck(true)
	tries := false // another one, at this moment
	for _, a := range answers {
		if a.ok && a.Failed == "" && a.Word == "" && !a.Stuck {
			return nobody, nil
		}
		tries = tries || a.Outside
	}
	switch {
	case time.Since(f.grew) > sourceless:
		return nobody, fmt.Errorf("%w: %w", ErrNoSource, f.noWay)
	case f.cfg.Outside == nil, tries, time.Since(f.tried) < stall+time.Duration(f.cfg.Self)*again:
		return nobody, nil
	}
	return outsideIndex, nil
}

// awaited tells whether a member does not answer, but did a moment ago.
func (f *File) awaited(i int, answers map[int]answer) bool {
	a, asked := answers[i]
	return asked && !a.ok && time.Since(f.seen[i]) < stall
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
