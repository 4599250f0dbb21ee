package wire

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"
)

func TestExecCallsKeepEveryField(t *testing.T) {
	c := serve(t, Caller{Node: "id2", User: alice.User}, func(mux *http.ServeMux) {
		Cluster{Exec: echoStream[ExecRequest, ExecChunk](t), ExecReach: echo[ExecReachRequest, Empty](t)}.mountExec(mux)
		Node{NodeExec: echoStream[NodeExecRequest, ExecChunk](t), NodeExecReach: echo[NodeExecReachRequest, Empty](t)}.mountExec(mux)
	})
	ctx := t.Context()
	sameThrice(t, "Exec", func(fn func(ExecChunk) error) error { return c.Exec(ctx, full[ExecRequest](), fn) })
	sameThrice(t, "NodeExec", func(fn func(ExecChunk) error) error { return c.NodeExec(ctx, full[NodeExecRequest](), fn) })
	same(t, "ExecReach", Empty{}, c.ExecReach(ctx, full[ExecReachRequest]()))
	same(t, "NodeExecReach", Empty{}, c.NodeExecReach(ctx, full[NodeExecReachRequest]()))
}

// Who leaves ends what he began: nothing else would.
func TestExecEndsWithItsCaller(t *testing.T) {
	ended := make(chan struct{})
	c := serve(t, alice, func(mux *http.ServeMux) {
		Cluster{Exec: func(ctx context.Context, _ Caller, _ ExecRequest, send func(ExecChunk) error) error {
			if err := send(ExecChunk{Began: "abcd"}); err != nil {
				return err
			}
			<-ctx.Done()
			close(ended)
			return ctx.Err()
		}}.mountExec(mux)
	})
	enough := errors.New("enough")
	if err := c.Exec(t.Context(), ExecRequest{Job: "abcd"}, func(ExecChunk) error { return enough }); !errors.Is(err, enough) {
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
	c := serve(t, alice, func(mux *http.ServeMux) { Cluster{}.mountStage(mux) })
	err := c.Exec(t.Context(), ExecRequest{Job: "abcd"}, func(ExecChunk) error { return nil })
	if !errors.Is(err, ErrOlder) || errors.Is(err, ErrUnreachable) {
		t.Errorf("Exec: %v", err)
	}
	if err := c.ExecReach(t.Context(), ExecReachRequest{}); !errors.Is(err, ErrOlder) {
		t.Errorf("ExecReach: %v", err)
	}
}
