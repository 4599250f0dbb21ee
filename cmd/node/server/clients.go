package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/audit"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// clientCalls is how many calls all clients of a user may have in progress at one member.
const clientCalls = 1024

// clientCaller is the caller on a client's connection: its user, by the list of clients.
func (s *Server) clientCaller(id, addr string) (wire.Caller, error) {
	c, listed := s.cfg.List.Client(id)
	if !listed { // removed since Gate.Peer asked
		return wire.Caller{}, rendezvous.ErrNoClient
	}
	u := wire.User{Name: c.User, UID: wire.NoUID}
	if c.User == rootName {
		u.UID = 0
	}
	return wire.Caller{User: &u, Addr: addr, Client: &wire.RemoteClient{ID: c.ID, Host: c.Host, Addr: addr}}, nil
}

const rootName = "root"

// serveClient serves a client's request if it is a call for users; each one is audited.
func (s *Server) serveClient(p trust.Peer, w http.ResponseWriter, r *http.Request) {
	c, err := s.clientCaller(p.NodeID, r.RemoteAddr)
	if err != nil {
		s.cfg.Audit.Unauthenticated(audit.Line{What: "client call", From: r.RemoteAddr, Client: p.NodeID,
			Outcome: audit.Refused, Why: err.Error()})
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	row := wire.Find(r.URL.Path)
	if row == nil || !row.ForUsers() {
		call := "" // one of our names, never a text of the client's choice
		if row != nil {
			call = row.Path()
		}
		err = fmt.Errorf("%w: this call is not for clients", wire.ErrDenied)
		s.cfg.Audit.UserOften("client call", c, call, err)
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	user := holder{name: c.User.Name, root: c.User.UID == 0}
	if err := s.clients.enter(user); err != nil {
		s.cfg.Audit.UserOften("client call", c, "", err)
		wire.Refuse(w, err)
		return
	}
	defer s.clients.leave(user)
	own := row.Own || row.Audit != ""
	ctx := wire.WithEnd(wire.WithCaller(r.Context(), c), func(reached bool, err error) {
		if reached && (own || errors.Is(err, context.Canceled)) {
			err = nil // the reason is told elsewhere, or the reader just stopped reading
		}
		if !reached || !own {
			s.cfg.Audit.UserOften("client call", c, row.Name, err)
		}
	})
	r = r.WithContext(ctx)
	defer s.clients.meter(user, r)()
	s.ServeHTTP(w, r)
}
