package rendezvous

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sparkrun/sparkrun/launcher"
)

func keyOf(name string, edits ...func(*NamedGatewayKey)) GatewayChange {
	k := NamedGatewayKey{Name: name, GatewayKey: GatewayKey{Hash: sha256.Sum256([]byte(name)), Created: t0, By: "root"}}
	for _, edit := range edits {
		edit(&k)
	}
	return GatewayChange{Key: &k}
}

func aliasOf(name, model string) GatewayChange {
	return GatewayChange{Alias: &GatewayAlias{Name: name, Model: model}}
}

// caOf is a CA whose certificate is a word.
func caOf(word string) GatewayChange {
	return GatewayChange{CA: &GatewayCA{Names: []string{"models.example.com"}, Cert: []byte(word), Key: []byte("sealed")}}
}

func entries(changes ...GatewayChange) (out []Entry) {
	for _, c := range changes {
		out = append(out, c.Entry())
	}
	return out
}

// settingsText are the settings in a line: open, keys, aliases, CA.
func settingsText(g Gateway) string {
	text := fmt.Sprint(g.Open)
	for _, name := range []string{"ada", "bob", "webui"} {
		if k, has := g.Keys[name]; has {
			text += " " + name
			if k.Hash != sha256.Sum256([]byte(name)) {
				text += "'"
			}
		}
	}
	for _, name := range []string{"fast", "gpt-4o"} {
		if m := g.Aliases[name]; m != "" {
			text += " " + name + "=" + m
		}
	}
	if g.CA != nil {
		text += " ca " + string(g.CA.Cert)
	}
	return text
}

func TestGatewayChanges(t *testing.T) {
	yes, no := true, false
	tests := map[string]struct {
		changes []GatewayChange
		want    string
		err     error // of the last one
	}{
		"nothing":            {want: "false"},
		"open":               {changes: []GatewayChange{{Open: &yes}}, want: "true"},
		"close":              {changes: []GatewayChange{{Open: &yes}, {Open: &no}}, want: "false"},
		"keys":               {changes: []GatewayChange{keyOf("ada"), keyOf("bob")}, want: "false ada bob"},
		"a key's name again": {changes: []GatewayChange{keyOf("ada"), keyOf("ada")}, want: "false ada", err: ErrKeyExists},
		"revoked":            {changes: []GatewayChange{keyOf("ada"), keyOf("bob"), {Revoke: "ada"}}, want: "false bob"},
		"revoked and made anew": {changes: []GatewayChange{keyOf("ada"), {Revoke: "ada"}, keyOf("ada")},
			want: "false ada"},
		"revoked twice": {changes: []GatewayChange{keyOf("ada"), {Revoke: "ada"}, {Revoke: "ada"}}, want: "false",
			err: ErrNoKey},
		"aliases": {changes: []GatewayChange{aliasOf("fast", "a"), aliasOf("gpt-4o", "a"), aliasOf("fast", "b")},
			want: "false fast=b gpt-4o=a"},
		"alias removed":       {changes: []GatewayChange{aliasOf("fast", "a"), aliasOf("fast", "")}, want: "false"},
		"a CA":                {changes: []GatewayChange{caOf("one")}, want: "false ca one"},
		"another CA":          {changes: []GatewayChange{caOf("one"), caOf("two")}, want: "false ca two"},
		"CA removed":          {changes: []GatewayChange{caOf("one"), {DropCA: true}}, want: "false"},
		"CA removed twice":    {changes: []GatewayChange{{DropCA: true}}, want: "false", err: ErrNoGatewayCA},
		"alias removed twice": {changes: []GatewayChange{aliasOf("fast", "")}, want: "false", err: ErrNoAlias},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			l := founded(t)
			var last any
			for _, e := range entries(tt.changes...) {
				last = l.apply(e)
			}
			err, _ := last.(error)
			if got, _ := l.Gateway(); settingsText(got) != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%s, %v", settingsText(got), err)
			}
		})
	}
}

// What was handed out is not changed by a later entry.
func TestGatewayIsHandedOut(t *testing.T) {
	l := founded(t)
	l.must(t, entries(keyOf("ada"), aliasOf("fast", "a"))...)
	before, changed := l.Gateway()
	l.must(t, planOf(plannedJob("jjjj", 1, t0)))
	select {
	case <-changed:
		t.Error("a job wakes those who wait for the settings")
	default:
	}
	l.must(t, entries(keyOf("bob"), GatewayChange{Revoke: "ada"}, aliasOf("fast", "b"))...)
	if got := settingsText(before); got != "false ada fast=a" {
		t.Error(got)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told of a change")
	}
}

