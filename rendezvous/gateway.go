package rendezvous

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Gateway are the settings of the one address for all models. They are in the record, and the same on every member.
type Gateway struct {
	// Open: members listen on their management addresses, not on loopback alone.
	Open bool `json:"open,omitempty"`
	// Keys by name; none: everybody who reaches it may use it.
	Keys map[string]GatewayKey `json:"keys,omitempty"`
	// Aliases are further names of models: alias -> the name that a service gives its model. One that ends in * is for
	// all names that begin so.
	Aliases map[string]string `json:"aliases,omitempty"`
	// VirtualIP is a further address of the management network, which the leader's machine holds; the zero Prefix: there
	// is none.
	VirtualIP netip.Prefix `json:"virtual_ip,omitzero"`
	// CA signs what members show where they speak TLS; nil: none does, and those without a certificate of an
	// administrator's speak plain HTTP.
	CA *GatewayCA `json:"ca,omitempty"`
}

// GatewayKey lets its holder use the gateway. The key itself is with its holder alone.
type GatewayKey struct {
	Hash KeyHash `json:"hash"` // of the key
	// Models are the names that it may ask for, aliases among them; none: all.
	Models []string `json:"models,omitempty"`
	// Rate bounds its requests a second at each member, with bursts of one second's; 0: it is not bounded.
	Rate    float64    `json:"rate,omitempty"`
	Expires *time.Time `json:"expires,omitempty"`
	// NoWake: its requests neither start a service on demand nor keep it from sleeping.
	NoWake bool `json:"no_wake,omitempty"`
	// Metrics: it may read metrics, and ask no model. A key without it may read them, too, unless it has Models.
	Metrics bool      `json:"metrics,omitempty"`
	Created time.Time `json:"created"` // the leader's clock
	By      string    `json:"by"`      // the user who made it
}

// KeyHash is a key's SHA-256; as text it is in hex.
type KeyHash [sha256.Size]byte

// MarshalText gives it in hex.
func (h KeyHash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText reads it.
func (h *KeyHash) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(h)) {
		return fmt.Errorf("hash of a key: %w: want %d digits in hex", launcher.ErrInvalid, hex.EncodedLen(len(h)))
	}
	_, err := hex.Decode(h[:], text)
	return err
}

// GatewayChange is one change of the settings. Exactly one field is set.
type GatewayChange struct {
	Open *bool `json:"open,omitempty"`
	// Key is a new one; Name is its name.
	Key *NamedGatewayKey `json:"key,omitempty"`
	// Revoke is the name of a key.
	Revoke string `json:"revoke,omitempty"`
	// Alias is a new one, or replaces that of the same name; without a model it is removed.
	Alias *GatewayAlias `json:"alias,omitempty"`
	// VirtualIP is a new one; the zero Prefix takes it away.
	VirtualIP *netip.Prefix `json:"virtual_ip,omitempty"`
	// CA is a new one, or the one that there is with further names. Who asks for it gives names; the leader adds the
	// rest. DropCA removes it.
	CA     *GatewayCA `json:"ca,omitempty"`
	DropCA bool       `json:"drop_ca,omitempty"`
}

// NamedGatewayKey is a key with its name.
type NamedGatewayKey struct {
	Name string `json:"name"`
	GatewayKey
}

// GatewayAlias is a further name of a model.
type GatewayAlias struct {
	Name  string `json:"name"`
	Model string `json:"model,omitempty"`
}

// Alias gives the model that a name stands for, and the alias: itself, or the longest that ends in * and fits. Empty: it
// stands for none.
func (g Gateway) Alias(name string) (alias, model string) {
	if model = g.Aliases[name]; model != "" {
		return name, model
	}
	for a, of := range g.Aliases {
		begin, is := strings.CutSuffix(a, "*")
		if is && len(a) > len(alias) && strings.HasPrefix(name, begin) {
			alias, model = a, of
		}
	}
	return alias, model
}

// Bounds of the settings: each change rewrites none of them, but a snapshot has them all.
const (
	MaxGatewayKeys    = 1000
	MaxGatewayAliases = 200
	maxGatewayName    = 128 // bytes, of a model or an alias
)

