package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Client is a user's machine that is not a member of the cluster, such as a laptop.
type Client struct {
	ID   string    `json:"id"`   // UUID, minted by the machine; in its certificate
	User string    `json:"user"` // on whose behalf it calls
	Host string    `json:"host"` // the name that it gave
	Key  string    `json:"key"`  // SHA-256 of its public key, as trust.Pin writes it
	At   time.Time `json:"at"`   // of the login; the leader's clock
}

// Login uses up one use of a token and makes a machine a client.
type Login struct {
	TokenID string `json:"token_id"`
	Client  Client `json:"client"`
}

// RoleClient is the role of a token that admits clients.
const RoleClient = "client"

// MaxClients bounds the list: every member keeps it, and every handshake searches it.
const MaxClients = 1000

// Errors about clients. An entry that meets one changes nothing.
var (
	ErrNoClient       = errors.New("no such client")
	ErrTooManyClients = fmt.Errorf("there are %d clients already: `sparkrun client list`, `sparkrun client remove`",
		MaxClients)
)

// login makes a machine a client of the token's user, whatever user the entry names.
func (s *state) login(at time.Time, l Login) error {
	t, ok := s.Tokens[l.TokenID]
	if !ok {
		return ErrTokenUnknown
	}
	if err := t.Check(at, RoleClient); err != nil {
		return err
	}
	c := l.Client
	switch _, known := s.Clients[c.ID]; {
	case c.ID == "" || t.User == "" || known || s.LoggedOut[c.ID]:
		return ErrTokenUsed // the same login cannot happen twice
	case len(s.Clients) >= MaxClients:
		return ErrTooManyClients
	}
	t.Uses--
	s.Tokens[t.ID] = t
	c.User, c.At = t.User, at
	if s.Clients == nil { // from a snapshot without any
		s.Clients = map[string]Client{}
	}
	s.Clients[c.ID] = c
	return nil
}

// logout removes a client for good, together with the unused client tokens of its user:
// whoever has the machine may have made one.
func (s *state) logout(id string) error {
	c, ok := s.Clients[id]
	if !ok {
		return ErrNoClient
	}
	delete(s.Clients, id)
	maps.DeleteFunc(s.Tokens, func(_ string, t Token) bool { return t.Role == RoleClient && t.User == c.User })
	if s.LoggedOut == nil {
		s.LoggedOut = map[string]bool{}
	}
	s.LoggedOut[id] = true
	return nil
}

// Client gives one client.
func (r *Record) Client(id string) (Client, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	c, ok := r.s.Clients[id]
	return c, ok
}

// Clients lists them by user, then by host, the older one first.
func (r *Record) Clients() []Client {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return slices.SortedStableFunc(maps.Values(r.s.Clients), func(a, b Client) int {
		return cmp.Or(strings.Compare(a.User, b.User), compareNatural(a.Host, b.Host), a.At.Compare(b.At),
			strings.Compare(a.ID, b.ID))
	})
}

// FindClient gives the client that a user's text names: an id or its beginning, a host
// name, or user@host. It must fit one client only.
func FindClient(clients []Client, text string) (Client, error) {
	var found []Client
	for _, c := range clients {
		switch {
		case c.ID == text:
			return c, nil
		case c.Host == text, c.User+"@"+c.Host == text, len(text) >= 4 && strings.HasPrefix(c.ID, text):
			found = append(found, c)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Client{}, fmt.Errorf("client %q: %w: `sparkrun client list` shows them", text, ErrNoClient)
	}
	ids := make([]string, len(found))
	for i, c := range found {
		ids[i] = fmt.Sprintf("%s (%s@%s)", c.ID, c.User, c.Host)
	}
	return Client{}, fmt.Errorf("client %q: %w: it could be %s", text, ErrNoClient, strings.Join(ids, ", "))
}
