package web

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const (
	// linkFor is how long a link opens the page.
	linkFor = 5 * time.Minute
	// idleFor is how long a session lasts that has no page open; longestFor with one.
	idleFor, longestFor = 12 * time.Hour, 7 * 24 * time.Hour

	linksEach    = 16 // of a user that have opened nothing yet
	sessionsEach = 32 // of a user; the one that was used longest ago goes
	sessionsMost = 256
	streamsEach  = 64 // pages of a user that move
	streamsMost  = 256
)

// VisitorsConfig of who may look. All of it is needed, but for Management and Certificate.
type VisitorsConfig struct {
	Host string
	Port uint16 // 0: there is no page
	// Path is the file that keeps sessions while the agent is started anew: of cookies their hashes alone.
	Path string
	// Management is this member's address, invalid while there is none, and tells when it may have changed.
	Management func() (netip.Addr, <-chan struct{})
	// Certificate gives what is shown there, nil where there is none, and tells when that may have changed.
	Certificate func() (func() (*tls.Certificate, error), <-chan struct{})
	// Listed tells whether a remote client is one yet.
	Listed func(client string) bool
	Logger *slog.Logger
}

// Visitors are those whom the page knows: who has a link that opens it once, and whose browsers have a session.
type Visitors struct {
	cfg VisitorsConfig

	mu       sync.Mutex
	links    map[[sha256.Size]byte]link
	sessions map[[sha256.Size]byte]*session
	streams  int
}

type link struct {
	of    wire.Caller
	until time.Time
}

// session is a browser that came by a link. What it has beside the cookie is worked out of that: see sealed.
type session struct {
	Hash  []byte      `json:"hash"` // of the cookie
	Of    wire.Caller `json:"of"`
	Began time.Time   `json:"began"`

	used    time.Time
	streams int
	ctx     context.Context // until it is over
	end     context.CancelFunc
	doctor  *answer[wire.DoctorResponse]
	models  *answer[[]wire.NodeModels]
	why     *answer[wire.WhyResponse]
}

// live gives a session what it has in this process alone.
func (s *session) live() *session {
	s.used = time.Now()
	s.ctx, s.end = context.WithCancel(context.Background())
	s.doctor, s.models, s.why = &answer[wire.DoctorResponse]{}, &answer[[]wire.NodeModels]{}, &answer[wire.WhyResponse]{}
	return s
}

// visit is one request of a session.
type visit struct {
	*session
	cookie string
}

// OpenVisitors reads who had a session.
func OpenVisitors(cfg VisitorsConfig) *Visitors {
	v := &Visitors{cfg: cfg, links: map[[sha256.Size]byte]link{}, sessions: map[[sha256.Size]byte]*session{}}
	b, err := os.ReadFile(cfg.Path)
	var kept []*session
	if err == nil {
		err = json.Unmarshal(b, &kept)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // they ask for another link
		cfg.Logger.Warn("sessions of the page are lost", "error", err)
	}
	for _, s := range kept {
		if s != nil && s.Of.User != nil && len(s.Hash) == sha256.Size {
			v.sessions[[sha256.Size]byte(s.Hash)] = s.live()
		}
	}
	return v
}

// Calls are the procedures that it answers.
func (v *Visitors) Calls() []wire.Call { return []wire.Call{wire.OpenWeb.Serve(v.invite)} }

// invite makes a link for the user who asks.
func (v *Visitors) invite(_ context.Context, c wire.Caller, _ wire.Empty) (wire.WebLink, error) {
	switch {
	case v.cfg.Port == 0:
		return wire.WebLink{}, fmt.Errorf("%w: %s has no page: its agent runs with --web 0", wire.ErrDenied, v.cfg.Host)
	case c.Node != "": // what the page does would not be passed on again
		return wire.WebLink{}, fmt.Errorf("open the page: %w: ask the agent of your own machine", wire.ErrDenied)
	}
	now, token := time.Now(), secret()
	v.mu.Lock()
	mine := 0
	for hash, l := range v.links {
		if now.After(l.until) {
			delete(v.links, hash)
		} else if l.of.User.Name == c.User.Name {
			mine++
		}
	}
	if mine < linksEach {
		v.links[sha256.Sum256([]byte(token))] = link{of: c, until: now.Add(linkFor)}
	}
	v.mu.Unlock()
	if mine >= linksEach {
		return wire.WebLink{}, fmt.Errorf("%w: %d links of %s have opened nothing yet: wait %s", wire.ErrDenied, mine,
			c.User.Name, linkFor)
	}
	res := wire.WebLink{Host: v.cfg.Host, Until: now.Add(linkFor).UTC().Truncate(time.Second)}
	if host, err := v.beyond(); err == nil {
		res.URLs = append(res.URLs, "https://"+net.JoinHostPort(host, strconv.Itoa(int(v.cfg.Port)))+"/in/"+token)
	} else {
		res.Problem = err.Error()
	}
	res.URLs = append(res.URLs, fmt.Sprintf("http://127.0.0.1:%d/in/%s", v.cfg.Port, token))
	return res, nil
}