// VirtualIPLeast is how many machines a cluster needs for a virtual IP: of two, neither can tell a dead one from one
// that is cut off, and both might have it.
const VirtualIPLeast = 3

// Errors of changes.
var (
	ErrKeyExists = errors.New("a key of this name exists")
	ErrNoKey     = errors.New("no such key")
	ErrNoAlias   = errors.New("no such alias")
)

// Entry records it.
func (c GatewayChange) Entry() Entry { return Entry{Kind: KindGateway, Gateway: &c} }

// String is the change as the audit log has it.
func (c GatewayChange) String() string {
	switch {
	case c.Open != nil && *c.Open:
		return "open"
	case c.Open != nil:
		return "close"
	case c.Key != nil:
		return "key create " + c.Key.Name
	case c.Revoke != "":
		return "key revoke " + c.Revoke
	case c.Alias != nil && c.Alias.Model == "":
		return "alias rm " + c.Alias.Name
	case c.Alias != nil:
		return "alias set " + c.Alias.Name + " " + c.Alias.Model
	case c.VirtualIP != nil && !c.VirtualIP.IsValid():
		return "virtual-ip rm"
	case c.VirtualIP != nil:
		return "virtual-ip set " + c.VirtualIP.String()
	case c.CA != nil:
		return strings.TrimSpace("ca create " + strings.Join(c.CA.Names, ","))
	case c.DropCA:
		return "ca rm"
	}
	return ""
}

// Done tells whether the settings are as the change has them.
func (c GatewayChange) Done(g Gateway) bool {
	switch {
	case c.Open != nil:
		return g.Open == *c.Open
	case c.Key != nil:
		return g.Keys[c.Key.Name].Hash == c.Key.Hash
	case c.Revoke != "":
		_, has := g.Keys[c.Revoke]
		return !has
	case c.Alias != nil:
		return g.Aliases[c.Alias.Name] == c.Alias.Model
	case c.VirtualIP != nil:
		return g.VirtualIP == *c.VirtualIP
	case c.CA != nil:
		return g.CA.Equal(c.CA)
	case c.DropCA:
		return g.CA == nil
	}
	return false
}

// Validate refuses what no member could follow.
func (c GatewayChange) Validate() error {
	set := 0
	for _, is := range []bool{c.Open != nil, c.Key != nil, c.Revoke != "", c.Alias != nil, c.VirtualIP != nil,
		c.CA != nil, c.DropCA} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return fmt.Errorf("change of the gateway: %w: want one change, got %d", launcher.ErrInvalid, set)
	case c.Key != nil:
		return c.Key.validate()
	case c.Alias != nil:
		return c.Alias.validate()
	case c.VirtualIP != nil:
		return validVirtualIP(*c.VirtualIP)
	case c.CA != nil:
		return c.CA.validate()
	}
	return nil
}

// broadcast is the last address of a network of IPv4.
func broadcast(net netip.Prefix) netip.Addr {
	b := net.Masked().Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | uint32(uint64(1)<<(32-net.Bits())-1)
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}

func validVirtualIP(addr netip.Prefix) error {
	at := addr.Addr()
	switch {
	case addr == netip.Prefix{}:
		return nil
	case !addr.IsValid() || !at.Is4() || addr.Bits() > 30:
		return fmt.Errorf("virtual IP %s: %w: want an IPv4 address with its network, such as 10.0.0.100/24", addr,
			launcher.ErrInvalid)
	case at.IsUnspecified() || at.IsMulticast() || at.IsLoopback() || at.IsLinkLocalUnicast() ||
		at.As4()[0] >= 240 || at == addr.Masked().Addr() || at == broadcast(addr):
		return fmt.Errorf("virtual IP %s: %w: no host can have that address", addr, launcher.ErrInvalid)
	}
	return nil
}

