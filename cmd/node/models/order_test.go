package models

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// opened is the part of a node with nobody around.
func opened(t *testing.T, cfg Config) *Models {
	t.Helper()
	cfg.Self, cfg.Host, cfg.Logger = "self", "spark1", slog.New(slog.DiscardHandler)
	cfg.Images = cfg.Dir + "-images"
	m, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return m
}

func orderOf(paths ...string) wire.ModelOrder {
	o := wire.ModelOrder{ID: launcher.NewJobID(), Chain: []launcher.NodeID{"self"}, Manifest: modelcache.Manifest{
		Repo: modelcache.Repo{Type: modelcache.Model, Name: "org/m"}, Commit: strings.Repeat("a", 40)}}
	for _, p := range paths {
		o.Manifest.Files = append(o.Manifest.Files, modelcache.File{Path: p, Size: 1 << 20, SHA256: strings.Repeat("b", 64)})
	}
	return o
}

// An order that cannot be followed is dropped at the start: the agent would end by it again and again.
func TestOrderThatCannotBeFollowed(t *testing.T) {
	dir := t.TempDir()
	o := orderOf("a")
	o.Chain = []launcher.NodeID{"self", "self"}
	text, err := json.Marshal(o)
	if err := errors.Join(err, os.Mkdir(dir+"/orders", 0o700), os.WriteFile(dir+"/orders/x.order", text, 0o600)); err != nil {
		t.Fatal(err)
	}
	m := opened(t, Config{Dir: dir + "/models", Orders: dir + "/orders"})
	if kept, _ := os.ReadDir(dir + "/orders"); len(kept)+len(m.pulls) > 0 {
		t.Errorf("kept: %v, %v", kept, m.pulls)
	}
}

// What does not fit, is not for this node, or would lead out of the cache is refused before anything is kept.
func TestOrdersAreRefused(t *testing.T) {
	dir := t.TempDir()
	m := opened(t, Config{Dir: dir + "/models", Orders: dir + "/orders", Reserve: func(total int64) int64 { return total }})
	other, outside := orderOf("a"), orderOf("../a")
	other.Chain = []launcher.NodeID{"another"}
	twice, huge, under := orderOf("a"), orderOf("a", "b"), orderOf("z")
	twice.Chain = []launcher.NodeID{"self", "self"}
	huge.Manifest.Files[0].Size, huge.Manifest.Files[1].Size = math.MaxInt64, math.MaxInt64
	p := newPull(under)
	m.pulls[p.key()] = p
	same := orderOf()
	same.ID, same.Manifest.Commit = under.ID, strings.Repeat("c", 40)
	for what, tt := range map[string]struct {
		o    wire.ModelOrder
		want error
	}{
		"no room":                   {orderOf("a"), modelcache.ErrRoom},
		"another's":                 {other, launcher.ErrInvalid},
		"leads outside":             {outside, launcher.ErrInvalid},
		"a chain that has it twice": {twice, launcher.ErrInvalid},
		"sizes that are no sum":     {huge, launcher.ErrInvalid},
		"another pull's id":         {same, wire.ErrConflict},
	} {
		if _, err := m.take(t.Context(), wire.Caller{}, wire.NodeModelRequest{Order: tt.o}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if kept, _ := os.ReadDir(dir + "/orders"); len(kept) > 0 {
		t.Errorf("kept: %v", kept)
	}
}

// The next agent takes up what was kept; not what it cannot read, and not what a cluster of before had ordered. A pull
// of other files of the same commit waits; the same one again changes its limit, for its own user and for root.
func TestOrdersAreTakenUp(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Dir: dir + "/models", Orders: dir + "/orders"}
	m := opened(t, cfg)
	mine, before := orderOf("a"), orderOf("b")
	before.Chain, before.Manifest.Commit = []launcher.NodeID{"former"}, strings.Repeat("c", 40)
	for _, o := range []wire.ModelOrder{mine, before} {
		if err := m.keepOrder(newPull(o).file, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(cfg.Orders, "half"+orderExt), []byte(`{"id": "ab`), 0o600); err != nil {
		t.Fatal(err)
	}
	next := opened(t, cfg)
	if len(next.resumed) != 1 || next.resumed[0].order.ID != mine.ID {
		t.Errorf("taken up: %+v", next.resumed)
	}
	if _, err := os.Stat(filepath.Join(cfg.Orders, newPull(before).file)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the order of a former cluster: %v", err)
	}
	again := orderOf("a")
	if _, err := next.take(t.Context(), wire.Caller{}, wire.NodeModelRequest{Order: again}); err != nil {
		t.Errorf("the same pull again: %v", err)
	}
	for _, x := range []struct {
		user  string
		limit int64
		want  int64
	}{{"", 5, 5}, {"", 0, 5}, {"ada", 7, 5}, {"root", 9, 9}} {
		again.User, again.Limit = x.user, x.limit
		if _, err := next.take(t.Context(), wire.Caller{}, wire.NodeModelRequest{Order: again}); err != nil {
			t.Error(err)
		}
		p := next.resumed[0]
		if kept := opened(t, cfg).resumed[0]; p.limit.Rate() != x.want || kept.limit.Rate() != x.want {
			t.Errorf("%+v: a limit of %d, %d is kept", x, p.limit.Rate(), kept.limit.Rate())
		}
	}
	next.done(next.resumed[0])
	if _, err := next.take(t.Context(), wire.Caller{}, wire.NodeModelRequest{Order: again}); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(cfg.Orders, "[^h]*")); len(left) > 0 {
		t.Errorf("an order that is done is kept: %q", left)
	}
	if _, err := next.take(t.Context(), wire.Caller{}, wire.NodeModelRequest{Order: orderOf("other")}); !errors.Is(err, wire.ErrConflict) {
		t.Errorf("another pull of it: %v", err)
	}
}