// beyond is the name by which others reach the page, by TLS, or why they do not.
func (v *Visitors) beyond() (string, error) {
	at, cert, _, _ := v.outside()
	if cert == nil {
		return "", errors.New("there is no certificate for others: `sudo sparkrun gateway ca create` makes one")
	}
	shown, err := cert()
	switch {
	case err != nil:
		return "", err
	case shown == nil:
		return "", errors.New("its certificate is being signed: ask again in a moment")
	case !at.IsValid():
		return "", fmt.Errorf("%s has no management address now", v.cfg.Host)
	case shown.Leaf.VerifyHostname(at.String()) == nil:
		return at.String(), nil
	case len(shown.Leaf.DNSNames) > 0:
		return shown.Leaf.DNSNames[0], nil
	}
	return "", errors.New("its certificate is for no address of this machine")
}

// outside is where others may reach the page, and what is shown there; the channels tell of another answer.
func (v *Visitors) outside() (at netip.Addr, cert func() (*tls.Certificate, error), moved, signed <-chan struct{}) {
	if v.cfg.Management != nil && v.cfg.Certificate != nil {
		at, moved = v.cfg.Management()
		cert, signed = v.cfg.Certificate()
	}
	return at, cert, moved, signed
}

// enter makes a session of a link, which opens nothing more.
func (v *Visitors) enter(token string) (visit, bool) {
	now, hash := time.Now(), sha256.Sum256([]byte(token))
	v.mu.Lock()
	defer v.mu.Unlock()
	l, ok := v.links[hash]
	delete(v.links, hash)
	if !ok || now.After(l.until) {
		return visit{}, false
	}
	v.sweep(now)
	v.makeRoom(l.of.User.Name)
	in := visit{cookie: secret()}
	own := sha256.Sum256([]byte(in.cookie))
	in.session = (&session{Hash: own[:], Of: l.of, Began: now.UTC()}).live()
	v.sessions[own] = in.session
	v.save()
	return in, true
}

// known is the session of a cookie.
func (v *Visitors) known(cookie string) (visit, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	s, ok := v.sessions[sha256.Sum256([]byte(cookie))]
	if !ok || v.over(s, time.Now()) {
		return visit{}, false
	}
	s.used = time.Now()
	return visit{s, cookie}, true
}

// leave ends a session.
func (v *Visitors) leave(s *session) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.drop(s)
	v.save()
}

// stream counts a page that moves until done is called.
func (v *Visitors) stream(s *session) (done func(), ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	mine := 0
	for _, other := range v.sessions {
		if other.Of.User.Name == s.Of.User.Name {
			mine += other.streams
		}
	}
	if mine >= streamsEach || v.streams >= streamsMost {
		return nil, false
	}
	s.streams++
	v.streams++
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		s.streams--
		v.streams--
		s.used = time.Now()
	}, true
}

// look ends the sessions that are over.
func (v *Visitors) look() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sweep(time.Now()) {
		v.save()
	}
}

func (v *Visitors) over(s *session, now time.Time) bool {
	return s.streams == 0 && now.Sub(s.used) > idleFor || now.Sub(s.Began) > longestFor ||
		s.Of.Client != nil && !v.cfg.Listed(s.Of.Client.ID)
}

func (v *Visitors) sweep(now time.Time) (some bool) {
	for _, s := range v.sessions {
		if v.over(s, now) {
			v.drop(s)
			some = true
		}
	}
	return some
}

// makeRoom drops what was used longest ago: of the user, or if all are too many of all.
func (v *Visitors) makeRoom(user string) {
	var all, mine []*session
	for _, s := range v.sessions {
		all = append(all, s)
		if s.Of.User.Name == user {
			mine = append(mine, s)
		}
	}
	oldest := func(of []*session) *session {
		return slices.MinFunc(of, func(a, b *session) int { return a.used.Compare(b.used) })
	}
	switch {
	case len(mine) >= sessionsEach:
		v.drop(oldest(mine))
	case len(all) >= sessionsMost:
		v.drop(oldest(all))
	}
}

func (v *Visitors) drop(s *session) {
	if hash := [sha256.Size]byte(s.Hash); v.sessions[hash] == s {
		delete(v.sessions, hash)
		s.end()
	}
}

// save keeps the sessions for the next agent. A failure costs no more than another `sparkrun web`.
func (v *Visitors) save() {
	all := []*session{}
	for _, s := range v.sessions {
		all = append(all, s)
	}
	b, err := json.Marshal(all)
	if err == nil {
		err = durable.Swap(v.cfg.Path, b, 0o600)
	}
	if err != nil {
		v.cfg.Logger.Warn("sessions of the page are not kept", "error", err)
	}
}

// secret is 256 bits that nobody guesses.
func secret() string {
	b := make([]byte, 32)
	rand.Read(b) //nolint:errcheck // it does not fail
	return base64.RawURLEncoding.EncodeToString(b)
}

// sealed is what only this session, and only for what, is given: the folder of its page, a form's token.
func (v visit) sealed(what string) string {
	mac := hmac.New(sha256.New, []byte(v.cookie))
	mac.Write([]byte(what))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16])
}

// folder is the path below which this session's pages are, and its cookie is sent. Cookies know no ports: to a server of
// somebody else on another port of this host the browser would send it, too, were it for all paths.
func (v visit) folder() string { return "/" + v.sealed("folder") + "/" }