func (k NamedGatewayKey) validate() error {
	switch {
	case !launcher.IsName(k.Name):
		return fmt.Errorf("key %.64q: %w: want a name of letters, digits and _.-, 64 at most", k.Name, launcher.ErrInvalid)
	case k.Hash == KeyHash{}:
		return fmt.Errorf("key %s: %w: it has no hash", k.Name, launcher.ErrInvalid)
	case !(k.Rate >= 0 && k.Rate <= 1e6): // nor NaN
		return fmt.Errorf("key %s: rate %g: %w: want requests a second, 0 to 1000000", k.Name, k.Rate, launcher.ErrInvalid)
	case k.Metrics && len(k.Models) > 0:
		return fmt.Errorf("key %s: %w: one for metrics may ask no model", k.Name, launcher.ErrInvalid)
	case len(k.Models) > 100:
		return fmt.Errorf("key %s: %w: %d models, 100 at most", k.Name, launcher.ErrInvalid, len(k.Models))
	}
	for _, m := range k.Models {
		if err := validModelName(m); err != nil {
			return fmt.Errorf("key %s: %w", k.Name, err)
		}
	}
	return nil
}

func (a GatewayAlias) validate() error {
	if err := validModelName(a.Name); err != nil {
		return fmt.Errorf("alias: %w", err)
	}
	if begin, _ := strings.CutSuffix(a.Name, "*"); begin == "" || strings.Contains(begin, "*") {
		return fmt.Errorf("alias %s: %w: a * stands at the end alone, for all names that begin so, such as claude-*", a.Name,
			launcher.ErrInvalid)
	}
	if a.Model == "" {
		return nil
	}
	if a.Model == a.Name {
		return fmt.Errorf("alias %s: %w: it stands for itself", a.Name, launcher.ErrInvalid)
	}
	if err := validModelName(a.Model); err != nil {
		return fmt.Errorf("alias %s: %w", a.Name, err)
	}
	return nil
}

func validModelName(name string) error {
	if name == "" || len(name) > maxGatewayName || !plain.Is(name) {
		return fmt.Errorf("model %.32q: %w: want text of 1 to %d bytes", name, launcher.ErrInvalid, maxGatewayName)
	}
	return nil
}

// changeGateway makes new maps: those that were handed out are not touched.
func (s *state) changeGateway(c GatewayChange) error {
	g := s.Gateway
	switch {
	case c.Open != nil:
		g.Open = *c.Open
	case c.Key != nil:
		if _, taken := g.Keys[c.Key.Name]; taken {
			return ErrKeyExists
		}
		if len(g.Keys) >= MaxGatewayKeys {
			return fmt.Errorf("%w: there are %d keys, at most so many; revoke some", launcher.ErrInvalid, len(g.Keys))
		}
		g.Keys = cloned(g.Keys)
		g.Keys[c.Key.Name] = c.Key.GatewayKey
	case c.Revoke != "":
		if _, has := g.Keys[c.Revoke]; !has {
			return ErrNoKey
		}
		s.revoke(g.Keys[c.Revoke])
		g.Keys = cloned(g.Keys)
		delete(g.Keys, c.Revoke)
	case c.Alias != nil && c.Alias.Model == "":
		if _, has := g.Aliases[c.Alias.Name]; !has {
			return ErrNoAlias
		}
		g.Aliases = cloned(g.Aliases)
		delete(g.Aliases, c.Alias.Name)
	case c.Alias != nil:
		if _, has := g.Aliases[c.Alias.Name]; !has && len(g.Aliases) >= MaxGatewayAliases {
			return fmt.Errorf("%w: there are %d aliases, at most so many", launcher.ErrInvalid, len(g.Aliases))
		}
		g.Aliases = cloned(g.Aliases)
		g.Aliases[c.Alias.Name] = c.Alias.Model
	case c.VirtualIP != nil:
		g.VirtualIP = *c.VirtualIP
	case c.CA != nil:
		g.CA = c.CA
	case c.DropCA && g.CA == nil:
		return ErrNoGatewayCA
	case c.DropCA:
		g.CA = nil
	}
	s.Gateway = g
	return nil
}

func cloned[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return maps.Clone(m)
}

// Gateway gives the settings, and a channel that their next change closes; no other entry of the record does. The maps
// are not to be changed.
func (r *Record) Gateway() (Gateway, <-chan struct{}) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.Gateway, r.gatewayChanged
}

// gatewayHasChanged wakes those who wait for a change of the settings. r.mu is held.
func (r *Record) gatewayHasChanged() {
	close(r.gatewayChanged)
	r.gatewayChanged = make(chan struct{})
}

