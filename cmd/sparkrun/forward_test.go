package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fakeRanks take input as ranks do: by offset, and sometimes not at all.
type fakeRanks struct {
	mu      sync.Mutex
	got     strings.Builder
	ended   bool
	calls   int
	fails   func(call int) error
	signals []int
}

func (f *fakeRanks) Input(_ context.Context, r wire.InputRequest) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls++
	have := int64(f.got.Len())
	if r.Offset > have {
		return errors.New("a hole")
	}
	f.got.Write(r.Data[min(have-r.Offset, int64(len(r.Data))):])
	f.ended = f.ended || r.End
	if f.fails != nil {
		return f.fails(f.calls)
	}
	return nil
}

func (f *fakeRanks) Signal(_ context.Context, r wire.SignalRequest) error {
	f.signals = append(f.signals, r.Signal)
	return nil
}

// Whatever goes down on the way, each byte arrives once, and then the end.
func TestFeedSendsEachByteOnce(t *testing.T) {
	text := strings.Repeat("0123456789", 10000)
	f := &fakeRanks{fails: func(call int) error {
		if call%2 == 1 {
			return wire.ErrUnreachable // after it was written
		}
		return nil
	}}
	feed(t.Context(), f, wire.InputRequest{Job: "abcd"}, strings.NewReader(text), func(s string) { t.Error(s) })
	if f.got.String() != text || !f.ended {
		t.Errorf("%d of %d bytes, ended %v", f.got.Len(), len(text), f.ended)
	}
}

// A rank that reads no more is like a closed pipe: nothing to complain about.
func TestFeedStopsWithItsReaders(t *testing.T) {
	f := &fakeRanks{fails: func(int) error { return wire.ErrNoReader }}
	feed(t.Context(), f, wire.InputRequest{Job: "abcd"}, endless{}, func(s string) { t.Error(s) })
	var said string
	f = &fakeRanks{fails: func(int) error { return wire.ErrDenied }}
	feed(t.Context(), f, wire.InputRequest{Job: "abcd"}, endless{}, func(s string) { said = s })
	if !strings.Contains(said, "no more input: "+wire.ErrDenied.Error()) {
		t.Errorf("said %q", said)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

func TestForwardedSignal(t *testing.T) {
	f := &fakeRanks{}
	forward(t.Context(), f, "abcd", syscall.SIGUSR1, func(s string) { t.Error(s) })
	if len(f.signals) != 1 || f.signals[0] != int(syscall.SIGUSR1) {
		t.Errorf("signals %v", f.signals)
	}
}

func TestUlimitFlag(t *testing.T) {
	var got launchOptions
	cmd := newLaunchCmd(completion{}, func(_ context.Context, o launchOptions) error { got = o; return nil })
	cmd.SetArgs([]string{"exec", "--ulimit", "core=0", "--ulimit", "nofile=5:9", "--bind-to", "numa", "--stdin", "all", "--", "true"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if r := got.request; len(r.Ulimits) != 2 || r.Ulimits[1].String() != "nofile=5:9" || r.BindTo != "numa" || r.Stdin != "all" {
		t.Errorf("read %+v", r)
	}
}

func TestRankListFlag(t *testing.T) {
	for text, want := range map[string][]int{"3": {3}, "0,4": {0, 4}, "0-2,7": {0, 1, 2, 7}, "65535": {65535}} {
		var got []int
		if err := (rankList{&got}).Set(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("--rank %s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "2-0", "a", "0-", "65536", "0,,1"} {
		if err := (rankList{new([]int)}).Set(text); err == nil {
			t.Errorf("--rank %s is taken", text)
		}
	}
}