func TestGatewayIsBounded(t *testing.T) {
	l := founded(t)
	for i := range MaxGatewayKeys {
		l.must(t, keyOf(fmt.Sprint("k", i)).Entry())
	}
	for i := range MaxGatewayAliases {
		l.must(t, aliasOf(fmt.Sprint("a", i), "m").Entry())
	}
	for _, c := range []GatewayChange{keyOf("more"), aliasOf("more", "m")} {
		if err, _ := l.apply(c.Entry()).(error); !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("%s: %v", c, err)
		}
	}
	l.must(t, aliasOf("a7", "other").Entry())
	for i := range MaxGatewayKeys {
		l.must(t, GatewayChange{Revoke: fmt.Sprint("k", i)}.Entry())
	}
	l.must(t, entries(keyOf("more"), GatewayChange{Revoke: "more"})...)
	if n := len(l.s.Revoked); n != MaxGatewayKeys {
		t.Errorf("%d revoked keys are kept", n)
	}
}

func TestGatewayRefuses(t *testing.T) {
	yes := true
	long := strings.Repeat("m", maxGatewayName+1)
	for name, c := range map[string]GatewayChange{
		"nothing":           {},
		"two changes":       {Open: &yes, Revoke: "a"},
		"a key's name":      keyOf("a b"),
		"no name":           keyOf(""),
		"no hash":           keyOf("a", func(k *NamedGatewayKey) { k.Hash = [sha256.Size]byte{} }),
		"a negative rate":   keyOf("a", func(k *NamedGatewayKey) { k.Rate = -1 }),
		"no rate":           keyOf("a", func(k *NamedGatewayKey) { k.Rate = math.NaN() }),
		"an empty model":    keyOf("a", func(k *NamedGatewayKey) { k.Models = []string{""} }),
		"too many models":   keyOf("a", func(k *NamedGatewayKey) { k.Models = make([]string, 101) }),
		"a model's control": keyOf("a", func(k *NamedGatewayKey) { k.Models = []string{"a\x1b[2J"} }),
		"no alias":          aliasOf("", "m"),
		"a long alias":      aliasOf(long, "m"),
		"a long model":      aliasOf("a", long),
		"itself":            aliasOf("a", "a"),
		"a CA's name":       {CA: &GatewayCA{Names: []string{"*.example.com"}}},
		"too many names":    {CA: &GatewayCA{Names: slices.Repeat([]string{"a"}, MaxGatewayNames+1)}},
		"a CA and its end":  {CA: &GatewayCA{}, DropCA: true},
	} {
		if err := c.Validate(); !errors.Is(err, launcher.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []GatewayChange{{DropCA: true}, {CA: &GatewayCA{}}, {CA: &GatewayCA{Names: []string{"a.b_c-d.e",
		"spark1", "10.0.0.1", "fd00::1"}}}, {Open: &yes}, {Revoke: "a"}, keyOf("webui"), aliasOf("gpt-4o", "qwen/qwen3 32b"),
		aliasOf("a", ""), keyOf("b", func(k *NamedGatewayKey) { k.Models, k.Rate = []string{"m"}, 0.5 })} {
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", c, err)
		}
	}
}

// Done tells what was recorded, also by an earlier attempt.
func TestGatewayChangeIsDone(t *testing.T) {
	yes := true
	other := keyOf("ada", func(k *NamedGatewayKey) { k.Hash[0]++ })
	for _, c := range []GatewayChange{{Open: &yes}, keyOf("ada"), aliasOf("fast", "a"), caOf("one")} {
		l := founded(t)
		if now, _ := l.Gateway(); c.Done(now) {
			t.Errorf("%s is done before it was begun", c)
		}
		l.must(t, c.Entry())
		now, _ := l.Gateway()
		if !c.Done(now) {
			t.Errorf("%s is not done", c)
		}
		if other.Done(now) || caOf("two").Done(now) || (GatewayChange{DropCA: true}).Done(now) == (c.CA != nil) || (GatewayChange{Revoke: "ada"}).Done(now) == (c.Key != nil) {
			t.Errorf("%s: another change is done", c)
		}
	}
}

// A snapshot and a backup have all settings, and what was revoked.
func TestGatewayIsKept(t *testing.T) {
	yes := true
	expires := t0.Add(time.Hour)
	l := founded(t)
	l.must(t, entries(GatewayChange{Open: &yes}, keyOf("ada", func(k *NamedGatewayKey) {
		k.Models, k.Rate, k.Expires = []string{"m"}, 1.5, &expires
	}), keyOf("bob"), GatewayChange{Revoke: "bob"}, aliasOf("fast", "a"), caOf("one"))...)
	want, _ := l.Gateway()
	snapshot, err := l.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	file, err := l.Backup(BackupHead{Taken: t0, Host: "spark1"})
	if err != nil {
		t.Fatal(err)
	}
	backup, err := ReadBackup(bytes.NewReader(file))
	if err != nil {
		t.Fatal(err)
	}
	restored, err := backup.Restored(t0)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"snapshot": snapshot, "backup": restored} {
		r := NewRecord()
		_, changed := r.Gateway()
		if err := r.Restore(data); err != nil {
			t.Fatal(err)
		}
		got, _ := r.Gateway()
		if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		if d := cmp.Diff(l.s.Revoked, r.s.Revoked); d != "" {
			t.Errorf("%s: revoked (-want +got):\n%s", name, d)
		}
		select {
		case <-changed:
		default:
			t.Errorf("%s: nobody is told", name)
		}
	}
}

