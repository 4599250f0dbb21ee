package wire

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// Caller is who calls: a user of this node, known by the socket's peer credentials; a
// user with a client's certificate; a member, known by its certificate; a member on
// behalf of a user who called it; or a newcomer, about whom nothing is known.
type Caller struct {
	Node launcher.NodeID // the member that calls; empty for the local socket and for clients
	Host string
	User *User // nil for a member's own calls and for newcomers
	Addr string
	// Client is the machine from which the user calls if that is not a member; nil for a
	// user on a member.
	Client *RemoteClient
}

// RemoteClient is a user's machine that is not a member, as the cluster lists it.
type RemoteClient struct {
	ID   string // UUID
	Host string // its name, as it said at its login
	Addr string // where the call came from, as seen by the member that was called
}

// String is for logs and messages.
func (c RemoteClient) String() string { return c.Host + " (" + c.ID + ", " + c.Addr + ")" }

// NoUID is the id of a client's user who is not root: (uid_t)-1, which because of
// chown(2) and setresuid(2) belongs to nobody. A client's user is known by name.
const NoUID = math.MaxUint32

// User is a login on the node where the call was made.
type User struct {
	Name string
	UID  uint32
}

// Forwarded tells that a member passes a user's call on.
func (c Caller) Forwarded() bool { return c.Node != "" && c.User != nil }

type callerKey struct{}

// WithCaller tells the handlers below who calls on this connection.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, c)
}

type endKey struct{}

// WithEnd makes the server call end with the outcome of this request; reached tells
// whether the request got to its handler. It is not called for a message that cannot be
// read.
func WithEnd(ctx context.Context, end func(reached bool, err error)) context.Context {
	return context.WithValue(ctx, endKey{}, end)
}

func ended(ctx context.Context, reached bool, err error) {
	if end, ok := ctx.Value(endKey{}).(func(bool, error)); ok {
		end(reached, err)
	}
}

const (
	userHeader   = "Sparkrun-User"
	clientHeader = "Sparkrun-Client"
)

// callerOf combines what the connection proves with what a member says about the user for
// whom it calls. Only members are trusted with that.
func callerOf(ctx context.Context, h http.Header) (Caller, error) {
	c, _ := ctx.Value(callerKey{}).(Caller)
	if text := h.Get(userHeader); text != "" && c.Node != "" {
		u, err := parseUser(text)
		if err != nil {
			return Caller{}, err
		}
		c.User = &u
		if text := h.Get(clientHeader); text != "" {
			q, err := url.ParseQuery(text)
			if err != nil {
				return Caller{}, fmt.Errorf("read caller: %w: its client", ErrDenied)
			}
			c.Client = &RemoteClient{ID: q.Get("id"), Host: q.Get("host"), Addr: q.Get("addr")}
		}
	}
	return c, nil
}

func (c *Caller) write(h http.Header) {
	if c != nil && c.User != nil {
		h.Set(userHeader, fmt.Sprintf("%d:%s", c.User.UID, url.QueryEscape(c.User.Name)))
		if l := c.Client; l != nil {
			h.Set(clientHeader, url.Values{"id": {l.ID}, "host": {l.Host}, "addr": {l.Addr}}.Encode())
		}
	}
}

func parseUser(text string) (User, error) {
	id, name, _ := strings.Cut(text, ":")
	uid, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return User{}, fmt.Errorf("read caller %q: %w: its user id", text, ErrDenied)
	}
	name, err = url.QueryUnescape(name)
	if err != nil || name == "" {
		return User{}, fmt.Errorf("read caller %q: %w: its user name", text, ErrDenied)
	}
	return User{Name: name, UID: uint32(uid)}, nil
}

// MustBeRoot guards what gives power over every node. The caller is a user.
func (c Caller) MustBeRoot(what string) error {
	switch {
	case c.User.UID != 0 && c.Client != nil: // sudo there would not help
		return fmt.Errorf("%s: %w: it takes root: type it on a machine of the cluster, with sudo", what, ErrDenied)
	case c.User.UID != 0:
		return fmt.Errorf("%s: %w: run it as root (sudo)", what, ErrDenied)
	}
	return nil
}

// RunsAs is the user as whom a caller may start ranks: the caller, or for root anybody.
// What the message says does not suffice.
func (c Caller) RunsAs(wanted string) (string, error) {
	switch {
	case wanted == "" || wanted == c.User.Name:
		return c.User.Name, nil
	case c.User.UID == 0:
		return wanted, nil
	}
	return "", fmt.Errorf("--user %s: %w: only root may run jobs as another user", wanted, ErrDenied)
}
