package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fakeGateway answers for a cluster, and keeps the changes. It passes the first ones on in vain.
type fakeGateway struct {
	now     wire.GatewayResponse
	changes []rendezvous.GatewayChange
	err     error
	retries int
}

func (f *fakeGateway) Calls() []wire.Call {
	return []wire.Call{
		wire.ShowGateway.Serve(func(context.Context, wire.Caller, wire.Empty) (wire.GatewayResponse, error) {
			return f.now, nil
		}),
		wire.ChangeGateway.Serve(func(_ context.Context, _ wire.Caller,
			c rendezvous.GatewayChange) (wire.Acknowledged, error) {
			f.changes = append(f.changes, c)
			if len(f.changes) <= f.retries {
				return wire.Acknowledged{}, wire.ErrRetry
			}
			return wire.Acknowledged{}, f.err
		}),
		wire.ShowStatus.Serve(func(context.Context, wire.Caller, wire.StatusRequest) (wire.Status, error) {
			return wire.Status{Nodes: []wire.NodeStatus{{Host: "spark1", Addr: netip.MustParseAddr("10.0.0.1")},
				{Host: "spark2", Addr: netip.MustParseAddr("10.0.0.2")}}}, nil
		}),
	}
}

func someGateway() wire.GatewayResponse {
	return wire.GatewayResponse{Port: 7942, Aliases: map[string]string{"gpt-4o": "qwen", "fast": "qwen", "off": "gone"},
		Backends: []rendezvous.Backend{
			{Job: "aaaa", Name: "llm", Models: []string{"qwen"}, State: "ready", Ready: true, Host: "spark2",
				Addr: netip.MustParseAddrPort("10.0.0.2:8000"), Generation: 1},
			{Job: "bbbb", Models: []string{"bbbb"}, State: "starting", Comes: true, Text: "loads \x1b[2Jweights"},
		}}
}

