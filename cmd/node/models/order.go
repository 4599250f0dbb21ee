package models

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/relay"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// pull is an order and how far it is.
type pull struct {
	order wire.ModelOrder
	bytes int64         // of all its files
	over  chan struct{} // closed when nothing more is done for it in this life of the agent

	mu      sync.Mutex
	changed chan struct{} // closed when state or notes change
	state   string
	err     error
	dir     string
	have    int64 // of files that are whole
	under   map[*relay.File]bool
	from    string
	notes   []string
	giveUp  func() // nil: it has not begun
	gone    bool   // given up
}

func newPull(o wire.ModelOrder) *pull {
	return &pull{order: o, bytes: o.Manifest.Bytes(), over: make(chan struct{}), changed: make(chan struct{}), state: wire.ModelWaits,
		under: map[*relay.File]bool{}}
}

func repoKey(r modelcache.Repo, commit string) string { return r.Type + ":" + r.Name + "@" + commit }

func (p *pull) key() string { return repoKey(p.order.Manifest.Repo, p.order.Manifest.Commit) }

// update changes what others wait for.
func (p *pull) update(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// maxNotes bounds what is kept of what has happened.
const maxNotes = 200

func (p *pull) note(text string) {
	p.update(func() {
		if len(p.notes) < maxNotes {
			p.notes = append(p.notes, text)
		}
	})
}

// seen is how far it is, with the notes after the first so many, and a channel that is closed when there is more.
func (p *pull) seen(host string, notes int) (wire.ModelProgress, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := wire.ModelProgress{Host: host, State: p.state, Have: p.have, Bytes: p.bytes, From: p.from,
		Notes: slices.Clone(p.notes[min(notes, len(p.notes)):]), Dir: p.dir}
	for f := range p.under {
		s.Have += f.Have()
	}
	if p.err != nil {
		s.Error = p.err.Error()
	}
	return s, p.changed
}

func (p *pull) ended() bool {
	s, _ := p.seen("", maxNotes)
	return s.Ended()
}

// An order is a file of the folder, named by its id. A token in it is sealed.
const orderExt = ".order"

func (m *Models) orderFile(o wire.ModelOrder) string {
	return filepath.Join(m.cfg.Orders, string(o.ID)+orderExt)
}

func (m *Models) keepOrder(o wire.ModelOrder) error {
	text, err := json.Marshal(o)
	if err == nil {
		err = durable.Write(m.orderFile(o), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the order to pull %s: %w", o.Manifest.Repo, err)
	}
	return nil
}

func (m *Models) dropOrder(o wire.ModelOrder) {
	if err := os.Remove(m.orderFile(o)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.cfg.Logger.Error("remove order", "model", o.Manifest.Repo, "error", err)
	}
}

// readOrders reads those that were not done. One that cannot be read is left out, and said: it holds up nothing else.
func (m *Models) readOrders() error {
	if err := os.MkdirAll(m.cfg.Orders, 0o700); err != nil {
		return fmt.Errorf("make the folder of orders: %w", err)
	}
	entries, err := os.ReadDir(m.cfg.Orders)
	if err != nil {
		return fmt.Errorf("read orders: %w", err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), orderExt) {
			continue
		}
		var o wire.ModelOrder
		text, err := os.ReadFile(filepath.Join(m.cfg.Orders, e.Name()))
		if err == nil {
			err = json.Unmarshal(text, &o)
		}
		if err == nil {
			err = errors.Join(o.ID.Validate(), o.Manifest.Check())
		}
		if err != nil {
			m.cfg.Logger.Error("read order", "file", e.Name(), "error", err)
			continue
		}
		p := newPull(o)
		if !slices.Contains(o.Chain, m.cfg.Self) { // of a cluster that this machine was in before
			m.dropOrder(o)
			continue
		}
		m.pulls[p.key()], m.resumed = p, append(m.resumed, p)
	}
	return nil
}
