package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/hub/hubtest"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const chunkBytes = 16 << 20

// tiny is a model of three chunks and a half, and small files.
const tiny = "org/tiny"

var weights = func() []byte {
	b := make([]byte, 7*chunkBytes/2)
	rand.NewChaCha8([32]byte{7}).Read(b)
	return b
}()

func tinyFiles() map[string]hubtest.Content {
	files := map[string]hubtest.Content{
		"model.safetensors": {Size: int64(len(weights)), Reader: bytes.NewReader(weights), LFS: true},
		"config.json":       hubtest.Text(`{"architectures": ["Tiny"]}`),
		"README.md":         hubtest.Text("# tiny\n"),
	}
	for i := range 5 {
		files[fmt.Sprintf("tokenizer/part%d.json", i)] = hubtest.Text(fmt.Sprintf(`{"part": %d}`, i))
	}
	return files
}

// withHub is a cluster, and the outside.
func withHub(t *testing.T, size int, edits ...func(*Config)) (*cluster, *hubtest.Server) {
	t.Helper()
	s, err := hubtest.Start("", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if _, err := s.Add(hubtest.Repo{Name: tiny, Files: tinyFiles()}); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, size, append(edits, func(c *Config) { c.HubEndpoint = s.Endpoint })...)
	for _, h := range c.hosts {
		h.wait(size)
	}
	return c, s
}

func pullOf(repo string) wire.ModelPullRequest {
	return wire.ModelPullRequest{ModelRepo: wire.ModelRepo{Name: repo}, ID: launcher.NewJobID(), All: true}
}

// nobody is a user of this machine.
var nobody = wire.Caller{User: &wire.User{Name: "nobody", UID: 65534}}

// withToken gives a request a user's token.
func (h *host) withToken(who wire.Caller, r wire.ModelPullRequest, token string) (*wire.Client, wire.ModelPullRequest) {
	h.t.Helper()
	cl := h.now().server.As(who)
	if token != "" {
		res, err := wire.Seal.Call(h.t.Context(), cl, wire.SealRequest{Job: r.ID,
			Secrets: []wire.Plain{{Name: "HF_TOKEN", Value: []byte(token)}}})
		if err != nil {
			h.t.Fatal(err)
		}
		r.Token = &res.Secrets[0]
	}
	return cl, r
}

// pulled is what a pull has told.
type pulled struct {
	mu    sync.Mutex
	plan  *wire.ModelPlan
	last  map[string]wire.ModelProgress
	notes []string
	err   error
	over  chan struct{}
	stop  func() // watching
}

// pull begins one, as root.
func (h *host) pull(r wire.ModelPullRequest) *pulled { return h.pullAs(asRoot, r) }

func (h *host) pullAs(who wire.Caller, r wire.ModelPullRequest) *pulled {
	ctx, cancel := context.WithCancel(h.t.Context())
	p := &pulled{last: map[string]wire.ModelProgress{}, over: make(chan struct{}), stop: cancel}
	cl := h.now().server.As(who)
	go func() {
		defer close(p.over)
		p.err = wire.ModelPull.Call(ctx, cl, r, func(m wire.ModelProgress) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if m.Plan != nil {
				p.plan = m.Plan
				return nil
			}
			p.last[m.Host] = m
			p.notes = append(p.notes, m.Notes...)
			return nil
		})
	}()
	return p
}

func (p *pulled) of(host string) wire.ModelProgress {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last[host]
}

// whole waits until it is over: all these hosts have it.
func (p *pulled) whole(t *testing.T, hosts ...*host) {
	t.Helper()
	select {
	case <-p.over:
	case <-time.After(time.Minute):
		t.Fatalf("the pull is not over: %+v", p.last)
	}
	if p.err != nil {
		t.Fatal("pull:", p.err)
	}
	for _, h := range hosts {
		if s := p.of(h.cfg.Host); s.State != wire.ModelDone || s.Have != s.Bytes {
			t.Errorf("%s: %+v; notes %q", h.cfg.Host, s, p.notes)
			continue
		}
		got, err := os.ReadFile(filepath.Join(p.of(h.cfg.Host).Dir, "model.safetensors"))
		if err != nil || !bytes.Equal(got, weights) {
			t.Errorf("%s: %d bytes of the weights, %v", h.cfg.Host, len(got), err)
		}
	}
}

func (h *host) models(repo string) map[string]wire.NodeModels {
	h.t.Helper()
	res, err := wire.Models.Call(h.t.Context(), h.now().server.As(asRoot), wire.ModelsRequest{ModelRepo: wire.ModelRepo{Name: repo}})
	if err != nil {
		h.t.Fatal(err)
	}
	out := map[string]wire.NodeModels{}
	for _, n := range res.Nodes {
		out[n.Host] = n
	}
	return out
}