func TestGatewayLs(t *testing.T) {
	f := &fakeGateway{now: someGateway()}
	f.now.Backends[0].State = string(rendezvous.StatePlanned)
	if _, got, _ := cli(t, apptest.Agent(f), "gateway", "ls"); !strings.Contains(got, "qwen    unknown    llm") {
		t.Errorf("a service that has not been heard of is not called as by service ls: %s", got)
	}
	f.now = someGateway()
	_, got, errs := cli(t, apptest.Agent(f), "gateway", "ls")
	const models = `
MODEL   STATE      SERVICE   HOST     ALIASES
bbbb    starting   bbbb      -        -
gone    -          -         -        off
qwen    ready      llm       spark2   fast,gpt-4o
`
	want := `Address   http://127.0.0.1:7942/v1 on each machine
Keys      none, so it is on loopback alone: ` + "`sudo sparkrun gateway key create NAME` lets others in\n" + models
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if want := "sparkrun: bbbb: loads ?[2Jweights\n"; errs != want {
		t.Errorf("stderr %q, want %q", errs, want)
	}
	f.now.VirtualIP = &wire.VirtualIP{Addr: netip.MustParsePrefix("10.0.0.100/24"), Why: "02:00:00:00:00:01 answers for it"}
	if _, got, _ = cli(t, apptest.Agent(f), "gateway", "ls"); !strings.Contains(got,
		"          virtual IP 10.0.0.100/24, on no machine: 02:00:00:00:00:01 answers for it\n") {
		t.Errorf("a virtual IP that is not held: %s", got)
	}
	f.now.VirtualIP = nil
	f.now.Keys = []wire.GatewayKey{{Name: "webui"}}
	_, got, _ = cli(t, apptest.Agent(f), "gateway", "ls")
	want = `Address   http://127.0.0.1:7942/v1 on each machine
          http://10.0.0.1:7942/v1 (spark1)
          http://10.0.0.2:7942/v1 (spark2)
TLS       none: ` + "`sudo sparkrun gateway ca create`, or certificates of yours (`sparkrun help serving`)" + `
Keys      1: a request needs one
` + models
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	f.now.CA = &wire.GatewayCA{Cert: "PEM\n", Until: time.Date(2036, 3, 1, 12, 0, 0, 0, time.Local),
		Names: []string{"models.example.com"}, Missing: []string{"spark3"}}
	f.now.Member = wire.GatewayMember{Host: "spark1", TLS: true}
	_, got, errs = cli(t, apptest.Agent(f), "gateway", "ls")
	for _, want := range []string{"http://127.0.0.1:7942/v1 on each machine\n", " https://10.0.0.2:7942/v1 (spark2)\n",
		"TLS       by a CA of its own, until 2036-03-01: `sparkrun gateway ca show`; also for models.example.com\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("with a CA: %q lacks %q", got, want)
		}
	}
	if !strings.Contains(errs, "does not know the name or address of spark3: `sudo sparkrun gateway ca create`") {
		t.Errorf("a machine that the CA does not know: %q", errs)
	}
	f.now.Member.Files = true
	if _, got, _ = cli(t, apptest.Agent(f), "gateway", "ls"); !strings.Contains(got,
		"TLS       by the certificate of spark1's agent (--gateway-cert)\n") {
		t.Errorf("with files: %q", got)
	}
	f.now.CA, f.now.Member = nil, wire.GatewayMember{}
	f.now.Keys, f.now.Open = nil, true
	if _, got, _ = cli(t, apptest.Agent(f), "gateway", "ls"); !strings.Contains(got, "everybody who reaches it may use it") {
		t.Error(got)
	}
	f.now.Member = wire.GatewayMember{Host: "spark1", Problem: "listen on 10.0.0.1:7942: address already in use"}
	if _, _, errs = cli(t, apptest.Agent(f), "gateway", "ls"); !strings.Contains(errs,
		"spark1 does not listen on 10.0.0.1:7942: address already in use\n") {
		t.Error(errs)
	}
	f.now = wire.GatewayResponse{}
	_, got, _ = cli(t, apptest.Agent(f), "gateway", "ls", "--json")
	if d := cmp.Diff(`{"port":0,"open":false,"keys":0,"addresses":[],"aliases":{},"backends":[],"virtual_ip":null,"problem":null,`+
		`"tls":false,"ca":null}`,
		strings.Join(strings.Fields(got), "")); d != "" {
		t.Error(d)
	}
}

