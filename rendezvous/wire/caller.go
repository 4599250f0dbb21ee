package wire

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// Caller is who asks: a user of this node, by the socket's peer credentials; a
// member, by its certificate; a member on behalf of a user of its own; or a
// newcomer, of whom nothing is known.
type Caller struct {
	Node launcher.NodeID // the member that calls; empty for the local socket
	Host string
	User *User // nil for a member's own calls and for newcomers
	Addr string
}

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

const userHeader = "Sparkrun-User"

// callerOf joins what the connection proves with what a member says of the
// user it passes on. Only members are believed.
func callerOf(ctx context.Context, h http.Header) (Caller, error) {
	c, _ := ctx.Value(callerKey{}).(Caller)
	if text := h.Get(userHeader); text != "" && c.Node != "" {
		u, err := parseUser(text)
		if err != nil {
			return Caller{}, err
		}
		c.User = &u
	}
	return c, nil
}

func (c *Caller) write(h http.Header) {
	if c != nil && c.User != nil {
		h.Set(userHeader, fmt.Sprintf("%d:%s", c.User.UID, url.QueryEscape(c.User.Name)))
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

func allowUser(c Caller) error {
	if c.User == nil {
		return fmt.Errorf("%w: this call is for users", ErrDenied)
	}
	return nil
}

func allowMember(c Caller) error {
	if c.Node == "" {
		return fmt.Errorf("%w: this call is for members of the cluster", ErrDenied)
	}
	return nil
}

func allowAnybody(Caller) error { return nil }
