package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/hub/hubtest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What was pulled by --include is not taken for the model, until the rest of it is there.
func TestModelPartIsNotTheModel(t *testing.T) {
	t.Parallel()
	c, _ := withHub(t, 1)
	h := c.hosts[0]
	partial := func() bool { return h.models(tiny)["spark1"].Held[0].Commits[0].Partial }
	r := pullOf(tiny)
	r.Include = []string{"*.json"}
	<-h.pull(r).over
	if !partial() {
		t.Error("a part is taken for the whole")
	}
	h.pull(pullOf(tiny)).whole(t, h)
	if partial() {
		t.Error("all of it is taken for a part")
	}
}

// A pull that is limited holds up no other.
func TestModelPullBesideASlowOne(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 1)
	if _, err := s.Add(hubtest.Repo{Name: "org/slow", Files: tinyFiles()}); err != nil {
		t.Fatal(err)
	}
	h := c.hosts[0]
	r := pullOf("org/slow")
	r.Limit = 1 << 10
	slow := h.pull(r)
	h.eventually("it has begun", func() bool { return slow.of("spark1").State == wire.ModelFetches })
	h.pull(pullOf(tiny)).whole(t, h)
	slow.stop()
	if _, err := wire.ModelRemove.Call(t.Context(), h.now().server.As(asRoot),
		wire.ModelRemoveRequest{ModelRequest: wire.ModelRequest{ModelRepo: wire.ModelRepo{Name: "org/slow"}}}); err != nil {
		t.Error(err)
	}
	<-slow.over
}

// A pull under way that is asked for again with another limit has that on all of its nodes.
func TestModelLimitIsChanged(t *testing.T) {
	t.Parallel()
	c, _ := withHub(t, 2)
	r := pullOf(tiny)
	r.Limit = 256 << 10 // minutes
	first := c.hosts[0].pull(r)
	c.hosts[0].eventually("it is under way on both", func() bool {
		return first.of("spark1").State == wire.ModelFetches && first.of("spark2").State == wire.ModelFetches
	})
	r.ID, r.Limit = launcher.NewJobID(), 1<<40
	c.hosts[1].pull(r).whole(t, c.hosts...)
	first.whole(t, c.hosts...)
}

// A kept token whose key has gone does not end the pull: it is said, and the token may be given anew.
func TestModelTokenIsGivenAnew(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 1)
	const token = "hf_averysecrettoken"
	s.Tokens = []string{token}
	s.Rate = 8 << 20
	if _, err := s.Add(hubtest.Repo{Name: "org/gated", Gated: true, Files: tinyFiles()}); err != nil {
		t.Fatal(err)
	}
	h := c.hosts[0]
	sealed := func() wire.ModelPullRequest {
		r := pullOf("org/gated")
		res, err := wire.Seal.Call(t.Context(), h.now().server.As(asRoot), wire.SealRequest{Job: r.ID,
			Secrets: []wire.Plain{{Name: "HF_TOKEN", Value: []byte(token)}}})
		if err != nil {
			t.Fatal(err)
		}
		r.Token = &res.Secrets[0]
		return r
	}
	r := sealed()
	p := h.pull(r)
	h.eventually("a chunk is there", func() bool { return p.of("spark1").Have > chunkBytes })
	h.crash()
	p.stop()
	<-p.over
	files, err := filepath.Glob(filepath.Join(h.cfg.Paths.orders(), "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("orders %q, %v", files, err)
	}
	var o wire.ModelOrder
	text, err := os.ReadFile(files[0])
	if err := errors.Join(err, json.Unmarshal(text, &o)); err != nil {
		t.Fatal(err)
	}
	o.Token.Box[len(o.Token.Box)-1] ^= 1
	text, err = json.Marshal(o)
	if err := errors.Join(err, os.WriteFile(files[0], text, 0o600)); err != nil {
		t.Fatal(err)
	}
	h.start()
	h.wait(1)
	r.Again = true
	p = h.pull(r)
	h.eventually("it is said", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return slices.ContainsFunc(p.notes, func(n string) bool { return strings.Contains(n, "--secret HF_TOKEN") })
	})
	h.pull(sealed()).whole(t, h)
	p.whole(t, h)
}