func tinyBytes() (n int64) {
	for _, c := range tinyFiles() {
		n += c.Size
	}
	return n
}

// A model comes from outside once, whichever node is asked; it is on all of them then, verified and listed, and is not
// fetched again. What cannot be is refused before anything is begun.
func TestModelIsFetchedOnce(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 3)
	p := c.hosts[1].pull(pullOf(tiny))
	p.whole(t, c.hosts...)
	if p.plan == nil || len(p.plan.Hosts) != 3 || p.plan.Hosts[0] != "spark2" || p.plan.Bytes != tinyBytes() {
		t.Errorf("the plan: %+v, want 3 hosts from spark2 on, and %d bytes", p.plan, tinyBytes())
	}
	if s.Sent() != tinyBytes() {
		t.Errorf("%d bytes from outside, want %d", s.Sent(), tinyBytes())
	}
	for host, n := range c.hosts[2].models("") {
		if len(n.Held) != 1 || len(n.Held[0].Commits) != 1 || !n.Held[0].Commits[0].Whole() || n.Free == 0 {
			t.Errorf("%s has %+v", host, n)
		}
	}
	c.hosts[0].pull(pullOf(tiny)).whole(t, c.hosts...)
	if s.Sent() != tinyBytes() {
		t.Errorf("%d bytes from outside after a second pull", s.Sent())
	}
	for _, h := range c.hosts {
		if left, _ := os.ReadDir(h.cfg.Paths.orders()); len(left) > 0 {
			t.Errorf("%s keeps the order %s", h.cfg.Host, left[0].Name())
		}
	}

	root := c.hosts[0].now().server.As(asRoot)
	verified := map[string]wire.ModelVerdict{}
	if err := wire.ModelVerify.Call(t.Context(), root, wire.ModelRequest{ModelRepo: wire.ModelRepo{Name: tiny}},
		func(v wire.ModelVerdict) error {
			verified[v.Host] = v
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	for _, h := range c.hosts {
		if v := verified[h.cfg.Host]; !v.Ended || v.Read != tinyBytes() || len(v.Bad) > 0 || v.Error != "" {
			t.Errorf("verified: %+v", v)
		}
	}

	for what, r := range map[string]struct {
		edit func(*wire.ModelPullRequest)
		want error
		text string
	}{
		"no model":    {func(r *wire.ModelPullRequest) { r.Name = "org/none" }, wire.ErrNoModel, "no such repository"},
		"no revision": {func(r *wire.ModelPullRequest) { r.Revision = "v9" }, wire.ErrNoModel, "no such revision"},
		"no host":     {func(r *wire.ModelPullRequest) { r.On = []string{"spark9"} }, nil, "spark9"},
		"too many":    {func(r *wire.ModelPullRequest) { r.All, r.Nodes = false, 4 }, nil, "3 answer"},
		"no file":     {func(r *wire.ModelPullRequest) { r.Include = []string{"*.gguf"} }, launcher.ErrInvalid, "--include"},
		"no name":     {func(r *wire.ModelPullRequest) { r.Name = "../etc" }, launcher.ErrInvalid, "ORG/NAME"},
	} {
		req := pullOf(tiny)
		r.edit(&req)
		err := wire.ModelPull.Call(t.Context(), root, req, func(wire.ModelProgress) error { return nil })
		if err == nil || r.want != nil && !errors.Is(err, r.want) || !strings.Contains(err.Error(), r.text) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A node whose agent is killed goes on where it was when its agent is there again, also if nobody watches; a change of
// the leader is not noticed. Nothing comes twice from outside but what was under way.
func TestModelPullOutlivesAgents(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 3)
	leader := c.hosts[0]
	if !leader.leadsNow() {
		t.Fatal("the first node does not lead")
	}
	s.Rate = 8 << 20 // of each answer
	r := pullOf(tiny)
	r.All, r.On = false, []string{"spark2", "spark3"}
	p := c.hosts[1].pull(r)
	c.hosts[1].eventually("a chunk is there", func() bool { return p.of("spark3").Have > chunkBytes })
	leader.crash()
	c.hosts[2].crash()
	c.hosts[2].start()
	s.Fault(hubtest.Fault{API: true, Drop: true})
	r.Again = true
	again := c.hosts[2].pull(r) // as the command does that has lost its agent
	p.whole(t, c.hosts[1:]...)
	again.whole(t, c.hosts[1:]...)
	s.Heal()
	if sent := s.Sent(); sent > tinyBytes()+2*chunkBytes {
		t.Errorf("%d bytes from outside, want %d and the chunks under way at most", sent, tinyBytes())
	}
	leader.start()

	// The node that fetches from outside, and is the one that watches.
	alone := pullOf(tiny)
	alone.All, alone.On = false, []string{"spark1"}
	leader.wait(3)
	before := s.Sent()
	leader.pull(alone).whole(t, leader)
	if s.Sent() != before {
		t.Errorf("%d bytes from outside, though members have it", s.Sent()-before)
	}
}

// The node that reads from outside is killed: its order is on its disk, and what it had verified is not fetched again.
func TestModelOrderOutlivesItsAgent(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 1)
	h := c.hosts[0]
	s.Rate = 8 << 20
	p := h.pull(pullOf(tiny))
	h.eventually("a chunk is there", func() bool { return p.of("spark1").Have > chunkBytes })
	h.crash()
	p.stop()
	<-p.over
	had := s.Sent()
	h.start()
	h.wait(1)
	h.eventually("it went on by itself, and is whole", func() bool {
		n := h.models(tiny)["spark1"]
		return len(n.Held) == 1 && len(n.Held[0].Commits) == 1 && n.Held[0].Commits[0].Whole() && n.Held[0].Pulling == ""
	})
	if sent := s.Sent(); sent > tinyBytes()+2*chunkBytes {
		t.Errorf("%d bytes from outside, %d of them before the kill, want %d and what was under way", sent, had, tinyBytes())
	}
}

// The node that reads from outside dies, and stays away: the one behind it goes on from what it has. When the dead one
// is back, it has the rest from there.
func TestModelReaderOfTheOutsideDies(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 3)
	s.Rate = 8 << 20
	r := pullOf(tiny)
	r.All, r.On = false, []string{"spark2", "spark3"}
	p := c.hosts[0].pull(r)
	c.hosts[0].eventually("the second has a chunk", func() bool { return p.of("spark3").Have >= chunkBytes })
	c.hosts[1].crash()
	c.hosts[0].eventually("the second is whole, and the first is said to be away", func() bool {
		return p.of("spark3").State == wire.ModelDone && p.of("spark2").State == wire.ModelAway
	})
	sent := s.Sent()
	c.hosts[1].start()
	p.whole(t, c.hosts[1:]...)
	if s.Sent() != sent {
		t.Errorf("%d bytes from outside, though a member had them", s.Sent()-sent)
	}
}

