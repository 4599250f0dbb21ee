package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher/filesync/hub/hubtest"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A gated model is read by those alone whose token the Hub has accepted, wherever its bytes come from; by root's word by
// everybody.
func TestModelGated(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("other users take root")
	}
	t.Parallel()
	dir, err := os.MkdirTemp("", "models") // t.TempDir is root's alone
	if err := errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c, s := withHub(t, 2, func(c *Config) {
		c.Paths.Policy = filepath.Join(dir, c.Host+".yaml")
		rule := fmt.Sprintf("model_cache: %s/%s\n", dir, c.Host)
		if err := os.WriteFile(c.Paths.Policy, []byte(rule), 0o644); err != nil {
			t.Fatal(err)
		}
	})
	const theirs, ours = "hf_nobodys", "hf_daemons"
	s.Tokens = []string{theirs, ours}
	files := tinyFiles()
	if _, err := s.Add(hubtest.Repo{Name: "org/gated", Gated: true, Files: files}); err != nil {
		t.Fatal(err)
	}
	daemon := wire.Caller{User: &wire.User{Name: "daemon", UID: 1}}
	may := func(host, want string) {
		t.Helper()
		got := ""
		for _, user := range []string{"nobody", "daemon", "bin"} {
			out, err := exec.Command("setpriv", "--reuid="+user, "--regid=nogroup", "--clear-groups", "sh", "-c",
				"cat "+filepath.Join(dir, host)+"/models--org--gated/snapshots/*/config.json").CombinedOutput()
			if err == nil {
				got += user + " "
			} else if !strings.Contains(string(out), "ermission denied") && !strings.Contains(string(out), "o such file") {
				t.Fatalf("%s on %s: %s", user, host, out)
			}
		}
		if got != want {
			t.Errorf("%s's is read by %q, want %q", host, got, want)
		}
	}
	pull := func(h *host, who wire.Caller, token string, on ...string) *pulled {
		r := pullOf("org/gated")
		r.All, r.On = false, on
		_, r = h.withToken(who, r, token)
		return h.pullAs(who, r)
	}
	refused := func(what, want string, h *host, who wire.Caller, token string, on ...string) {
		t.Helper()
		p := pull(h, who, token, on...)
		if <-p.over; !errors.Is(p.err, wire.ErrDenied) || !strings.Contains(p.err.Error(), want) {
			t.Errorf("%s: %v, want %q", what, p.err, want)
		}
	}
	h := c.hosts[0]
	pull(h, nobody, theirs, "spark1").whole(t, h)
	may("spark1", "nobody ")
	sent := s.Sent()
	refused("no token, and it is here", "--secret HF_TOKEN", h, daemon, "", "spark1")
	refused("no token, and a member has it", "--secret HF_TOKEN", c.hosts[1], daemon, "", "spark2")
	refused("a token that is not accepted", "--secret HF_TOKEN", h, daemon, "hf_other", "spark1")
	may("spark1", "nobody ")
	may("spark2", "")
	pull(c.hosts[1], daemon, ours, "spark1", "spark2").whole(t, c.hosts...)
	may("spark1", "nobody daemon ")
	may("spark2", "daemon ")
	if s.Sent() != sent {
		t.Errorf("%d bytes from outside for the second user", s.Sent()-sent)
	}
	for who, want := range map[*wire.Caller]string{&nobody: "false true", &daemon: "false false", &asRoot: "false false"} {
		res, err := wire.Models.Call(t.Context(), h.now().server.As(*who), wire.ModelsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]bool{}
		for _, n := range res.Nodes {
			got[n.Host] = n.Held[0].Denied
		}
		if text := fmt.Sprint(got["spark1"], " ", got["spark2"]); text != want {
			t.Errorf("%s is denied it: %s, want %s", who.User.Name, text, want)
		}
	}

	bin := wire.Caller{User: &wire.User{Name: "bin", UID: 2}}
	s.Fault(hubtest.Fault{API: true, Path: "auth-check", Status: 404}) // a mirror that does not know it
	refused("nobody has said that the token is good", "does not say", h, bin, ours, "spark1")
	s.Heal()
	s.Fault(hubtest.Fault{API: true, Drop: true}) // nobody can be asked whose token is good
	refused("the Hub is away", "keeps it for those", h, bin, ours, "spark1")
	pull(h, nobody, "", "spark1", "spark2").whole(t, c.hosts...) // who has the right on spark1, has it
	may("spark2", "nobody daemon ")
	s.Heal()

	p := pull(h, asRoot, theirs, "spark2")
	p.whole(t, c.hosts[1])
	may("spark1", "nobody daemon ")
	may("spark2", "nobody daemon bin ")
	if !p.plan.Restricted || p.plan.For != "" {
		t.Errorf("the plan says not that everybody can read it: %+v", p.plan)
	}

	// The folder goes while the agent is down: what goes on is kept from the same users.
	remove := func(hosts ...string) {
		for _, host := range hosts {
			if err := os.RemoveAll(filepath.Join(dir, host, "models--org--gated")); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove("spark1", "spark2")
	s.Rate = 8 << 20
	p = pull(h, nobody, theirs, "spark1")
	h.eventually("a chunk is there", func() bool { return p.of("spark1").Have > chunkBytes })
	h.crash()
	p.stop()
	<-p.over
	remove("spark1")
	h.start()
	h.eventually("it is whole", func() bool {
		n := h.models("org/gated")["spark1"]
		return len(n.Held) == 1 && len(n.Held[0].Commits) == 1 && n.Held[0].Commits[0].Whole() && n.Held[0].Pulling == ""
	})
	may("spark1", "nobody ")
}
