package gateway

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// LeaderConfig of the leader's part. All of it is needed, but for Port.
type LeaderConfig struct {
	// Host is this member's name, Port where its own gateway listens; 0: nowhere.
	Host string
	Port uint16
	// Backends are the services, and what is closed when one has changed.
	Backends func() ([]rendezvous.Backend, <-chan struct{})
	// Use tells of requests at a member: see lead.Leader.
	Use func(ctx context.Context, from launcher.NodeID, u rendezvous.ServiceUse) error
	// Roster are the members, with their addresses.
	Roster   func() (rendezvous.Roster, <-chan struct{})
	Record   *rendezvous.Record
	Recorder Recorder
	// VirtualIP tells whether this machine holds it, and why not.
	VirtualIP func() (held bool, why string)
	// Sealer gives the keys that members alone have, for the key of the gateway's CA.
	Sealer func() (trust.Sealer, error)
	// OnlyHere names this host if no other has what was just recorded.
	OnlyHere func(context.Context) string
	Logger   *slog.Logger
}

// Recorder writes a change into the record.
type Recorder interface {
	Gateway(context.Context, rendezvous.GatewayChange) error
}

// Leader tells members what to go by, and takes changes of it, for as long as this node leads.
type Leader struct {
	LeaderConfig
	over  <-chan struct{}
	began time.Time
}

// Lead makes the leader's part for the leadership that ends with ctx.
func Lead(ctx context.Context, cfg LeaderConfig) *Leader {
	return &Leader{LeaderConfig: cfg, over: ctx.Done(), began: time.Now()}
}

// Calls are what it answers.
func (l *Leader) Calls() []wire.Call {
	return []wire.Call{wire.ShowGateway.Serve(l.show), wire.ChangeGateway.Serve(l.change),
		wire.FollowGateway.Serve(l.follow), wire.UseServices.Serve(l.used),
		wire.SignGateway.Serve(l.sign)}
}

// used passes on what requests there are at a member.
func (l *Leader) used(ctx context.Context, c wire.Caller, r wire.UseServicesRequest) (wire.UseServicesResponse, error) {
	var res wire.UseServicesResponse
	for _, u := range r.Uses {
		err := l.Use(ctx, c.Node, u)
		switch {
		case errors.Is(err, rendezvous.ErrAsleep):
			if res.Asleep == nil {
				res.Asleep = map[launcher.JobID]string{}
			}
			res.Asleep[u.Job] = err.Error()
		case err != nil && !errors.Is(err, rendezvous.ErrJobEnded):
			return res, err
		}
	}
	return res, nil
}

func (l *Leader) show(context.Context, wire.Caller, wire.Empty) (wire.GatewayResponse, error) {
	settings, _ := l.Record.Gateway()
	res := wire.GatewayResponse{Open: settings.Open, Port: l.Port, Aliases: settings.Aliases}
	res.Backends, _ = l.Backends()
	for name, k := range settings.Keys {
		res.Keys = append(res.Keys, wire.GatewayKey{Name: name, Models: k.Models, Rate: k.Rate, Expires: k.Expires,
			NoWake: k.NoWake, Metrics: k.Metrics, Created: k.Created, By: k.By})
	}
	if addr := settings.VirtualIP; addr.IsValid() {
		res.VirtualIP = &wire.VirtualIP{Addr: addr}
		held, why := l.VirtualIP()
		if res.VirtualIP.Why = why; held {
			res.VirtualIP.Host = l.Host
		}
	}
	slices.SortFunc(res.Keys, func(a, b wire.GatewayKey) int { return cmp.Compare(a.Name, b.Name) })
	var err error
	res.CA, err = l.showCA(settings.CA)
	return res, err
}

// change records a change of root's.
func (l *Leader) change(ctx context.Context, c wire.Caller, r rendezvous.GatewayChange) (wire.Acknowledged, error) {
	err := c.MustBeRoot("change the gateway")
	if err == nil {
		err = r.Validate()
	}
	if err == nil {
		r, err = l.complete(r, c.User.Name)
	}
	if err == nil {
		err = l.Recorder.Gateway(ctx, r)
	}
	if err != nil {
		return wire.Acknowledged{}, err
	}
	l.Logger.Info("gateway", "change", r.String(), "user", c.User.Name, "from", c.Host)
	return wire.Acknowledged{OnlyOn: l.OnlyHere(ctx)}, nil
}

