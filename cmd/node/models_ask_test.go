package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/hub/hubtest"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// hubs is a cluster whose nodes each have a Hub of their own.
func hubs(t *testing.T, endpoints ...string) *cluster {
	t.Helper()
	c := newCluster(t, len(endpoints), func(c *Config) { c.HubEndpoint = endpoints[c.Host[len(c.Host)-1]-'1'] })
	for _, h := range c.hosts {
		h.wait(len(endpoints))
	}
	return c
}

// noHub is where nobody listens.
const noHub = "http://127.0.0.1:1"

// A node without a way to the Hub has another one ask it, the token's owner as well. Where none of those that are to
// have the model has a way, it is said at once which one has.
func TestModelIsResolvedByAnother(t *testing.T) {
	t.Parallel()
	s, err := hubtest.Start("", "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const token = "hf_averysecrettoken"
	s.Tokens = []string{token}
	if _, err := s.Add(hubtest.Repo{Name: tiny, Gated: true, Files: tinyFiles()}); err != nil {
		t.Fatal(err)
	}
	c := hubs(t, noHub, noHub, s.Endpoint)
	root := c.hosts[0].now().server.As(asRoot)
	sealed := func(on ...string) wire.ModelPullRequest {
		r := pullOf(tiny)
		r.All, r.On = false, on
		res, err := wire.Seal.Call(t.Context(), root, wire.SealRequest{Job: r.ID,
			Secrets: []wire.Plain{{Name: "HF_TOKEN", Value: []byte(token)}}})
		if err != nil {
			t.Fatal(err)
		}
		r.Token = &res.Secrets[0]
		return r
	}
	refuses := func(r wire.ModelPullRequest, is error, want string) {
		t.Helper()
		err := wire.ModelPull.Call(t.Context(), root, r, func(wire.ModelProgress) error { return nil })
		if !errors.Is(err, is) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	refuses(sealed("spark1", "spark2"), wire.ErrNoModel, "`sparkrun model pull org/tiny --on spark3` first")
	none := sealed("spark1", "spark3")
	none.Name = "org/none"
	refuses(none, wire.ErrNoModel, "no such repository")
	stranger := sealed("spark1", "spark3")
	stranger.ID = launcher.NewJobID() // of which the token is not
	refuses(stranger, wire.ErrNoModel, ": open the token")

	c.hosts[0].pull(sealed("spark1", "spark3")).whole(t, c.hosts[0], c.hosts[2])
	if leaks := s.Leaks(); len(leaks) > 0 {
		t.Errorf("the token went elsewhere: %q", leaks)
	}
}

// A Hub that says nothing is not waited for where a machine has the model; what is waited for is said, and it is not
// asked again for a while.
func TestModelHubIsSilent(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	endpoint := "http://" + silent.Addr().String()
	c := hubs(t, endpoint, endpoint)
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "model.safetensors"), weights, 0o644),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644)); err != nil {
		t.Fatal(err)
	}
	root := c.hosts[0].now().server.As(asRoot)
	if _, err := wire.ModelAdd.Call(t.Context(), root, wire.ModelAddRequest{ModelRepo: wire.ModelRepo{Name: tiny},
		Dir: dir}); err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Glob(filepath.Join(c.hosts[0].cfg.Paths.models(), "*/sparkrun/*.manifest"))
	if err != nil || len(manifests) != 1 {
		t.Fatalf("%q, %v", manifests, err)
	}
	text, err := os.ReadFile(manifests[0]) // as if the Hub had said it
	fromHub := regexp.MustCompile(`,"added":"[^"]*"`).ReplaceAll(text, nil)
	if err := errors.Join(err, os.WriteFile(manifests[0], fromHub, 0o644)); err != nil || len(fromHub) == len(text) {
		t.Fatalf("%s: %v", text, err)
	}
	began := time.Now()
	pull := func() (asks string, planned time.Duration, err error) {
		began := time.Now()
		err = wire.ModelPull.Call(t.Context(), root, pullOf(tiny), func(p wire.ModelProgress) error {
			if p.Asks != "" {
				asks = p.Asks
			}
			if p.Plan != nil {
				planned = time.Since(began)
			}
			return nil
		})
		return asks, planned, err
	}
	asks, planned, err := pull()
	if err != nil || asks != endpoint || planned > 15*time.Second {
		t.Errorf("%v, after %s; said that it asks %q", err, planned, asks)
	}
	asks, planned, err = pull()
	if since := time.Since(began); since < 25*time.Second && (err != nil || asks != "" || planned > 3*time.Second) {
		t.Errorf("once more: %v, after %s; said that it asks %q", err, planned, asks)
	}
}

