package rendezvous

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func allocated(text string) Entry {
	return Entry{Kind: KindNetplan, At: t0, Netplan: &Allocated{Allocation: json.RawMessage(text)}}
}

func TestNetplanAllocationIsKept(t *testing.T) {
	l := founded(t)
	if got := l.Netplan(); got != nil {
		t.Errorf("before any: %s", got)
	}
	l.must(t, allocated(`{"numbers":{"a":1}}`), allocated(`{"numbers":{"a":1,"b":2}}`))
	snap, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	other := NewRecord()
	if err := other.Restore(snap); err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Record{l.Record, other} {
		if got := string(r.Netplan()); got != `{"numbers":{"a":1,"b":2}}` {
			t.Errorf("kept %s", got)
		}
	}
	// What cannot be kept changes nothing, on every node alike.
	err, _ = l.apply(allocated(`"` + strings.Repeat("x", MaxAllocationBytes) + `"`)).(error)
	if !errors.Is(err, ErrAllocationTooLarge) || string(l.Netplan()) != string(other.Netplan()) {
		t.Errorf("too large: %v", err)
	}
	if _, err := allocated(`{`).Encode(); err == nil {
		t.Error("what is no JSON was encoded")
	}
}