// complete adds what the leader knows, and refuses what would change nothing.
func (l *Leader) complete(r rendezvous.GatewayChange, user string) (rendezvous.GatewayChange, error) {
	settings, _ := l.Record.Gateway()
	_, hasKey := settings.Keys[r.Revoke]
	switch {
	case r.Key != nil:
		key := *r.Key
		key.Created, key.By = time.Now().UTC().Truncate(time.Second), user
		if key.Expires != nil && !key.Expires.After(key.Created) {
			return r, fmt.Errorf("key %s: %w: it would have expired already", key.Name, launcher.ErrInvalid)
		}
		if _, taken := settings.Keys[key.Name]; taken && !r.Done(settings) {
			return r, fmt.Errorf("key %s: %w: revoke it first, or give another name", key.Name, rendezvous.ErrKeyExists)
		}
		r.Key = &key
	case r.Revoke != "" && !hasKey:
		return r, fmt.Errorf("key %.64q: %w: `sparkrun gateway key ls` lists them", r.Revoke, rendezvous.ErrNoKey)
	case r.CA != nil:
		ca, err := l.authority(r.CA.Names, settings.CA)
		r.CA = ca
		return r, err
	case r.DropCA && settings.CA == nil:
		return r, rendezvous.ErrNoGatewayCA
	case r.VirtualIP != nil && r.VirtualIP.IsValid():
		return r, l.mayHold(*r.VirtualIP)
	case r.Alias != nil && r.Alias.Model != "":
		return r, l.mayStandFor(*r.Alias, settings.Aliases)
	case r.Alias != nil && r.Alias.Model == "" && settings.Aliases[r.Alias.Name] == "":
		return r, fmt.Errorf("alias %.128q: %w: `sparkrun gateway ls` has them", r.Alias.Name, rendezvous.ErrNoAlias)
	}
	return r, nil
}

// mayStandFor refuses an alias that leads to another one, and one that would hide a model.
func (l *Leader) mayStandFor(a rendezvous.GatewayAlias, all map[string]string) error {
	if of := all[a.Model]; of != "" {
		return fmt.Errorf("alias %s: %w: %s is an alias itself: name its model, %s", a.Name, launcher.ErrInvalid, a.Model, of)
	}
	for other, model := range all {
		if model == a.Name {
			return fmt.Errorf("alias %s: %w: %s is an alias of it, and none may lead to another", a.Name, launcher.ErrInvalid,
				other)
		}
	}
	backends, _ := l.Backends()
	for _, b := range backends {
		if slices.Contains(b.Models, a.Name) && !b.Failed() {
			return fmt.Errorf("alias %s: %w: service %s has a model of that name", a.Name, launcher.ErrInvalid,
				cmp.Or(b.Name, string(b.Job)))
		}
	}
	return nil
}

// mayHold refuses a virtual IP that would be wrong whoever leads.
func (l *Leader) mayHold(addr netip.Prefix) error {
	if len(l.Record.Nodes()) < rendezvous.VirtualIPLeast {
		return fmt.Errorf("virtual IP %s: %w: it takes %d machines: of two, neither can tell whether the other still has it",
			addr, launcher.ErrInvalid, rendezvous.VirtualIPLeast)
	}
	roster, _ := l.Roster()
	for _, m := range roster {
		nic, has := m.Inventory.Holder(addr.Addr())
		if now, _ := l.Record.Gateway(); now.VirtualIP.IsValid() && now.VirtualIP.Addr() == addr.Addr() {
			has = false // it is this
		}
		if has || m.Addr.Addr() == addr.Addr() {
			return fmt.Errorf("virtual IP %s: %w: it is an address of %s (%s): take one that no machine has", addr.Addr(),
				launcher.ErrInvalid, m.Host, cmp.Or(nic.Name, "management"))
		}
		if at := m.Addr.Addr(); at.IsValid() && !addr.Masked().Contains(at) {
			return fmt.Errorf("virtual IP %s: %w: it is not in the management network of %s, which is %s there", addr,
				launcher.ErrInvalid, m.Host, at)
		}
		at, _ := m.Inventory.Holder(m.Addr.Addr())
		for _, p := range at.Addresses {
			if p.Addr() == m.Addr.Addr() && p.Bits() != addr.Bits() {
				return fmt.Errorf("virtual IP %s: %w: the management network of %s is %s: give %s/%d", addr, launcher.ErrInvalid,
					m.Host, p.Masked(), addr.Addr(), p.Bits())
			}
		}
	}
	return nil
}

const (
	// coalesce is the least time between two maps for one member: changes meanwhile are sent together.
	coalesce = 50 * time.Millisecond
	// settle is how long a new leader waits for the machines of services that an earlier one started: meanwhile
	// members go by the map that they have.
	settle = 3 * time.Second
)

// follow sends the map and then each change of it, never the same twice.
func (l *Leader) follow(ctx context.Context, _ wire.Caller, _ wire.Empty, send func(rendezvous.GatewayMap) error) error {
	var told *rendezvous.GatewayMap
	for {
		var now rendezvous.GatewayMap
		var settingsChanged, backendsChanged <-chan struct{}
		now.Gateway, settingsChanged = l.Record.Gateway()
		now.Gateway.CA = now.Gateway.CA.Public()
		now.Backends, backendsChanged = l.Backends()
		var settled <-chan time.Time
		if left := settle - time.Since(l.began); told == nil && left > 0 && slices.ContainsFunc(now.Backends, unknown) {
			settled = time.After(left)
		} else if told == nil || !told.Equal(now) {
			if err := send(now); err != nil {
				return err
			}
			told = &now
		}
		pause := time.NewTimer(coalesce)
		select {
		case <-l.over:
			return fmt.Errorf("%s no longer leads: %w", l.Host, wire.ErrRetry)
		case <-settled:
		case <-settingsChanged:
		case <-backendsChanged:
		case <-ctx.Done():
			return ctx.Err()
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// unknown tells whether it is not known yet how far a service got under an earlier leader.
func unknown(b rendezvous.Backend) bool { return b.State == string(rendezvous.StatePlanned) }