// Backend is a service as the gateway sees it.
type Backend struct {
	Job launcher.JobID `json:"job"`
	// Name is the job's, or empty.
	Name string `json:"name,omitempty"`
	// Workload names the row of its engine; exec and the like have none.
	Workload string `json:"workload"`
	// Models are the names that requests give it. Aliases are not among them.
	Models []string `json:"models"`
	// State is one word, as `service ls` has it; Text says what is wrong.
	State string `json:"state"`
	Text  string `json:"text,omitempty"`
	// Ready: it answers at Addr.
	Ready bool `json:"ready,omitempty"`
	// Comes: it does not answer now, and will without anybody's doing: it starts, or is restarted.
	Comes bool           `json:"comes,omitempty"`
	Addr  netip.AddrPort `json:"addr,omitzero"`
	// Moves: it is being ended, and its leader waits for what is under way.
	Moves bool `json:"moves,omitempty"`
	// OnDemand: it runs only while it is used. Asleep it neither is Ready nor Comes, but for who asks the leader for it.
	OnDemand bool `json:"on_demand,omitempty"`
	// Local: it listens on loopback, so that only Host reaches it.
	Local bool `json:"local,omitempty"`
	// Generation changes with every new start.
	Generation launcher.Generation `json:"generation"`
	Host       string              `json:"host,omitempty"` // of rank 0
	// Metrics is the path of its Prometheus metrics at Addr; empty: it has none.
	Metrics string `json:"metrics,omitempty"`
}

// Failed tells whether it has ended: it is there for who asks why.
func (b Backend) Failed() bool { return b.State == string(Failed) }

// Asleep tells whether it is on demand and starts only when it is asked for.
func (b Backend) Asleep() bool { return b.OnDemand && b.State == string(StateAsleep) }

// Queued tells whether it was asked for and waits for a place, as long as it is asked for again.
func (b Backend) Queued() bool { return b.OnDemand && b.State == string(StateWaits) }

// ServiceUse is what the leader has to know of a service's requests at a member.
type ServiceUse struct {
	Job launcher.JobID `json:"job"`
	// Ago is when the last one came that keeps a service on demand up; 0: it is under way; nil: that is not told.
	Ago *time.Duration `json:"ago,omitempty"`
	// Wake: one waits for the service to start.
	Wake bool `json:"wake,omitempty"`
	// UnderWay is how many are with a service that Moves; nil: it does not.
	UnderWay *int64 `json:"under_way,omitempty"`
}

// GatewayMap is all that a member's gateway goes by: the leader's word.
type GatewayMap struct {
	Gateway  Gateway   `json:"gateway"`
	Backends []Backend `json:"backends"` // by job
}

// Equal tells whether nothing has changed.
func (m GatewayMap) Equal(other GatewayMap) bool {
	return m.Gateway.Open == other.Gateway.Open && m.Gateway.VirtualIP == other.Gateway.VirtualIP &&
		maps.EqualFunc(m.Gateway.Keys, other.Gateway.Keys, sameKey) && m.Gateway.CA.Equal(other.Gateway.CA) &&
		maps.Equal(m.Gateway.Aliases, other.Gateway.Aliases) && slices.EqualFunc(m.Backends, other.Backends, sameBackend)
}

// sameKey: a key never changes, but one may be revoked and another made of its name.
func sameKey(a, b GatewayKey) bool { return a.Hash == b.Hash }

// Equal tells whether nothing of it has changed.
func (b Backend) Equal(other Backend) bool { return sameBackend(b, other) }

func sameBackend(a, b Backend) bool {
	same := slices.Equal(a.Models, b.Models)
	a.Models, b.Models = nil, nil
	return same && a.Job == b.Job && a.Name == b.Name && a.Workload == b.Workload && a.State == b.State &&
		a.Text == b.Text && a.Ready == b.Ready && a.Comes == b.Comes && a.Moves == b.Moves && a.OnDemand == b.OnDemand && a.Addr == b.Addr && a.Local == b.Local &&
		a.Generation == b.Generation && a.Host == b.Host && a.Metrics == b.Metrics
}
