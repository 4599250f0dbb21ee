package relay

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// Files get buffers in their turn, whoever asked first; one that gives up leaves the line, and loses none.
func TestBuffersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, big := NewBuffers(1), layout{ChunkBytes, ChunkBytes}
		first, err := b.get(t.Context(), big, 0)
		if err != nil {
			t.Fatal(err)
		}
		var order []int
		for _, turn := range []int{3, 1, 2} {
			go func() {
				buf, err := b.get(t.Context(), big, turn)
				if err != nil {
					t.Error(err)
				}
				order = append(order, turn)
				b.put(buf)
			}()
			synctest.Wait()
		}
		ctx, giveUp := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := b.get(ctx, big, 0)
			gone <- err
		}()
		synctest.Wait()
		giveUp()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("who gave up: %v", err)
		}
		if small, err := b.get(t.Context(), layout{100, ChunkBytes}, 9); err != nil || len(small) != 100 {
			t.Errorf("a small file waits for none: %d bytes, %v", len(small), err)
		}
		b.put(first)
		synctest.Wait()
		if !slices.Equal(order, []int{1, 2, 3}) {
			t.Errorf("in turn: %v", order)
		}
		again, err := b.get(t.Context(), big, 0)
		if err != nil || &again[0] != &first[0] {
			t.Errorf("the buffer is lost: %v", err)
		}
		b.put(again)
		b.trim()
	})
}
