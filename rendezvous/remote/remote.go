// Package remote is a cluster as seen by a remote client: a user's machine that is not a member.
//
// It decides which member is called, and tries another if that one does not answer; when to ask for the member list
// and the next certificate; and what is kept about a cluster here.
//
// It must not trust a node that is not on that list, must not send a token's secret before the other end has proven
// that it is of the token's cluster, and must not show the caller which member answered.
package remote

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// ErrLoggedOut: the members that answer do not list this client.
var ErrLoggedOut = errors.New("the cluster does not know this machine any more")

// ErrNoMember: a client has reached none of the members.
var ErrNoMember = errors.New("no machine of the cluster answers")

const (
	loginTimeout = 30 * time.Second
	// dialNext is how long one member has to itself before the next is tried beside it.
	dialNext = 300 * time.Millisecond
	// dialMember bounds one member's answer: over a VPN it may take a while.
	dialMember = 10 * time.Second
	// refreshEvery is how old the list of members may get while the client is in use.
	refreshEvery = time.Hour
	// refreshWithin bounds how long a command waits for a fresh list; after that it uses the old one.
	refreshWithin = 5 * time.Second
)

// State is what a client keeps of a cluster, beside its key and certificate.
type State struct {
	Cluster   string          `json:"cluster"`
	User      string          `json:"user"`           // whose client this is
	Home      string          `json:"home,omitempty"` // that user's, on the members
	Members   []wire.Member   `json:"members"`
	Last      launcher.NodeID `json:"last,omitempty"` // the member that answered last
	Refreshed time.Time       `json:"refreshed,omitzero"`
}

// Cluster is a cluster as a client reaches it. Its calls are those of the local socket;
// the caller does not see which member answers.
type Cluster struct {
	*wire.Client
	dir   string
	now   func() time.Time
	gate  *trust.Gate
	calls *wire.Client // past the refresh

	mu    sync.Mutex
	state State
	once  sync.Once // the refresh of this process
}