// A member whose disk has spoilt a file is left and named; the file comes from elsewhere, and is right. Verify finds it.
func TestModelWrongBytesOfAMember(t *testing.T) {
	t.Parallel()
	c, _ := withHub(t, 2)
	alone := pullOf(tiny)
	alone.All, alone.On = false, []string{"spark1"}
	first := c.hosts[0].pull(alone)
	first.whole(t, c.hosts[0])
	blob, err := filepath.EvalSymlinks(filepath.Join(first.of("spark1").Dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(blob, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("spoilt"), chunkBytes+99)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	alone.ID, alone.On = launcher.NewJobID(), []string{"spark2"}
	second := c.hosts[1].pull(alone)
	second.whole(t, c.hosts[1])
	if text := strings.Join(second.notes, "\n"); !strings.Contains(text, "spark1 was left for model.safetensors") ||
		!strings.Contains(text, "wrong bytes") {
		t.Errorf("notes: %q", text)
	}
	var bad []modelcache.Bad
	if err := wire.ModelVerify.Call(t.Context(), c.hosts[1].now().server.As(asRoot),
		wire.ModelRequest{ModelRepo: wire.ModelRepo{Name: tiny}}, func(v wire.ModelVerdict) error {
			if v.Host == "spark1" {
				bad = v.Bad
			} else if len(v.Bad) > 0 {
				t.Errorf("%s: %+v", v.Host, v.Bad)
			}
			return nil
		}); err != nil || len(bad) != 1 || bad[0].Path != "model.safetensors" {
		t.Errorf("verify: %v, %+v", err, bad)
	}
}

// A gated model needs a token, which is on no disk in the clear.
func TestModelToken(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 2)
	const token = "hf_averysecrettoken"
	s.Tokens = []string{token}
	s.Rate = 16 << 20
	if _, err := s.Add(hubtest.Repo{Name: "org/gated", Gated: true, Files: tinyFiles()}); err != nil {
		t.Fatal(err)
	}
	h := c.hosts[0]
	ask := func(who wire.Caller, token string) (*wire.Client, wire.ModelPullRequest) {
		return h.withToken(who, pullOf("org/gated"), token)
	}
	for what, x := range map[string]struct {
		who         wire.Caller
		token, want string
	}{
		"no token":    {asRoot, "", "gated"},
		"wrong token": {asRoot, "hf_wrong", "token"},
	} {
		cl, r := ask(x.who, x.token)
		err := wire.ModelPull.Call(t.Context(), cl, r, func(wire.ModelProgress) error { return nil })
		if !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, r := ask(asRoot, token)
	p := h.pull(r)
	h.eventually("an order is kept", func() bool {
		found, _ := filepath.Glob(filepath.Join(c.hosts[1].cfg.Paths.orders(), "*"))
		return len(found) == 1
	})
	for _, h := range c.hosts {
		_ = filepath.WalkDir(h.cfg.Paths.State, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() && !strings.HasSuffix(path, ".part") {
				if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte(token)) {
					t.Errorf("the token is in %s", path)
				}
			}
			return nil
		})
	}
	p.whole(t, c.hosts...)
	if leaks := s.Leaks(); len(leaks) > 0 {
		t.Errorf("the token went elsewhere: %q", leaks)
	}
}

