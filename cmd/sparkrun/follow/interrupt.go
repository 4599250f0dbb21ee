package follow

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// interrupts turns the user's signals into requests: end, kill, then leave.
type interrupts struct {
	f      *Follower
	wg     *sync.WaitGroup
	signal os.Signal // the first one
	count  int
	grace  *time.Duration     // of the last request
	cancel context.CancelFunc // cancels the request before
}

// take returns false when the user has asked a third time.
func (in *interrupts) take(ctx context.Context, sig os.Signal) bool {
	if in.signal == nil {
		in.signal = sig
	}
	in.f.interrupted.Store(true)
	in.count++
	switch in.count {
	case 1:
		in.f.Say(fmt.Sprintf("stopping; the ranks have %s (again to kill)", in.f.Spec.WithDefaults().Grace))
		in.stop(ctx, nil)
	case 2:
		in.f.Say("killing (again to leave without waiting)")
		in.stop(ctx, new(time.Duration))
	default:
		return false
	}
	return true
}

// askAgain repeats to the next leader what the last one may have lost.
func (in *interrupts) askAgain(ctx context.Context) {
	if in.count > 0 {
		in.stop(ctx, in.grace)
	}
}

// stop repeats the request until a leader has answered; a nil grace means the job's own.
func (in *interrupts) stop(ctx context.Context, grace *time.Duration) {
	in.grace = grace
	if in.cancel != nil {
		in.cancel()
	}
	ctx, in.cancel = context.WithCancel(ctx)
	f := in.f
	in.wg.Go(func() {
		var again app.Pause
		for {
			_, err := wire.Stop.Call(ctx, f.Agent, wire.StopRequest{Job: string(f.Spec.ID), Grace: grace,
				Interrupt: in.signal == os.Interrupt})
			switch {
			case err == nil, ctx.Err() != nil, errors.Is(err, rendezvous.ErrJobEnded):
				return
			case errors.Is(err, rendezvous.ErrNoJob) && !f.accepted.Is(): // not recorded yet
			case !app.Passing(err):
				f.Say(fmt.Sprintf("stop job %s: %v", f.Spec.ID, err))
				return
			}
			if again.Wait(ctx) != nil {
				return
			}
		}
	})
}