// Login makes this machine a client of the cluster that has a member at addr
// (HOST[:PORT]) and gave out the token. What it keeps lies in dir, which must not
// be there yet, or be empty. host is this machine's name, for people.
func Login(ctx context.Context, dir, addr, tokenText, host string) (State, error) {
	none := State{}
	ctx, cancel := context.WithTimeout(ctx, loginTimeout)
	defer cancel()
	token, err := trust.ParseToken(tokenText)
	if err != nil {
		return none, err
	}
	if _, err := trust.LoadClient(dir); !errors.Is(err, fs.ErrNotExist) {
		return none, cmp.Or(err, fmt.Errorf("log in: %s is in use: %w", dir, fs.ErrExist))
	}
	key, err := trust.NewKey()
	if err != nil {
		return none, err
	}
	req := wire.LoginRequest{Secret: token.Secret.Reveal(), Client: uuid.NewString(), Host: host}
	if req.CSR, err = trust.NewCSR(key, req.Client); err != nil {
		return none, err
	}
	if err := canWrite(dir); err != nil { // before a token is used up in vain
		return none, fmt.Errorf("log in: %w", err)
	}
	// The secret is sent once the other end has proven that it is of the token's cluster.
	res, _, err := membership.AskAsNewcomer(ctx, time.Now, addr, membership.JoinTimeout, token,
		func(c *wire.Client) (wire.LoginResponse, error) { return wire.Login.Call(ctx, c, req) })
	if err != nil {
		_ = os.Remove(dir) // unless it is not empty
		return none, fmt.Errorf("log in to the cluster at %s: %w", addr, err)
	}
	id, err := trust.NewIdentity(key, res.Cert, res.CACert)
	if err == nil && trust.PinOf(id.CA) != token.Pin {
		err = fmt.Errorf("%w: the certificate is by another CA than the token's", trust.ErrForeign)
	}
	if err == nil && (id.Role != trust.RoleClient || id.NodeID != req.Client) {
		err = fmt.Errorf("%w: the certificate is another's", trust.ErrForeign)
	}
	if err != nil {
		return none, fmt.Errorf("log in to the cluster at %s: %w", addr, err)
	}
	st := State{Cluster: res.Cluster, User: res.User, Members: res.Members}
	if err := errors.Join(save(dir, st), trust.SaveClient(dir, id)); err != nil {
		return none, err
	}
	r, err := Open(dir, nil)
	if err != nil {
		return none, err
	}
	defer r.Close()
	for { // a member may learn of a new client a moment later than the leader
		err := r.refresh(ctx)
		if err == nil {
			return r.State(), nil
		}
		if !errors.Is(err, wire.ErrUnreachable) && !errors.Is(err, wire.ErrRetry) {
			return none, err
		}
		select {
		case <-ctx.Done():
			return none, fmt.Errorf("logged in, but no call works yet: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// canWrite makes a folder and tests that it is writable.
func canWrite(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "try")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

func save(dir string, st State) error {
	text, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("save what is known of the cluster: %w", err)
	}
	return trust.SaveMembers(dir, append(text, '\n'))
}

// Read reads what a client has kept; it wraps fs.ErrNotExist if there is nothing.
func Read(dir string) (st State, err error) {
	text, err := trust.LoadMembers(dir)
	if err != nil {
		return st, err
	}
	if err := json.Unmarshal(text, &st); err != nil {
		return st, fmt.Errorf("read %s: %w", dir, err)
	}
	return st, nil
}

// Open prepares calls to a cluster by what Login has left in dir. Certificates are checked with the clock now; nil
// means time.Now.
func Open(dir string, now func() time.Time) (*Cluster, error) {
	if now == nil {
		now = time.Now
	}
	st, err := Read(dir)
	if err != nil {
		return nil, err
	}
	id, err := trust.LoadClient(dir)
	if err != nil {
		return nil, err
	}
	r := &Cluster{dir: dir, now: now, state: st}
	if r.gate, err = trust.NewGate(trust.Config{Identity: id, Members: r.isMember, Now: now}); err != nil {
		return nil, err
	}
	tr := r.transport()
	r.calls = wire.NewClient(&http.Client{Transport: tr}, "http://cluster")
	r.Client = wire.NewClient(&http.Client{Transport: fresh{r, tr}}, "http://cluster")
	return r, nil
}

func (r *Cluster) transport() *http.Transport {
	tr := &http.Transport{
		Protocols: new(http.Protocols),
		// Notice a member that dies, but allow for Wi-Fi that is silent for some seconds.
		HTTP2:       &http.HTTP2Config{SendPingTimeout: 3 * time.Second, PingTimeout: 7 * time.Second},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return r.dial(ctx) },
	}
	tr.Protocols.SetUnencryptedHTTP2(true) // what dial gives is encrypted, and has agreed on h2
	return tr
}

// State is what is known of the cluster now.
func (r *Cluster) State() State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state
}

// keep changes the state, here and on disk. A full disk only makes the next command a
// little slower.
func (r *Cluster) keep(change func(*State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, _ := json.Marshal(r.state)
	change(&r.state)
	after, err := json.Marshal(r.state)
	if _, gone := os.Stat(r.dir); err == nil && gone == nil &&
		string(before) != string(after) { // else there was a logout in the meantime
		_ = save(r.dir, r.state)
	}
}

// isMember checks the member list that this client got last.
func (r *Cluster) isMember(p trust.Peer, key trust.Pin) error {
	for _, m := range r.State().Members {
		if m.ID == launcher.NodeID(p.NodeID) && (m.Key == "" || m.Key == key.String()) {
			return nil
		}
	}
	return errors.New("it is not on this machine's list of members")
}

// fresh makes the first call of a process wait for a refresh if one is due.
type fresh struct {
	r *Cluster
	*http.Transport
}

func (f fresh) RoundTrip(q *http.Request) (*http.Response, error) {
	f.r.once.Do(func() {
		id, st, now := f.r.gate.Identity(), f.r.State(), f.r.now()
		if since := now.Sub(st.Refreshed); since > refreshEvery || since < 0 || now.After(id.RenewAt()) {
			ctx, cancel := context.WithTimeout(q.Context(), refreshWithin)
			defer cancel()
			_ = f.r.refresh(ctx) // the call itself will report what is wrong
		}
	})
	return f.Transport.RoundTrip(q)
}

// refresh asks where the members are and, if it is due, for the next certificate.
func (r *Cluster) refresh(ctx context.Context) error {
	id := r.gate.Identity()
	csr, err := id.CSR()
	if err != nil {
		return err
	}
	if r.now().After(id.Cert.NotAfter) {
		var addrs []netip.AddrPort
		for _, m := range r.State().Members {
			addrs = append(addrs, m.Addr)
		}
		cert, err := membership.RenewExpired(ctx, r.now, id, csr, addrs)
		if err == nil {
			err = r.renewed(id, cert)
		}
		if err != nil {
			return err
		}
		csr = nil
	} else if r.now().Before(id.RenewAt()) {
		csr = nil
	}
	res, err := wire.Refresh.Call(ctx, r.calls, wire.RefreshRequest{CSR: csr})
	if err != nil {
		return err
	}
	if len(res.Cert) > 0 {
		if err := r.renewed(id, res.Cert); err != nil {
			return err
		}
	}
	r.keep(func(st *State) {
		st.User, st.Home, st.Members = res.User, res.Home, res.Members
		if len(csr) == 0 || len(res.Cert) > 0 { // else it cannot sign: another is asked by the next command
			st.Refreshed = r.now().UTC().Truncate(time.Second)
		} else if st.Last != "" && len(st.Members) > 1 {
			st.Last = ""
			st.Members = append(st.Members[1:], st.Members[0])
		}
	})
	return nil
}

func (r *Cluster) renewed(old *trust.Identity, cert []byte) error {
	id, err := old.Renewed(cert)
	if err != nil {
		return err
	}
	if err := trust.SaveClient(r.dir, id); err != nil {
		return err
	}
	return r.gate.Renew(id)
}

// order gives the members in the order of dialling: the one that answered last comes first.
func (r *Cluster) order() []wire.Member {
	st := r.State()
	last := slices.IndexFunc(st.Members, func(m wire.Member) bool { return m.ID == st.Last })
	if last <= 0 {
		return st.Members
	}
	return slices.Concat(st.Members[last:last+1], st.Members[:last], st.Members[last+1:])
}

// dial opens a connection to the first member that accepts this client: it tries one
// after the other, each in parallel with those that have not answered yet.
func (r *Cluster) dial(ctx context.Context) (net.Conn, error) {
	members := r.order()
	if len(members) == 0 {
		return nil, errors.New("no member of the cluster is known here: log in again")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		of   wire.Member
		conn net.Conn
		err  error
	}
	answers := make(chan answer, len(members))
	next, waiting := 0, 0
	try := func() {
		m := members[next]
		next, waiting = next+1, waiting+1
		go func() { // ends with ctx; its connection is taken below, or closed
			c, err := r.dialMember(ctx, m)
			answers <- answer{m, c, err}
		}()
	}
	try()
	var errs []error
	for waiting > 0 {
		var more <-chan time.Time
		if next < len(members) {
			more = time.After(dialNext)
		}
		select {
		case a := <-answers:
			waiting--
			if a.err == nil {
				r.keep(func(st *State) { st.Last = a.of.ID })
				go func(left int) { // close connections that come too late
					for range left {
						if late := <-answers; late.conn != nil {
							late.conn.Close()
						}
					}
				}(waiting)
				return a.conn, nil
			}
			errs = append(errs, fmt.Errorf("%s (%s): %w", a.of.Host, a.of.Addr, a.err))
			if next < len(members) {
				try()
			}
		case <-more:
			try()
		}
	}
	return nil, noWay(errs)
}

// noWay says in one line why no member could be used.
func noWay(errs []error) error {
	for _, err := range errs {
		if errors.Is(err, ErrLoggedOut) {
			return err
		}
	}
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return fmt.Errorf("%w: %s", ErrNoMember, strings.Join(texts, "; "))
}

// dialMember opens a connection to a member, which must prove that it is that one and
// take this client in. In TLS 1.3 a client's handshake is done before the server has
// checked the client: the first byte that the server sends over HTTP/2, unasked, shows
// that it has.
func (r *Cluster) dialMember(ctx context.Context, m wire.Member) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialMember)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.Addr.String())
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err // the address is named by the caller
		}
		return nil, err
	}
	c := &greeted{Conn: tls.Client(raw, r.gate.Client(string(m.ID), dial.Calls))}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	err = c.HandshakeContext(ctx)
	if err == nil {
		c.from = bufio.NewReader(c.Conn)
		_, err = c.from.Peek(1)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		if strings.Contains(err.Error(), "tls: bad certificate") { // all that the refused end learns; the error has no type
			err = fmt.Errorf("%w (or a clock is wrong)", ErrLoggedOut)
		}
		return nil, err
	}
	return c, nil
}

// greeted is a connection of which something has been read.
type greeted struct {
	*tls.Conn
	from *bufio.Reader
}

func (g *greeted) Read(b []byte) (int, error) { return g.from.Read(b) }

// Unusable is a cluster of which each call meets err.
func Unusable(err error) *wire.Client {
	return wire.NewClient(&http.Client{Transport: unusable{err}}, "http://cluster")
}

type unusable struct{ err error }

func (u unusable) RoundTrip(*http.Request) (*http.Response, error) { return nil, u.err }
