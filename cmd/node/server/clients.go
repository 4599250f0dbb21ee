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

// clientCalls are what all of a user's clients may have under way at one member.
const clientCalls = 1024

// clientCaller is who calls over a client's connection: its user, as the list says.
func (s *Server) clientCaller(id, addr string) (wire.Caller, error) {
	c, listed := s.cfg.List.Client(id)
	if !listed { // since Gate.Peer has asked
		return wire.Caller{}, rendezvous.ErrNoClient
	}
	u := wire.User{Name: c.User, UID: wire.NoUID}
	if c.User == rootName {
		u.UID = 0
	}
	return wire.Caller{User: &u, Addr: addr, Client: &wire.RemoteClient{ID: c.ID, Host: c.Host, Addr: addr}}, nil
}

const rootName = "root"

// serveClient serves a client's request where it is a users' call, and has each of
// them written down.
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
		call := "" // one of ours, and not whatever it has thought of
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
			err = nil // told elsewhere, or read for as long as its reader liked
		}
		if !reached || !own {
			s.cfg.Audit.UserOften("client call", c, row.Name, err)
		}
	})
	r = r.WithContext(ctx)
	defer s.clients.meter(user, r)()
	s.ServeHTTP(w, r)
}
