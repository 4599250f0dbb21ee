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
	"github.com/sparkrun/sparkrun/launcher/filesync/hub"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/relay"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// pull is an order and how far it is.
type pull struct {
	order   wire.ModelOrder // as it was begun: its limit and its token may have been given anew
	file    string          // in which it is kept
	limit   *relay.Limit
	buffers *relay.Buffers
	bytes   int64         // of all its files
	over    chan struct{} // closed when nothing more is done for it in this life of the agent

	mu      sync.Mutex
	changed chan struct{} // closed when state or notes change
	state   string
	err     error
	dir     string
	have    int64 // of files that are whole
	under   map[*relay.File]bool
	from    string
	notes   []string
	giveUp  func()                   // nil: it has not begun
	gone    bool                     // given up
	access  wire.NodeModelAskRequest // whose token it is
	hub     *hub.Client              // nil: not made with it yet
	dropped bool                     // its file, for good
}

func newPull(o wire.ModelOrder) *pull {
	return &pull{order: o, file: string(o.ID) + orderExt, limit: relay.NewLimit(o.Limit),
		buffers: relay.NewBuffers(chunksInMemory), bytes: o.Manifest.Bytes(),
		access: wire.NodeModelAskRequest{ID: o.ID, User: o.User, Token: o.Token}, over: make(chan struct{}),
		changed: make(chan struct{}), state: wire.ModelWaits, under: map[*relay.File]bool{}}
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

func (p *pull) noteOnce(text string) {
	p.mu.Lock()
	said := slices.Contains(p.notes, text)
	p.mu.Unlock()
	if !said {
		p.note(text)
	}
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

func (m *Models) keepOrder(file string, o wire.ModelOrder) error {
	text, err := json.Marshal(o)
	if err == nil {
		err = durable.Write(filepath.Join(m.cfg.Orders, file), text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the order to pull %s: %w", o.Manifest.Repo, err)
	}
	return nil
}

func (m *Models) dropOrder(p *pull) {
	if err := os.Remove(filepath.Join(m.cfg.Orders, p.file)); err != nil && !errors.Is(err, os.ErrNotExist) {
		m.cfg.Logger.Error("remove order", "model", p.order.Manifest.Repo, "error", err)
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
		if err != nil {
			m.cfg.Logger.Error("read order", "file", e.Name(), "error", err)
			continue
		}
		p := newPull(o)
		p.file = e.Name()
		if err := m.sound(o); err != nil { // as of a cluster that this machine was in before
			m.cfg.Logger.Warn("order dropped", "file", e.Name(), "error", err)
			m.dropOrder(p)
			continue
		}
		m.pulls[p.key()], m.resumed = p, append(m.resumed, p)
	}
	return nil
}