// A key is on standard output alone, once, and the cluster gets its hash and what it is for.
func TestGatewayKeyCreate(t *testing.T) {
	f := &fakeGateway{now: someGateway(), retries: 1}
	f.now.Keys = []wire.GatewayKey{{Name: "ada"}}
	code, out, errs := cli(t, apptest.Agent(f), strings.Fields("gateway key create ada --model qwen --model nobody's "+
		"--rate 0.5 --expires 30d")...)
	if code != 0 {
		t.Fatal(errs)
	}
	key := strings.TrimSuffix(out, "\n")
	random, is := strings.CutPrefix(key, gateway.KeyPrefix)
	if b, err := base64.RawURLEncoding.DecodeString(random); !is || err != nil || len(b) != 32 {
		t.Errorf("key %q", key)
	}
	for _, want := range []string{"cannot be shown again", "port 7942 of every machine, and asks for one of 1 key\n",
		"every request for a model needs a key", "no service serves nobody's"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q lacks %q", errs, want)
		}
	}
	if strings.Contains(errs, "serves qwen") || strings.Contains(errs, key) {
		t.Error(errs)
	}
	got := f.changes[1].Key
	if until := time.Until(*got.Expires); until < 30*24*time.Hour-time.Minute || until > 30*24*time.Hour {
		t.Errorf("it expires in %s", until)
	}
	got.Expires = nil
	want := &rendezvous.NamedGatewayKey{Name: "ada", GatewayKey: rendezvous.GatewayKey{Hash: sha256.Sum256([]byte(key)),
		Models: []string{"qwen", "nobody's"}, Rate: 0.5}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if f.changes[0].Key.Hash != got.Hash {
		t.Error("what is asked again is another key")
	}
	f = &fakeGateway{err: rendezvous.ErrKeyExists}
	if code, out, errs := cli(t, apptest.Agent(f), "gateway", "key", "create", "ada"); code != 1 || out != "" ||
		!strings.Contains(errs, "exists") {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestGatewayChanges(t *testing.T) {
	yes, no := true, false
	none := wire.GatewayResponse{Port: 7942}
	keyed := wire.GatewayResponse{Port: 7942, Keys: []wire.GatewayKey{{Name: "ada"}, {Name: "webui"}}}
	open := wire.GatewayResponse{Port: 7942, Open: true}
	tests := map[string]struct {
		line      string
		gateway   fakeGateway
		change    rendezvous.GatewayChange
		code      int
		out, errs string
	}{
		"open": {line: "open", gateway: fakeGateway{now: open}, change: rendezvous.GatewayChange{Open: &yes},
			errs: "sparkrun: warning: there is no key: everybody who reaches port 7942 of a machine may use its models\n"},
		"open with keys": {line: "open", gateway: fakeGateway{now: keyed}, change: rendezvous.GatewayChange{Open: &yes},
			errs: "sparkrun: it listens on port 7942 of every machine, and asks for one of 2 keys\n"},
		"close": {line: "close", gateway: fakeGateway{now: none}, change: rendezvous.GatewayChange{Open: &no},
			errs: "sparkrun: there is no key: it listens on 127.0.0.1:7942 of every machine alone\n"},
		"revoke": {line: "key revoke ada", gateway: fakeGateway{now: keyed},
			change: rendezvous.GatewayChange{Revoke: "ada"}, out: "key ada is revoked\n"},
		"revoke the last": {line: "key rm ada", gateway: fakeGateway{now: none},
			change: rendezvous.GatewayChange{Revoke: "ada"}, out: "key ada is revoked\n",
			errs: "sparkrun: there is no key: it listens on 127.0.0.1:7942 of every machine alone\n"},
		"revoke several": {line: "key revoke ada webui", gateway: fakeGateway{now: keyed},
			change: rendezvous.GatewayChange{Revoke: "webui"}, out: "key ada is revoked\nkey webui is revoked\n"},
		"revoke several that there are not": {line: "key revoke ada bob", gateway: fakeGateway{err: rendezvous.ErrNoKey},
			change: rendezvous.GatewayChange{Revoke: "bob"}, code: 1,
			errs: "sparkrun: no such key\nsparkrun: no such key\n"},
		"revoke none": {line: "key revoke ada", gateway: fakeGateway{err: rendezvous.ErrNoKey},
			change: rendezvous.GatewayChange{Revoke: "ada"}, code: 1, errs: "sparkrun: no such key\n"},
		"revoke, asked again": {line: "key revoke ada",
			gateway: fakeGateway{now: keyed, err: rendezvous.ErrNoKey, retries: 1},
			change:  rendezvous.GatewayChange{Revoke: "ada"}, out: "key ada is revoked\n"},
		"alias": {line: "alias set gpt-4o qwen", gateway: fakeGateway{now: someGateway()},
			change: rendezvous.GatewayChange{Alias: &rendezvous.GatewayAlias{Name: "gpt-4o", Model: "qwen"}},
			out:    "gpt-4o is qwen\n"},
		"alias of nothing": {line: "alias set gpt-4o x", gateway: fakeGateway{now: someGateway()},
			change: rendezvous.GatewayChange{Alias: &rendezvous.GatewayAlias{Name: "gpt-4o", Model: "x"}},
			out:    "gpt-4o is x\n", errs: "sparkrun: warning: no service serves x now\n"},
		"ca": {line: "ca create --name models.example.com,10.0.0.7 --name b", gateway: fakeGateway{now: keyed},
			change: rendezvous.GatewayChange{CA: &rendezvous.GatewayCA{
				Names: []string{"models.example.com", "10.0.0.7", "b"}}},
			out:  "the gateway speaks TLS within seconds, but on loopback\n",
			errs: "sparkrun: clients have to trust it: `sparkrun gateway ca show` prints its certificate\n"},
		"ca without a key": {line: "ca create", gateway: fakeGateway{now: none},
			change: rendezvous.GatewayChange{CA: &rendezvous.GatewayCA{}},
			out:    "the gateway speaks TLS within seconds, but on loopback\n",
			errs: "sparkrun: clients have to trust it: `sparkrun gateway ca show` prints its certificate\n" +
				"sparkrun: there is no key: it listens on 127.0.0.1:7942 of every machine alone\n"},
		"no ca": {line: "ca rm", gateway: fakeGateway{now: keyed}, change: rendezvous.GatewayChange{DropCA: true},
			out:  "the gateway has no CA\n",
			errs: "sparkrun: warning: keys and requests cross the network in the clear\n"},
		"no alias": {line: "alias rm gpt-4o", change: rendezvous.GatewayChange{
			Alias: &rendezvous.GatewayAlias{Name: "gpt-4o"}}, out: "gpt-4o is no alias any more\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			code, out, errs := cli(t, apptest.Agent(&tt.gateway), append([]string{"gateway"}, strings.Fields(tt.line)...)...)
			if code != tt.code || out != tt.out || errs != tt.errs {
				t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
			}
			if d := cmp.Diff(tt.change, tt.gateway.changes[len(tt.gateway.changes)-1]); d != "" {
				t.Error(d)
			}
		})
	}
	for line, want := range map[string]string{
		"key create":                   "the key's NAME is missing",
		"key create a --rate 0":        "want requests a second",
		"key create a --expires 0":     "want a time such as 30d",
		"key create a --expires 9999d": "want 1d to 3650d",
		"alias set gpt-4o":             "ALIAS or MODEL is missing",
		"opne":                         "did you mean open?",
		"key revoke":                   "the key's NAME is missing",
		"ca ls":                        "did you mean show?",
	} {
		f := &fakeGateway{}
		code, _, errs := cli(t, apptest.Agent(f), append([]string{"gateway"}, strings.Fields(line)...)...)
		if code != 2 || !strings.Contains(errs, want) || len(f.changes) > 0 {
			t.Errorf("%s: code %d, %q", line, code, errs)
		}
	}
}

func TestGatewayKeyLs(t *testing.T) {
	later, earlier := time.Now().Add(5*time.Hour+time.Minute), time.Now().Add(-time.Hour)
	made := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	f := &fakeGateway{now: wire.GatewayResponse{Keys: []wire.GatewayKey{
		{Name: "ada", Models: []string{"qwen", "fast"}, Rate: 2.5, Expires: &later, Created: made, By: "root"},
		{Name: "old", Expires: &earlier, NoWake: true, Created: made, By: "root"},
		{Name: "webui", Created: made, By: "root"},
	}}}
	_, got, _ := cli(t, apptest.Agent(f), "gateway", "key", "ls")
	want := `NAME    MODELS      RATE    EXPIRES   WAKES   MADE         BY
ada     qwen,fast   2.5/s   in 5h     yes     2026-03-01   root
old     all         -       expired   no      2026-03-01   root
webui   all         -       never     yes     2026-03-01   root
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestGatewayCompletion(t *testing.T) {
	g := someGateway()
	g.Keys = []wire.GatewayKey{{Name: "ada"}, {Name: "webui"}}
	b := apptest.Agent(&fakeGateway{now: g})
	for line, want := range map[string][]string{
		"gateway key revoke ":           {"ada", "webui"},
		"gateway key rm ada ":           {"webui"},
		"gateway alias rm ":             {"fast", "gpt-4o", "off"},
		"gateway alias set fast ":       {"bbbb", "qwen"},
		"gateway key create x --model ": {"bbbb", "qwen", "fast", "gpt-4o", "off"},
	} {
		if got := offered(t, b, line); !cmp.Equal(want, got) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// A launch that has come to serve says under which name the one address has it.
func TestLaunchTellsTheGateway(t *testing.T) {
	ready := rendezvous.Progress{Step: rendezvous.StepServes, Text: "the service answers at http://10.0.0.1:8000",
		Service: &launcher.ServiceSeen{State: launcher.ServiceReady, Addr: "10.0.0.1:8000"}}
	run := &apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("a"), apptest.Runs, ready)}
	g := apptest.Calls{wire.ShowGateway.Serve(func(context.Context, wire.Caller,
		wire.Empty) (wire.GatewayResponse, error) {
		return wire.GatewayResponse{Port: 7942, Keys: []wire.GatewayKey{{Name: "webui"}}, Backends: []rendezvous.Backend{
			{Job: "zzzz", Models: []string{"other"}}, {Job: run.Spec().ID, Models: []string{"qwen"}}}}, nil
	})}
	_, _, errs := cli(t, apptest.Agent(run, &apptest.FakeCluster{}, g),
		strings.Fields("launch exec --serve 8000 --model qwen -- x")...)
	if want := "sparkrun: also at http://127.0.0.1:7942/v1 of every machine, as model qwen, with a key\n"; !strings.Contains(errs, want) {
		t.Errorf("%q lacks %q", errs, want)
	}
}

// The certificate alone is on standard output: it goes into a file.
func TestGatewayCAShow(t *testing.T) {
	f := &fakeGateway{}
	if code, out, errs := cli(t, apptest.Agent(f), "gateway", "ca", "show"); code != 1 || out != "" ||
		!strings.Contains(errs, "`sudo sparkrun gateway ca create` makes one") {
		t.Errorf("without a CA: code %d, stdout %q, stderr %q", code, out, errs)
	}
	f.now.CA = &wire.GatewayCA{Cert: "-----BEGIN CERTIFICATE-----\n"}
	if code, out, errs := cli(t, apptest.Agent(f), "gateway", "ca", "show"); code != 0 || out != f.now.CA.Cert || errs != "" {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
}

// What a group's commands change, its ls shows.
func TestGatewayGroupsLs(t *testing.T) {
	some := someGateway()
	some.VirtualIP = &wire.VirtualIP{Addr: netip.MustParsePrefix("10.0.0.100/24"), Why: "x answers"}
	for name, tt := range map[string]struct {
		now  wire.GatewayResponse
		want map[string]string // by command line, without spaces
	}{
		"some": {some, map[string]string{"alias ls": "ALIASMODELfastqwengpt-4oqwenoffgone",
			"alias ls --json":      `{"fast":"qwen","gpt-4o":"qwen","off":"gone"}`,
			"virtual-ip ls":        "ADDRESSHOST10.0.0.100/24none:xanswers",
			"virtual-ip ls --json": `{"addr":"10.0.0.100/24","why":"xanswers"}`}},
		"none": {wire.GatewayResponse{}, map[string]string{"alias ls": "ALIASMODEL", "alias ls --json": "{}",
			"virtual-ip ls": "ADDRESSHOST", "virtual-ip ls --json": "null"}},
	} {
		for line, want := range tt.want {
			_, got, errs := cli(t, apptest.Agent(&fakeGateway{now: tt.now}),
				append([]string{"gateway"}, strings.Fields(line)...)...)
			if strings.Join(strings.Fields(got), "") != want || errs != "" {
				t.Errorf("%s: %s: %q, %q", name, line, got, errs)
			}
		}
	}
}