// Of two sides this one's settings stand, what only the other has is added, and what either has revoked is gone.
func TestGatewayReunites(t *testing.T) {
	yes := true
	otherAda := keyOf("ada", func(k *NamedGatewayKey) { k.Hash[0]++ })
	tests := map[string]struct {
		both, ours, theirs []GatewayChange
		want               string
	}{
		"nobody has gone on":          {both: []GatewayChange{{Open: &yes}, keyOf("ada")}, want: "true ada"},
		"the other has opened it":     {theirs: []GatewayChange{{Open: &yes}}, want: "false"},
		"this one has":                {ours: []GatewayChange{{Open: &yes}}, want: "true"},
		"each has made a key":         {ours: []GatewayChange{keyOf("ada")}, theirs: []GatewayChange{keyOf("bob")}, want: "false ada bob"},
		"of one name":                 {ours: []GatewayChange{otherAda}, theirs: []GatewayChange{keyOf("ada")}, want: "false ada'"},
		"this one has revoked it":     {both: []GatewayChange{keyOf("ada")}, ours: []GatewayChange{{Revoke: "ada"}}, want: "false"},
		"the other has revoked it":    {both: []GatewayChange{keyOf("ada")}, theirs: []GatewayChange{{Revoke: "ada"}}, want: "false"},
		"revoked, and made anew":      {both: []GatewayChange{keyOf("ada")}, ours: []GatewayChange{{Revoke: "ada"}, otherAda}, want: "false ada'"},
		"made anew on the other":      {both: []GatewayChange{keyOf("ada")}, theirs: []GatewayChange{{Revoke: "ada"}, otherAda}, want: "false ada'"},
		"each has revoked one":        {both: []GatewayChange{keyOf("ada"), keyOf("bob")}, ours: []GatewayChange{{Revoke: "ada"}}, theirs: []GatewayChange{{Revoke: "bob"}}, want: "false"},
		"each has set an alias":       {ours: []GatewayChange{aliasOf("fast", "a")}, theirs: []GatewayChange{aliasOf("gpt-4o", "b")}, want: "false fast=a gpt-4o=b"},
		"to another model":            {ours: []GatewayChange{aliasOf("fast", "a")}, theirs: []GatewayChange{aliasOf("fast", "b")}, want: "false fast=a"},
		"this one has removed it":     {both: []GatewayChange{aliasOf("fast", "a")}, ours: []GatewayChange{aliasOf("fast", "")}, want: "false fast=a"},
		"the other has removed it":    {both: []GatewayChange{aliasOf("fast", "a")}, theirs: []GatewayChange{aliasOf("fast", "")}, want: "false fast=a"},
		"each has made a CA":          {ours: []GatewayChange{caOf("one")}, theirs: []GatewayChange{caOf("two")}, want: "false ca one"},
		"the other has made a CA":     {theirs: []GatewayChange{caOf("two")}, want: "false ca two"},
		"this one has removed the CA": {both: []GatewayChange{caOf("one")}, ours: []GatewayChange{{DropCA: true}}, want: "false ca one"},
		"the other's last key is in":  {theirs: []GatewayChange{keyOf("ada"), keyOf("bob"), keyOf("webui")}, want: "false ada bob webui"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			mine, other := split(t, entries(tt.both...), entries(tt.ours...), entries(tt.theirs...))
			reunite(t, mine, other)
			if got, _ := mine.Gateway(); settingsText(got) != tt.want {
				t.Errorf("%s, want %s", settingsText(got), tt.want)
			}
		})
	}
}

