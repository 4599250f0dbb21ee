package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// lab is a logind that remembers who lingers, and can refuse.
type lab struct {
	on      map[uint32]bool
	refuses error
	asked   int
}

func (b *lab) set(_ context.Context, uid uint32, on bool) error {
	if b.asked++; b.refuses != nil {
		return b.refuses
	}
	if b.on[uid] = on; !on {
		delete(b.on, uid)
	}
	return nil
}

// A user's lingering is taken while their ranks run and given back after, also
// by an agent that never saw it taken; who lingered before still does.
func TestLingeringIsBorrowed(t *testing.T) {
	b := &lab{on: map[uint32]bool{1002: true}}
	dir := filepath.Join(t.TempDir(), "linger")
	fresh := func() *linger {
		return &linger{dir: dir, set: b.set, lingers: func(name string) bool { return name == "bea" }}
	}
	wants := func(users map[string]uint32) func() map[string]uint32 {
		return func() map[string]uint32 { return users }
	}
	steps := []struct {
		name   string
		wanted map[string]uint32
		want   map[uint32]bool
	}{
		{"two begin, and a system's own user", map[string]uint32{"ada": 1001, "bea": 1002, "daemon": 1},
			map[uint32]bool{1001: true, 1002: true}},
		{"again", map[string]uint32{"ada": 1001, "bea": 1002}, map[uint32]bool{1001: true, 1002: true}},
		{"another joins", map[string]uint32{"ada": 1001, "cy": 1003}, map[uint32]bool{1001: true, 1002: true, 1003: true}},
		{"one ends", map[string]uint32{"cy": 1003}, map[uint32]bool{1002: true, 1003: true}},
		{"all end", nil, map[uint32]bool{1002: true}},
	}
	for _, s := range steps {
		must(t, fresh().settle(t.Context(), wants(s.wanted)))
		if d := cmp.Diff(s.want, b.on); d != "" {
			t.Errorf("%s: %s", s.name, d)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("notes stay: %v", left)
	}
}

// What logind refuses to take back is tried again by the next pass.
func TestLingeringIsGivenBackLater(t *testing.T) {
	b := &lab{on: map[uint32]bool{}}
	l := &linger{dir: filepath.Join(t.TempDir(), "linger"), set: b.set, lingers: func(string) bool { return false }}
	must(t, l.settle(t.Context(), func() map[string]uint32 { return map[string]uint32{"ada": 1001} }))
	nobody := func() map[string]uint32 { return nil }
	b.refuses = errors.New("the bus is gone")
	if err := l.settle(t.Context(), nobody); !errors.Is(err, b.refuses) {
		t.Errorf("error %v", err)
	}
	b.refuses = nil
	must(t, l.settle(t.Context(), nobody))
	if len(b.on) > 0 || b.asked != 3 {
		t.Errorf("lingers %v after %d calls", b.on, b.asked)
	}
}

func TestNoLogindIsLeftAlone(t *testing.T) {
	b := &lab{on: map[uint32]bool{}}
	l := &linger{set: b.set}
	must(t, l.settle(t.Context(), func() map[string]uint32 { return map[string]uint32{"ada": 1001} }))
	if b.asked > 0 {
		t.Error("logind was asked")
	}
}
