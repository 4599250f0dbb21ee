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

// Client is a machine of a user's that is no member of the cluster: a laptop.
type Client struct {
	ID   string    `json:"id"`   // UUID, minted by the machine; in its certificate
	User string    `json:"user"` // whose calls its calls are
	Host string    `json:"host"` // its name, as it says
	Key  string    `json:"key"`  // SHA-256 of its public key, as trust.Pin writes it
	At   time.Time `json:"at"`   // of the login; the leader's clock
}

// Login uses up one use of a token and makes a machine a client.
type Login struct {
	TokenID string `json:"token_id"`
	Client  Client `json:"client"`
}

// RoleClient is what a token's role must be to let a client in.
const RoleClient = "client"

// MaxClients bounds the list: every member keeps it, and every handshake looks at it.
const MaxClients = 1000

// Errors about clients. An entry that meets one changes nothing.
var (
	ErrNoClient       = errors.New("no such client")
	ErrTooManyClients = fmt.Errorf("there are %d clients already: `sparkrun client list`, `sparkrun client remove`",
		MaxClients)
)

// login makes a machine a client of the token's user: whatever else the entry
// says, a client of another user does not come of it.
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
		return ErrTokenUsed // a login cannot be made twice
	case len(s.Clients) >= MaxClients:
		return ErrTooManyClients
	}
	t.Uses--
	s.Tokens[t.ID] = t
	c.User, c.At = t.User, at
	if s.Clients == nil { // a snapshot of before there were any
		s.Clients = map[string]Client{}
	}
	s.Clients[c.ID] = c
	return nil
}

// logout takes a client out for good. The tokens that wait for more clients of
// the same user go with it: whoever has the machine may have made one.
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

// FindClient gives the one that a person's text means: an id or the beginning
// of one, a host's name, or user@host, where it is one client's only.
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