// Many keys with many models each fit the entries that hand them over.
// A reunion that takes the last key away does not open the gateway to everybody.
func TestGatewayStaysClosedAtReunion(t *testing.T) {
	mine, other := state{}, state{Revoked: []KeyHash{{1}}}
	mine.Gateway = Gateway{Open: true, Keys: map[string]GatewayKey{"ada": {Hash: KeyHash{1}}}}
	for _, p := range other.gatewayParts(launcher.Epoch{}, "n") {
		mine.reuniteGateway(p)
	}
	if mine.Gateway.Open || len(mine.Gateway.Keys) > 0 {
		t.Errorf("%+v: want it closed, without a key", mine.Gateway)
	}
}

// A virtual IP is an address that a host of a network can have.
func TestVirtualIP(t *testing.T) {
	for text, is := range map[string]bool{"10.0.0.100/24": true, "10.0.0.1/30": true, "10.0.0.255/24": false,
		"10.0.0.0/24": false, "10.0.0.1/31": false, "255.255.255.255/32": false, "240.0.0.1/8": false, "127.0.0.5/8": false,
		"224.0.0.5/8": false, "169.254.1.1/16": false, "fd00::1/64": false} {
		addr := netip.MustParsePrefix(text)
		if err := (GatewayChange{VirtualIP: &addr}).Validate(); (err == nil) != is {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestGatewayPartsFit(t *testing.T) {
	l := founded(t)
	long := make([]string, 100)
	for i := range long {
		long[i] = strings.Repeat(`"`, maxGatewayName)
	}
	for i := range 30 {
		l.must(t, keyOf(fmt.Sprint("k", i), func(k *NamedGatewayKey) { k.Models = long }).Entry())
	}
	if _, err := l.Parts("node-1"); err != nil {
		t.Error(err)
	}
}

func TestBackend(t *testing.T) {
	job := plannedJob("jjjj", 2, t0)
	job.Spec.Name = "llm"
	job.Spec.Service = &launcher.Service{Port: launcher.Of(launcher.PortNamed("api")), Model: "qwen", Restarts: 1,
		Per: time.Hour}
	seen := func(state launcher.ServiceState, addr, text string) *launcher.ServiceSeen {
		return &launcher.ServiceSeen{State: state, Addr: addr, Text: text}
	}
	tests := map[string]struct {
		state State
		seen  *launcher.ServiceSeen
		edit  func(*JobStatus)
		want  string
	}{
		"planned":          {state: StatePlanned, want: "qwen planned comes"},
		"starts":           {state: StateStarts, want: "qwen starting comes"},
		"loads":            {state: StateRuns, seen: seen(launcher.ServiceStarting, "", ""), want: "qwen running comes"},
		"answers too soon": {state: StateStarts, seen: seen(launcher.ServiceReady, "10.0.0.1:8000", ""), want: "qwen starting comes"},
		"ready":            {state: StateRuns, seen: seen(launcher.ServiceReady, "10.0.0.1:8000", ""), want: "qwen ready at 10.0.0.1:8000"},
		"ready, IPv6":      {state: StateRuns, seen: seen(launcher.ServiceReady, "[fd00::1]:8000", ""), want: "qwen ready at [fd00::1]:8000"},
		"on loopback":      {state: StateRuns, seen: seen(launcher.ServiceReady, "127.0.0.1:8000", ""), want: "qwen ready at 127.0.0.1:8000 local (it listens on 127.0.0.1: only spark1 reaches it)"},
		"nowhere":          {state: StateRuns, seen: seen(launcher.ServiceReady, "", ""), want: `qwen ready (its address is not known: "")`},
		"wedged":           {state: StateRuns, seen: seen(launcher.ServiceWedged, "10.0.0.1:8000", "no token"), want: "qwen wedged at 10.0.0.1:8000 (no token)"},
		"unhealthy":        {state: StateRuns, seen: seen(launcher.ServiceUnhealthy, "10.0.0.1:8000", "503"), want: "qwen unhealthy comes (503)"},
		"no restart is left": {state: StateRuns, seen: seen(launcher.ServiceUnhealthy, "10.0.0.1:8000", "503"),
			edit: func(s *JobStatus) { s.Faults = []time.Time{t0} }, want: "qwen unhealthy (503)"},
		"with an adapter": {state: StateRuns, seen: &launcher.ServiceSeen{State: launcher.ServiceReady, Addr: "10.0.0.1:8000",
			Models: []string{"tuned"}}, want: "qwen,tuned ready at 10.0.0.1:8000"},
		"restarts": {state: StateAgain, seen: seen(launcher.ServiceReady, "10.0.0.1:8000", ""), want: "qwen restarting comes"},
		"waits": {state: StateWaits, edit: func(s *JobStatus) { s.Waits = "spark2 is away" },
			want: "qwen waiting comes (spark2 is away)"},
		"ends": {state: StateEnds, seen: seen(launcher.ServiceReady, "10.0.0.1:8000", ""), want: "qwen ending"},
		"is stopped": {state: StateWaits, edit: func(s *JobStatus) { s.Stop = &Stop{} },
			want: "qwen waiting"},
		"model unknown": {state: StateStarts, edit: func(s *JobStatus) { s.Spec.Service = &launcher.Service{} },
			want: "llm starting comes"},
		"nor a name": {state: StateStarts, edit: func(s *JobStatus) { s.Spec.Service, s.Spec.Name = &launcher.Service{}, "" },
			want: "jjjj starting comes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := StatusOf(job)
			s.State, s.Service = tt.state, tt.seen
			if tt.edit != nil {
				tt.edit(&s)
			}
			b := s.Backend(t0.Add(time.Minute))
			got := strings.Join(b.Models, ",") + " " + b.State
			if b.Ready {
				got += " at " + b.Addr.String()
			} else if b.Addr != (netip.AddrPort{}) {
				got += " has an address"
			}
			if b.Local {
				got += " local"
			}
			if b.Comes {
				got += " comes"
			}
			if b.Text != "" {
				got += " (" + b.Text + ")"
			}
			if got != tt.want || b.Host != "spark1" || b.Generation != 2 || b.Workload != "exec" {
				t.Errorf("%s, want %s; %+v", got, tt.want, b)
			}
		})
	}
}

// A map differs where another CA is to be trusted, and not where only its key was sealed anew.
func TestGatewayMapTellsOfItsCA(t *testing.T) {
	of := func(ca *GatewayCA) GatewayMap { return GatewayMap{Gateway: Gateway{CA: ca}} }
	one, two := caOf("one").CA, caOf("two").CA
	if !of(one).Equal(of(one.Public())) || of(one).Equal(of(two)) || of(one).Equal(of(nil)) || of(nil).Equal(of(one)) {
		t.Error("maps of one CA differ, or those of two are the same")
	}
	if one.Public().Key != nil || (*GatewayCA)(nil).Public() != nil {
		t.Errorf("%+v", one.Public())
	}
}

// An alias that ends in * is for all names that begin so; the longest that fits counts, and one without * before it.
func TestAliasPattern(t *testing.T) {
	g := Gateway{Aliases: map[string]string{"claude-*": "a", "claude-opus-*": "b", "claude-opus-4": "c", "gpt": "d"}}
	for name, want := range map[string]string{"claude-sonnet-4-5": "claude-* a", "claude-opus-5": "claude-opus-* b",
		"claude-opus-4": "claude-opus-4 c", "gpt": "gpt d", "gpt-4": " ", "claude": " "} {
		if alias, model := g.Alias(name); alias+" "+model != want {
			t.Errorf("%s: %q, want %q", name, alias+" "+model, want)
		}
	}
	for _, name := range []string{"*", "a*b", "a**"} {
		err := GatewayChange{Alias: &GatewayAlias{Name: name, Model: "m"}}.Validate()
		if err == nil || !strings.Contains(err.Error(), "a * stands at the end alone") {
			t.Errorf("alias %s: %v", name, err)
		}
	}
}
