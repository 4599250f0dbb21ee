package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/failover"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Founded is what Init made.
type Founded struct {
	Cluster  string
	Host     string
	Addr     netip.AddrPort // management address and RPC port: what others join at
	Warnings []string
}

// Init makes this machine the first node of a new cluster. It writes the
// machine's state and starts nothing: the agent does.
func Init(ctx context.Context, cfg Config) (Founded, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Founded{}, err
	}
	held, err := claim(cfg.Paths)
	if err != nil {
		return Founded{}, err
	}
	defer held.Close()
	_, inv, mgmt, err := hardware(ctx, cfg)
	if err != nil {
		return Founded{}, err
	}
	now := cfg.Now()
	m := membership{
		Node: launcher.NodeID(uuid.NewString()), Cluster: uuid.NewString(), Host: cfg.Host, Management: cfg.Management,
		FabricPorts: cfg.FabricPorts, RPCPort: cfg.RPCPort, GossipPort: cfg.GossipPort,
	}
	ca, err := trust.NewCA(m.Cluster, now)
	if err != nil {
		return Founded{}, err
	}
	key, err := trust.NewKey()
	if err != nil {
		return Founded{}, err
	}
	csr, err := trust.NewCSR(key, string(m.Node))
	if err != nil {
		return Founded{}, err
	}
	cert, err := ca.Issue(csr, string(m.Node), m.Host, trust.RoleNode, now)
	if err != nil {
		return Founded{}, err
	}
	id, err := trust.NewIdentity(key, cert.Raw, ca.Cert.Raw)
	if err != nil {
		return Founded{}, err
	}
	if err := trust.SaveCA(cfg.Paths.trust(), ca); err != nil {
		return Founded{}, err
	}
	if err := failover.Enrol(cfg.Paths.State, launcher.Epoch{N: 1}, true); err != nil {
		return Founded{}, err
	}
	if err := enrol(cfg.Paths, m, id, wire.Trusted{Keyring: wireRing(trust.Keyring{trust.NewGossipKey(0)})}); err != nil {
		return Founded{}, err
	}
	return Founded{Cluster: m.Cluster, Host: m.Host, Addr: netip.AddrPortFrom(mgmt.Addr, uint16(m.RPCPort)), Warnings: warnings(inv, mgmt)}, nil
}

// warnings are what the user should know of the choices that were made.
func warnings(inv envgen.Inventory, mgmt envgen.ManagementChoice) []string {
	return slices.DeleteFunc([]string{mgmt.Warning, inv.UnknownFabricPort()}, func(text string) bool { return text == "" })
}

// enrol writes a membership; the identity comes last and completes it.
func enrol(p Paths, m membership, id *trust.Identity, t wire.Trusted) error {
	if err := trust.SaveGossipKeys(p.trust(), ringOf(t.Keyring)); err != nil {
		return err
	}
	if err := trust.SaveRetired(p.trust(), trust.Retired(ringOf(t.Retired))); err != nil {
		return err
	}
	if len(t.Members.Members) > 0 {
		if err := saveRoll(p, t.Members); err != nil {
			return err
		}
	}
	if err := m.save(p); err != nil {
		return err
	}
	return trust.SaveIdentity(p.trust(), id)
}

// Joined is what Join found.
type Joined struct {
	Cluster  string
	Host     string
	Addr     netip.AddrPort // this node's
	Leader   string
	OnlyOn   string // the one host that has the join recorded; empty where others have
	Warnings []string
}

// Join makes this machine a member of the cluster that has a node at addr
// (HOST[:PORT]) and gave out the token. It writes the machine's state and
// starts nothing: the agent does.
func Join(ctx context.Context, cfg Config, addr, tokenText string) (Joined, error) {
	token, err := trust.ParseToken(tokenText)
	if err != nil {
		return Joined{}, err
	}
	return join(ctx, cfg, []string{addr}, token)
}

// join asks at that of these addresses where a node of the token's cluster answers first.
func join(ctx context.Context, cfg Config, addrs []string, token trust.Token) (Joined, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	cfg, err := cfg.withDefaults()
	if err != nil {
		return Joined{}, err
	}
	held, err := claim(cfg.Paths)
	if err != nil {
		return Joined{}, err
	}
	defer held.Close()
	_, inv, mgmt, err := hardware(ctx, cfg)
	if err != nil {
		return Joined{}, err
	}
	m := membership{
		Node: launcher.NodeID(uuid.NewString()), Host: cfg.Host, Management: cfg.Management,
		FabricPorts: cfg.FabricPorts, RPCPort: cfg.RPCPort, GossipPort: cfg.GossipPort, Witness: cfg.Witness,
	}
	key, err := trust.NewKey()
	if err != nil {
		return Joined{}, err
	}
	csr, err := trust.NewCSR(key, string(m.Node))
	if err != nil {
		return Joined{}, err
	}
	self := netip.AddrPortFrom(mgmt.Addr, uint16(m.RPCPort))
	res, addr, err := askWhoProves(ctx, cfg.Now, addrs, token, wire.JoinRequest{Secret: token.Secret.Reveal(), CSR: csr, Node: m.Node, Host: m.Host, Addr: self, Witness: m.Witness, Protocol: cfg.speaks()})
	if err != nil {
		return Joined{}, err
	}
	id, err := trust.NewIdentity(key, res.Cert, res.CACert)
	if err != nil {
		return Joined{}, fmt.Errorf("join the cluster at %s: %w", addr, err)
	}
	if trust.PinOf(id.CA) != token.Pin {
		return Joined{}, fmt.Errorf("join the cluster at %s: %w: the certificate is by another CA than the token's", addr, trust.ErrForeign)
	}
	m.Cluster = res.Cluster
	if err := failover.Enrol(cfg.Paths.State, launcher.Epoch{N: res.Epoch, By: res.EpochBy}, false); err != nil {
		return Joined{}, err
	}
	if err := (dial.Addresses{Peers: res.Peers}).Save(cfg.Paths.where()); err != nil {
		return Joined{}, err
	}
	if err := enrol(cfg.Paths, m, id, res.Trusted); err != nil {
		return Joined{}, err
	}
	return Joined{Cluster: m.Cluster, Host: m.Host, Addr: self, Leader: res.Leader, OnlyOn: res.OnlyOn, Warnings: warnings(inv, mgmt)}, nil
}