// What a user adds is under the user's own name, with the user's rights to the files; others have it from there, with
// no Hub at all.
func TestModelAdd(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, func(c *Config) { c.HubEndpoint = "http://127.0.0.1:1" }) // nobody listens there
	c.hosts[0].wait(2)
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "model.safetensors"), weights, 0o644),
		os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644)); err != nil {
		t.Fatal(err)
	}
	h := c.hosts[0]
	add := func(who wire.Caller, name string) error {
		_, err := wire.ModelAdd.Call(t.Context(), h.now().server.As(who), wire.ModelAddRequest{
			ModelRepo: wire.ModelRepo{Name: name}, Dir: dir})
		return err
	}
	ada := wire.Caller{User: &wire.User{Name: "ada", UID: 1000}}
	if err := add(ada, "org/tiny"); !errors.Is(err, wire.ErrDenied) || !strings.Contains(err.Error(), "ada/") {
		t.Errorf("ada adds in another's name: %v", err)
	}
	if err := add(asRoot, "mine/tuned"); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // t.TempDir is root's alone
		if err := add(nobody, "nobody/stolen"); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("nobody adds root's files: %v", err)
		}
	}
	r := pullOf("mine/tuned")
	p := c.hosts[1].pull(r)
	p.whole(t, c.hosts...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := wire.ModelPull.Call(ctx, h.now().server.As(asRoot), pullOf(tiny), func(wire.ModelProgress) error { return nil })
	if !errors.Is(err, wire.ErrNoModel) || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("what nobody has, with no Hub: %v", err)
	}
}

// What was added under a name that the Hub knows too is what a pull brings.
func TestModelAddedComesFirst(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 2)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), weights, 0o644); err != nil {
		t.Fatal(err)
	}
	added, err := wire.ModelAdd.Call(t.Context(), c.hosts[0].now().server.As(asRoot), wire.ModelAddRequest{
		ModelRepo: wire.ModelRepo{Name: tiny}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, revision := range []string{"", "main", added.Commit} {
		r := pullOf(tiny)
		r.Revision = revision
		p := c.hosts[1].pull(r)
		p.whole(t, c.hosts...)
		if p.plan.Commit != added.Commit || !strings.Contains(p.plan.Offline, "added here") || s.Sent() != 0 {
			t.Errorf("%q: %+v, %d bytes from outside", revision, p.plan, s.Sent())
		}
	}

	// The one that was added last counts, wherever that was; and where it is lost it is not the Hub's that comes.
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	second, err := wire.ModelAdd.Call(t.Context(), c.hosts[1].now().server.As(asRoot), wire.ModelAddRequest{
		ModelRepo: wire.ModelRepo{Name: tiny}, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	p := c.hosts[1].pull(pullOf(tiny))
	p.whole(t, c.hosts...)
	if p.plan.Commit != second.Commit {
		t.Errorf("%s comes, and %s was added after it", p.plan.Commit, second.Commit)
	}
	for host := range c.hosts {
		if err := os.Remove(filepath.Join(p.of(c.hosts[host].cfg.Host).Dir, "config.json")); err != nil {
			t.Fatal(err)
		}
	}
	lost := c.hosts[0].pull(pullOf(tiny))
	<-lost.over
	if !errors.Is(lost.err, wire.ErrNoModel) || !strings.Contains(lost.err.Error(), "sparkrun model rm "+tiny) || s.Sent() != 0 {
		t.Errorf("%v, %d bytes from outside", lost.err, s.Sent())
	}
}
