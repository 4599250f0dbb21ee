package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Input and Signal reach a job's ranks, or a command beside a rank.
type (
	Input  func(context.Context, wire.InputRequest) error
	Signal func(context.Context, wire.SignalRequest) error
)

func (f *Follower) input(ctx context.Context, r wire.InputRequest) error {
	return wire.Input.Call(ctx, f.Agent, r)
}

func (f *Follower) signal(ctx context.Context, r wire.SignalRequest) error {
	return wire.Signal.Call(ctx, f.Agent, r)
}

// inputChunk is how much input is read and sent at once, in bytes.
const inputChunk = 32 << 10

// feed waits until every rank runs: before that, a rank that has no reader yet looks like
// one that has ended.
func (f *Follower) feed(ctx context.Context) {
	select {
	case <-f.reading.c:
		in, r := f.In, wire.InputRequest{Job: string(f.Spec.ID), Ranks: f.InputOf, Offset: f.InputAt}
		if f.Terminal != nil {
			if err := f.Terminal.Raw(); err != nil {
				f.Say(err.Error())
				return
			}
			go f.Terminal.Resizes(ctx, f.input, r, f.Say) // ends with ctx
			in = &keyboard{ctx, in}
		}
		if f.Keys != nil {
			in = &keyReader{in: in, keys: f.Keys}
		}
		if Feed(ctx, f.input, r, in, f.Say) {
			f.left.Set()
		}
	case <-ctx.Done():
	}
}

// Feed sends our standard input to the job, from r's offset on, until either ends. It is
// read no faster than the ranks read it, and what is lost with an agent is sent again.
// The result tells whether the keys that detach were typed: the ranks' input then stays
// open.
func Feed(ctx context.Context, to Input, r wire.InputRequest, in io.Reader, say func(string)) (detached bool) {
	buf := make([]byte, inputChunk)
	for at := r.Offset; ; {
		n, rerr := in.Read(buf)
		if errors.Is(rerr, errDetached) {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		r.Offset, r.Data, r.End = at, buf[:n], rerr != nil
		at += int64(n)
		switch err := send(ctx, func() error { return to(ctx, r) }); {
		case ctx.Err() != nil, errors.Is(err, wire.ErrNoReader), errors.Is(err, rendezvous.ErrJobEnded):
			return false // like a pipe whose reader has gone
		case err != nil:
			say(fmt.Sprintf("the ranks get no more input: %v", err))
			return false
		case r.End:
			return false
		}
	}
}

// keyboard is the input of a raw terminal. Ctrl-D is a key there, so that its end means
// that the terminal has gone, which must not end the rank's input: the signal that comes
// with it decides what to do.
type keyboard struct {
	ctx context.Context
	in  io.Reader
}

func (k *keyboard) Read(b []byte) (int, error) {
	n, err := k.in.Read(b)
	if err == nil || n > 0 {
		return n, nil
	}
	<-k.ctx.Done()
	return 0, context.Cause(k.ctx)
}

// send repeats ask until an agent has answered.
func send(ctx context.Context, ask func() error) error {
	var again app.Pause
	for {
		err := ask()
		if err == nil || !app.Passing(err) || again.Wait(ctx) != nil {
			return err
		}
	}
}

// forward passes a signal on to every rank. TSTP stops us too, as the shell that sent it
// expects; CONT then resumes us and the ranks.
func (f *Follower) forward(ctx context.Context, sig syscall.Signal) {
	f.passOn(ctx, sig)
	if sig == syscall.SIGTSTP {
		StopSelf(f.Terminal)
	}
}

// passOn sends one signal at a time: a CONT that overtook its TSTP would leave the ranks
// suspended.
func (f *Follower) passOn(ctx context.Context, sig syscall.Signal) {
	f.passing.Lock()
	defer f.passing.Unlock()
	if sig == syscall.SIGTSTP {
		f.suspended = true
	}
	Forward(ctx, f.signal, string(f.Spec.ID), sig, f.Say)
	if sig == syscall.SIGCONT && ctx.Err() == nil {
		f.suspended = false
	}
}

// resumeWithin bounds how long a hang-up waits for resume.
const resumeWithin = 5 * time.Second

// resume continues ranks that were suspended through us before we leave them, since
// nobody else would. A shell and the kernel do so for what they hang up.
func (f *Follower) resume(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, resumeWithin)
	done := make(chan struct{})
	go func() { // ends with ctx
		defer close(done)
		defer cancel()
		f.passing.Lock()
		suspended := f.suspended
		f.passing.Unlock()
		if suspended {
			f.passOn(ctx, syscall.SIGCONT)
		}
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// StopSelf stops this process; its terminal, if any, is restored meanwhile.
func StopSelf(t *Terminal) {
	stop := func() { _ = syscall.Kill(os.Getpid(), syscall.SIGSTOP) }
	if t == nil {
		stop()
		return
	}
	t.stopped(stop)
}

// Forward passes a signal on to all ranks of a job, or to a command beside one.
func Forward(ctx context.Context, to Signal, job string, sig syscall.Signal, say func(string)) {
	err := send(ctx, func() error { return to(ctx, wire.SignalRequest{Job: job, Signal: int(sig)}) })
	if err != nil && ctx.Err() == nil && !errors.Is(err, wire.ErrNoReader) {
		say(fmt.Sprintf("pass on signal %s: %v", sig, err))
	}
}
