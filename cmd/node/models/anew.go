package models

import (
	"errors"
	"fmt"

	"github.com/sparkrun/sparkrun/launcher/filesync/hub"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// anew takes the limit and the token of a pull that is asked for again while it is under way. They count for who began
// it, and for root; others only follow.
func (m *Models) anew(p *pull, o wire.ModelOrder) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropped || o.Limit == 0 && o.Token == nil || o.User != p.access.User && o.User != "root" {
		return nil
	}
	if o.Limit != 0 {
		p.limit.Set(o.Limit)
	}
	if o.Token != nil {
		p.access, p.hub = wire.NodeModelAskRequest{ID: o.ID, User: o.User, Token: o.Token}, nil
	}
	now := p.order
	now.ID, now.User, now.Token, now.Limit = p.access.ID, p.access.User, p.access.Token, p.limit.Rate()
	return m.keepOrder(p.file, now)
}

// done forgets the order.
func (m *Models) done(p *pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dropped = true
	m.dropOrder(p)
}

// errSealed says what helps where the key of a token has gone with a member that was removed.
var errSealed = errors.New("the token of this pull cannot be opened here any more, as after `sparkrun node remove`")

// hubOf is the client of a pull. A token that does not open is no reason to give the pull up: others of the chain may
// have opened it before, and it may be given anew.
func (m *Models) hubOf(p *pull) (*hub.Client, error) {
	p.mu.Lock()
	made, access := p.hub, p.access
	p.mu.Unlock()
	if made != nil {
		return made, nil
	}
	made, err := m.hub(access, 0, 0)
	if err != nil {
		err = fmt.Errorf("%w: `sparkrun model pull %s --secret HF_TOKEN` gives it anew", errSealed,
			p.order.Manifest.Repo.Name)
		p.noteOnce(err.Error())
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.access.ID == access.ID {
		p.hub = made
	}
	return made, nil
}
