package gateway

import (
	"container/list"
	"sync"

	"github.com/sparkrun/sparkrun/launcher"
)

// pinsMost bounds the answers whose engines are remembered, about 200 bytes each.
const pinsMost = 8192

// pin is the engine that has an earlier answer.
type pin struct {
	id         string
	job        launcher.JobID
	generation launcher.Generation
	model      string
}

// pins are the answers of /v1/responses that this member handed on last.
type pins struct {
	mu    sync.Mutex
	byID  map[string]*list.Element
	order *list.List // the latest first
}

func (p *pins) note(one pin) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.byID[one.id]; e != nil {
		e.Value = &one
		p.order.MoveToFront(e)
		return
	}
	p.byID[one.id] = p.order.PushFront(&one)
	if p.order.Len() > pinsMost {
		last := p.order.Remove(p.order.Back())
		delete(p.byID, last.(*pin).id)
	}
}

func (p *pins) find(id string) *pin {
	p.mu.Lock()
	defer p.mu.Unlock()
	e := p.byID[id]
	if e == nil {
		return nil
	}
	p.order.MoveToFront(e)
	return e.Value.(*pin)
}

// only is the one engine that there is: whoever gave an answer, it was that one. nil: there are several, or none.
func (x *index) only(id string) *pin {
	if len(x.Backends) != 1 || len(x.Backends[0].Models) == 0 {
		return nil
	}
	b := x.Backends[0]
	return &pin{id, b.Job, b.Generation, b.Models[0]}
}

// among leaves the engine that has the answer, or refuses by name.
func (p *pin) among(backends []*backend) ([]*backend, *refusal) {
	for _, b := range backends {
		if b.Job == p.job && b.Generation == p.generation {
			return []*backend{b}, nil
		}
	}
	return nil, refuse(404, "", "the engine that gave answer %.100s has ended or was started anew, and has forgotten "+
		"it: send the conversation itself, without previous_response_id", p.id)
}

// unknownAnswer tells of an id that this member did not hand on.
func unknownAnswer(id, host string) *refusal {
	return refuse(404, "", "member %s did not hand on answer %.100q, or has forgotten it: ask the member that did, or "+
		"send the conversation itself, without previous_response_id", host, id)
}