const (
	// provenWithin bounds how long one of several addresses may take to answer and prove
	// what it is.
	provenWithin = 5 * time.Second
	// mostTold is how many of them are named where none is of the cluster.
	mostTold = 8
)

// askWhoProves asks where somebody has proven to be of the token's cluster, and goes on to
// the next such place only where the one before could not be asked.
func askWhoProves(ctx context.Context, now func() time.Time, addrs []string, token trust.Token, req wire.JoinRequest) (res wire.JoinResponse, at string, err error) {
	if len(addrs) == 1 {
		if res, _, err = askToJoin(ctx, now, addrs[0], joinTimeout, token, req); err != nil {
			err = fmt.Errorf("join the cluster at %s: %w", addrs[0], err)
		}
		return res, addrs[0], err
	}
	var failed []error
	for at, err := range proven(ctx, now, addrs, token.Pin) {
		last := false
		if err == nil {
			if res, last, err = askToJoin(ctx, now, at, provenWithin, token, req); err == nil {
				return res, at, nil
			}
		}
		failed = append(failed, fmt.Errorf("join the cluster at %s: %w", at, err))
		if last {
			failed = failed[len(failed)-1:]
			break
		}
	}
	if more := len(failed) - mostTold; more > 0 {
		failed = append(failed[:mostTold], fmt.Errorf("and the same at %d more addresses", more))
	}
	if ctx.Err() != nil {
		failed = append(failed, ctx.Err())
	}
	return res, "", errors.Join(failed...)
}

// proven goes through addresses in the order in which they prove to be of the cluster
// with this CA, or fail to. They are sent nothing but a handshake.
func proven(ctx context.Context, now func() time.Time, addrs []string, pin trust.Pin) iter.Seq2[string, error] {
	type answer struct {
		at  string
		err error
	}
	return func(yield func(string, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		answers := make(chan answer, len(addrs))
		var all sync.WaitGroup // at once: strangers may have announced hundreds at which nobody answers
		for _, at := range addrs {
			all.Go(func() { answers <- answer{at, prove(ctx, now, at, pin)} })
		}
		defer func() {
			cancel()
			all.Wait()
		}()
		for range addrs {
			if a := <-answers; !yield(a.at, a.err) {
				return
			}
		}
	}
}

func prove(ctx context.Context, now func() time.Time, at string, pin trust.Pin) error {
	ctx, cancel := context.WithTimeout(ctx, provenWithin)
	defer cancel()
	c, err := (&tls.Dialer{Config: trust.JoinClient(pin, now, dial.Calls)}).DialContext(ctx, "tcp", at)
	if err != nil {
		return err
	}
	return c.Close()
}

// askToJoin sends the secret.
func askToJoin(ctx context.Context, now func() time.Time, addr string, within time.Duration, token trust.Token, req wire.JoinRequest) (_ wire.JoinResponse, proven bool, _ error) {
	return askAsNewcomer(ctx, now, addr, within, token, func(c *wire.Client) (wire.JoinResponse, error) { return wire.Join.Call(ctx, c, req) })
}

// askAsNewcomer calls over a connection whose other end has proven in the
// handshake that it belongs to the cluster which the token pins.
func askAsNewcomer[Res any](ctx context.Context, now func() time.Time, addr string, within time.Duration, token trust.Token, ask func(*wire.Client) (Res, error)) (_ Res, proven bool, _ error) {
	if !strings.Contains(addr, ":") || strings.Count(addr, ":") > 1 && !strings.HasPrefix(addr, "[") {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), strconv.Itoa(DefaultRPCPort))
	}
	conf := trust.JoinClient(token.Pin, now, dial.Calls)
	verify, passed := conf.VerifyConnection, atomic.Bool{}
	conf.VerifyConnection = func(cs tls.ConnectionState) error {
		err := verify(cs)
		passed.Store(passed.Load() || err == nil)
		return err
	}
	tr := &http.Transport{TLSClientConfig: conf, Protocols: http2Only(), DialContext: (&net.Dialer{Timeout: within}).DialContext, TLSHandshakeTimeout: within}
	c := wire.NewClient(&http.Client{Transport: tr}, "https://"+addr)
	defer c.Close()
	for {
		res, err := ask(c)
		if !errors.Is(err, wire.ErrRetry) && !errors.Is(err, wire.ErrNoLeader) {
			return res, passed.Load(), err
		}
		select { // a cluster that has just been started elects its leader first
		case <-ctx.Done():
			return res, true, err
		case <-time.After(250 * time.Millisecond):
		}
	}
}

func http2Only() *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP2(true)
	return p
}