// A dataset of many files is resolved and ordered like any other, though the list does not fit an ordinary message; so is
// one that only a member has.
func TestModelOfManyFiles(t *testing.T) {
	t.Parallel()
	const files, taken = 5_300, 53
	long := strings.Repeat("/"+strings.Repeat("n", 200), 4) // 4.3 MB of names
	s, err := hubtest.Start("", "")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	many := map[string]hubtest.Content{}
	for i := range files {
		many[fmt.Sprintf("train/%04d%s", i, long)] = hubtest.Text(fmt.Sprint(i % 20))
	}
	if _, err := s.Add(hubtest.Repo{Name: "org/many", Type: "dataset", Files: many}); err != nil {
		t.Fatal(err)
	}
	c := hubs(t, noHub, s.Endpoint, noHub)
	pull := func(on ...string) {
		t.Helper()
		r := pullOf("org/many")
		r.Type, r.All, r.On, r.Include = "dataset", false, on, []string{"train/??00/*"} // links take most of the time
		p := c.hosts[0].pull(r)
		select {
		case <-p.over:
		case <-time.After(2 * time.Minute):
			t.Fatalf("it is not over: %+v", p.last)
		}
		if p.err != nil {
			t.Fatal(p.err)
		}
		for _, host := range on {
			if p.of(host).State != wire.ModelDone {
				t.Errorf("%s: %+v", host, p.of(host))
			}
		}
		if p.plan.Files != taken {
			t.Errorf("%d files, want %d", p.plan.Files, taken)
		}
	}
	s.Fault(hubtest.Fault{Drop: true})
	all := pullOf("org/many")
	all.Type, all.All, all.On = "dataset", false, []string{"spark2"}
	p := c.hosts[1].pull(all)
	c.hosts[1].eventually("it is listed while it comes", func() bool {
		n := c.hosts[1].models("")["spark2"] // as it is asked here, a busy machine may take its time
		return len(n.Held) == 1 && len(n.Held[0].Commits) == 1 && len(n.Held[0].Commits[0].Missing) == 20
	})
	c.hosts[0].eventually("it is removed", func() bool { // a busy machine may not tell in time what it has
		_, err := wire.ModelRemove.Call(t.Context(), c.hosts[0].now().server.As(asRoot), wire.ModelRemoveRequest{
			ModelRequest: wire.ModelRequest{ModelRepo: all.ModelRepo}})
		return err == nil
	})
	<-p.over
	s.Heal()
	pull("spark1", "spark2")
	s.Fault(hubtest.Fault{API: true, Drop: true})
	pull("spark3") // as members have it
}

// What is verified or removed has to be there, and so have its revision and the machines that are named.
func TestModelBadInput(t *testing.T) {
	t.Parallel()
	c := hubs(t, noHub, noHub)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	root := c.hosts[1].now().server.As(asRoot)
	if _, err := wire.ModelAdd.Call(t.Context(), c.hosts[0].now().server.As(asRoot),
		wire.ModelAddRequest{ModelRepo: wire.ModelRepo{Name: tiny}, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	for what, tt := range map[string]struct {
		name, revision string
		on             []string
		want           error // of the call
		said           map[string]string
	}{
		"no model":         {name: "org/none", want: wire.ErrNoModel},
		"no name":          {name: "../x", want: launcher.ErrInvalid},
		"no host":          {name: tiny, on: []string{"spark9"}, want: rendezvous.ErrNoNode},
		"a host without":   {name: tiny, on: []string{"spark2"}, said: map[string]string{"spark2": "not in the cache"}},
		"no revision":      {name: tiny, revision: "v9", said: map[string]string{"spark1": `revision "v9"`}},
		"another's commit": {name: tiny, revision: strings.Repeat("f", 40), said: map[string]string{"spark1": "revision"}},
	} {
		r := wire.ModelRequest{ModelRepo: wire.ModelRepo{Name: tt.name}, Revision: tt.revision, On: tt.on}
		verified, removed := map[string]string{}, map[string]string{}
		verr := wire.ModelVerify.Call(t.Context(), root, r, func(v wire.ModelVerdict) error {
			verified[v.Host] = v.Error
			return nil
		})
		res, rerr := wire.ModelRemove.Call(t.Context(), root, wire.ModelRemoveRequest{ModelRequest: r})
		for _, n := range res.Nodes {
			removed[n.Host] = n.Error
		}
		if !errors.Is(verr, tt.want) || !errors.Is(rerr, tt.want) {
			t.Errorf("%s: %v, %v, want %v", what, verr, rerr, tt.want)
		}
		for _, got := range []map[string]string{verified, removed} {
			if len(got) != len(tt.said) {
				t.Errorf("%s: said %q", what, got)
			}
			for host, text := range tt.said {
				if !strings.Contains(got[host], text) {
					t.Errorf("%s: said %q, want %q", what, got, text)
				}
			}
		}
	}
}

// A machine that is away may have a model: verify and rm name it, and take no answer for it.
func TestModelAway(t *testing.T) {
	t.Parallel()
	c := hubs(t, noHub, noHub)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	root := c.hosts[0].now().server.As(asRoot)
	r := wire.ModelRequest{ModelRepo: wire.ModelRepo{Name: tiny}}
	if _, err := wire.ModelAdd.Call(t.Context(), root, wire.ModelAddRequest{ModelRepo: r.ModelRepo, Dir: dir}); err != nil {
		t.Fatal(err)
	}
	c.hosts[1].crash()
	said := map[string]string{}
	if err := wire.ModelVerify.Call(t.Context(), root, r, func(v wire.ModelVerdict) error {
		said[v.Host] = v.Error
		return nil
	}); err != nil || said["spark1"] != "" || !strings.Contains(said["spark2"], "not asked") {
		t.Errorf("verify: %q, %v", said, err)
	}
	res, err := wire.ModelRemove.Call(t.Context(), root, wire.ModelRemoveRequest{ModelRequest: r})
	if err != nil || len(res.Nodes) != 2 || res.Nodes[0].Error != "" || !strings.Contains(res.Nodes[1].Error, "not asked") {
		t.Errorf("remove: %+v, %v", res, err)
	}
	_, err = wire.ModelRemove.Call(t.Context(), root, wire.ModelRemoveRequest{ModelRequest: r})
	if !errors.Is(err, wire.ErrNoModel) || !strings.Contains(err.Error(), "spark2, which was not asked") {
		t.Errorf("once more: %v", err)
	}
}
