package e2e

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	modelBytes = 64<<20 + 12345
	modelChunk = 16 << 20
	config     = `{"model_type": "gpt2"}`
)

// TestModelPull: a model comes from outside once, to three machines, though the agent that reads from outside is killed
// and a machine loses its power in between. Then each has it by itself: verified, readable for users, removed.
func TestModelPull(t *testing.T) {
	dir := scratch(t)
	model := filepath.Join(dir, "model")
	weights := make([]byte, modelBytes)
	_, _ = rand.Read(weights)
	for name, text := range map[string][]byte{"model.safetensors": weights, "config.json": []byte(config),
		"pytorch_model.bin": []byte("the same in another format")} {
		if err := os.MkdirAll(model, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(model, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l, hub := upWithHub(t, 3, []string{"--rate", "3000000", "org/tiny=" + model})

	pull := l.start("spark2", "sparkrun", "model", "pull", "org/tiny", "--all")
	eventually(t, 20*time.Second, "two chunks and a half came", func() bool {
		if pull.over() {
			t.Fatalf("the pull ended too early: %s", pull.wait())
		}
		return hub.sent() > 5*modelChunk/2
	})
	l.do("kill", "spark2", "--agent") // it reads from outside, and is the one that was asked
	l.do("kill", "spark3")
	l.do("start", "spark2", "--agent")
	l.do("start", "spark3")
	got := pull.wait().must(t)
	t.Logf("it took %s, and said:\n%s", got.took.Round(time.Millisecond), got.err)
	snapshot := strings.TrimSpace(got.out)
	if filepath.Dir(snapshot) != "/var/lib/sparkrun/models/models--org--tiny/snapshots" {
		t.Errorf("it printed %q", got.out)
	}
	if !strings.Contains(got.err, "left out: 1 file: the same weights in another format") {
		t.Errorf("what is left out is not said:\n%s", got.err)
	}
	if n, all := hub.sent(), int64(modelBytes+len(config)); n < all || n > all+2*modelChunk {
		t.Errorf("%d bytes came from outside, want %d and the two chunks under way at most", n, all)
	}
	for i := 1; i <= 3; i++ {
		h := fmt.Sprintf("spark%d", i)
		r := l.on(h, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cmp",
			filepath.Join(snapshot, "model.safetensors"), filepath.Join(model, "model.safetensors"))
		if r.code != 0 {
			t.Errorf("%s has other bytes, or a user cannot read them: %s", h, r)
		}
	}
	verified := l.on("spark1", "sparkrun", "model", "verify", "org/tiny").must(t)
	if n := strings.Count(verified.out, "all right"); n != 3 {
		t.Errorf("verify: %s", verified)
	}
	l.on("spark1", "sparkrun", "model", "rm", "org/tiny", "--on", "spark1").must(t)
	listed := l.on("spark3", "sparkrun", "model", "ls", "org/tiny").must(t)
	if strings.Count(listed.out, " whole ") != 2 || strings.Contains(listed.out, "spark1") {
		t.Errorf("ls after rm on spark1:\n%s", listed.out)
	}

	// A launch fetches what its machines lack, and its engine has the folder.
	s := l.serve("spark2", "--vllm", standin(t, python), "--on", "spark1,spark2", "--name", "served", "--host", "0.0.0.0", "org/tiny")
	argv := strings.Join(l.ask(t, "spark2", s.url(t, serveWait)).Argv, " ")
	if !strings.HasPrefix(argv, "serve "+snapshot+" ") || !strings.Contains(argv, "--served-model-name org/tiny") {
		t.Errorf("the engine has %s; said:\n%s", argv, s.said())
	}
	if !strings.Contains(s.said(), "spark1: whole: "+snapshot) {
		t.Errorf("it was not fetched first:\n%s", s.said())
	}
	if r := l.on("spark2", "sparkrun", "model", "rm", "org/tiny", "--on", "spark1"); r.code == 0 ||
		!strings.Contains(r.err, "in use") {
		t.Errorf("what a server reads is removed: %s", r)
	}
	l.on("spark2", "sparkrun", "stop", "served").must(t)
	l.on("spark1", "sparkrun", "model", "rm", "org/tiny", "--on", "spark1").must(t)

	// With the Hub away it comes from a machine that has it.
	hub.end()
	again := l.on("spark1", "sparkrun", "model", "pull", "org/tiny").must(t)
	if strings.TrimSpace(again.out) != snapshot || !strings.Contains(again.err, "it comes from machines that have it") {
		t.Errorf("with the Hub away: %s", again)
	}
}
