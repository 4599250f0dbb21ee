package wire

import (
	"context"
	"errors"
	"testing"
	"time"
)

// Who leaves ends what he began: nothing else would.
func TestExecEndsWithItsCaller(t *testing.T) {
	ended := make(chan struct{})
	c := serve(t, alice, Exec.Serve(func(ctx context.Context, _ Caller, _ ExecRequest, send func(ExecChunk) error) error {
		if err := send(ExecChunk{Began: "abcd"}); err != nil {
			return err
		}
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	}))
	enough := errors.New("enough")
	if err := Exec.Call(t.Context(), c, ExecRequest{Job: "abcd", Session: "g", Argv: []string{"true"}},
		func(ExecChunk) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("Exec: %v", err)
	}
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Error("it goes on")
	}
}

// An agent of before does not know the call, which is not the same as silence.
func TestOlderAgent(t *testing.T) {
	c := serve(t, alice)
	err := Exec.Call(t.Context(), c, ExecRequest{Job: "abcd"}, func(ExecChunk) error { return nil })
	if !errors.Is(err, ErrOlder) || errors.Is(err, ErrUnreachable) {
		t.Errorf("Exec: %v", err)
	}
	if err := ExecReach.Call(t.Context(), c, ExecReachRequest{}); !errors.Is(err, ErrOlder) {
		t.Errorf("ExecReach: %v", err)
	}
}
