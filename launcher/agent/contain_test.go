package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
)

// fakeEngine answers what prepare asks, as an engine would of which there is none here.
func fakeEngine(t *testing.T, info, image map[string]any) (socket string, end func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "sr-")
	must(t, err)
	socket = filepath.Join(dir, "s")
	ln, err := net.Listen("unix", socket)
	must(t, err)
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.41")
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/info"):
			answer(w, info)
		case strings.Contains(r.URL.Path, "/images/") && image == nil:
			w.WriteHeader(http.StatusNotFound)
			answer(w, map[string]string{"message": "No such image"})
		case strings.Contains(r.URL.Path, "/images/"):
			answer(w, image)
		}
	})}
	go func() { _ = srv.Serve(ln) }() // ends with Close
	return socket, func() {
		srv.Close()
		os.RemoveAll(dir)
	}
}

// What a node's engine is, or has, refuses a job in prepare, with words.
func TestContainersAreRefused(t *testing.T) {
	anImage := map[string]any{"Id": "sha256:0123", "Architecture": "s390x", "Config": map[string]any{}}
	for want, c := range map[string]struct {
		info, image map[string]any
		change      func(*Config, *launcher.Container)
	}{
		"no container engine answers": {change: func(cfg *Config,
			_ *launcher.Container) {
			cfg.Containers.Socket = "/nobody/here"
		}},
		"starts no containers":         {change: func(cfg *Config, _ *launcher.Container) { cfg.Containers = nil }},
		"rootless":                     {info: map[string]any{"SecurityOptions": []string{"name=rootless"}}, image: anImage},
		"userns-remap":                 {info: map[string]any{"SecurityOptions": []string{"name=userns"}}, image: anImage},
		"is for s390x":                 {image: anImage},
		"not on this node, and --pull": {change: func(_ *Config, c *launcher.Container) { c.Pull = launcher.PullNever }},
		"not your image": {image: anImage, change: func(cfg *Config, _ *launcher.Container) {
			cfg.Policy = containerPolicy(func(_ context.Context,
				w container.Wish) error {
				return errors.New("not your image: " + w.Image)
			})
		}},
		"/nowhere:/x: not found here": {image: anImage, change: func(_ *Config, c *launcher.Container) {
			c.Mounts = []launcher.Mount{{Source: "/nowhere", Target: "/x"}}
		}},
	} {
		t.Run(want, func(t *testing.T) {
			if c.info == nil {
				c.info = map[string]any{}
			}
			wanted := &launcher.Container{Argv: launcher.Lits("true"), Image: "an/image", Pull: launcher.PullMissing}
			socket, end := fakeEngine(t, c.info, c.image)
			defer end() // before the node looks for what is left
			n := newNode(t, func(cfg *Config) {
				cfg.Containers = &container.Config{Socket: socket, Cluster: "c", Program: "/proc/self/exe"}
				if c.change != nil {
					c.change(cfg, wanted)
				}
			})
			as := n.as("true")
			st := as.Spec.MainStage()
			st.Argv, st.Container, st.Workdir = nil, wanted, ""
			n.prepare(as)
			ev := n.hear(launcher.Refused)
			if !strings.Contains(ev.Text, want) {
				t.Errorf("refused with %q, want it to say %q", ev.Text, want)
			}
		})
	}
}

// An image that a launch would pull keeps a dry run from nothing: the whole plan is told, and the model looked for.
func TestExplainBeforeThePull(t *testing.T) {
	socket, end := fakeEngine(t, map[string]any{}, nil)
	defer end()
	n := newNode(t, func(cfg *Config) {
		cfg.Containers = &container.Config{Socket: socket, Cluster: "c", Program: "/proc/self/exe"}
	})
	model := t.TempDir()
	as := n.as("true")
	st := as.Spec.MainStage()
	st.Container = &launcher.Container{Argv: launcher.Lits("serve", "it"), Image: "an/image:1",
		Pull: launcher.PullMissing, Mounts: []launcher.Mount{{Source: model, Target: model, ReadOnly: true}}}
	st.Argv, st.Workdir = nil, ""
	plans, m, err := n.a.Explain(n.ctx, as, model)
	if err != nil || len(plans) != 1 || m == nil || !m.Found {
		t.Fatalf("%v, %+v, model %+v", err, plans, m)
	}
	docker := strings.Join(plans[0].Docker, " ")
	if p := plans[0]; !p.Pulls || p.Image != nil || !strings.Contains(docker, "an/image:1") ||
		!strings.Contains(docker, "src="+model) || p.Argv[0] != "serve" {
		t.Errorf("%+v", p)
	}
	st.Container.Pull = launcher.PullNever
	if _, _, err := n.a.Explain(n.ctx, as, ""); err == nil || !strings.Contains(err.Error(), "--pull never") {
		t.Errorf("nobody may pull it: %v", err)
	}
}

// An engine that is away for hours has what was left when it is back, and not minutes later.
// fakeStore is an engine that has containers and can remove them.
// One read of the record decides on all that is left; what it does not know stays, and is told once.
// What a late removal has left of cgroups goes with a sweep, and nobody else's.
// The place of a mount below another has to be there: an engine would make it as root.
// The folders that sparkrun lays out are no less looked at than the user's.
// What a workload offers is left out where the node's rules refuse it; what a user asks for is not.
func TestRulesLeaveOutWhatIsOffered(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	must(t, os.Chmod(dir, 0o755))
	models, kernels, hub := filepath.Join(dir, "models"), filepath.Join(dir, "kernels"), filepath.Join(dir, "hub")
	for _, d := range []string{models, kernels, hub} {
		must(t, os.Mkdir(d, 0o755))
	}
	for name, tc := range map[string]struct {
		make, offered bool
		want          string
	}{
		"both are offered": {true, true, "is for s390x"}, // which is found out once the rules have let it through
		"a mount":          {false, true, "not your mount: " + kernels},
		"a cache":          {true, false, "not your mount: " + hub},
	} {
		t.Run(name, func(t *testing.T) {
			socket, end := fakeEngine(t, map[string]any{},
				map[string]any{"Id": "sha256:0123", "Architecture": "s390x", "Config": map[string]any{}})
			defer end() // before the node looks for what is left
			n := newNode(t, func(cfg *Config) {
				cfg.Containers = &container.Config{Socket: socket, Cluster: "c", Program: "/proc/self/exe"}
				cfg.Policy = containerPolicy(func(_ context.Context, w container.Wish) error {
					for _, m := range w.Mounts {
						if m != models {
							return errors.New("not your mount: " + m)
						}
					}
					return nil
				})
			})
			as := n.as("true")
			st := as.Spec.MainStage()
			st.Argv, st.Workdir = nil, ""
			st.Container = &launcher.Container{
				Argv: launcher.Lits("true"), Image: "an/image", Pull: launcher.PullMissing, ModelCache: hub,
				CacheOffered: tc.offered,
				Mounts: []launcher.Mount{{Source: models, Target: "/models"},
					{Source: kernels, Target: "/kernels", Make: tc.make}},
			}
			n.prepare(as)
			if ev := n.hear(launcher.Refused); !strings.Contains(ev.Text, tc.want) {
				t.Errorf("refused with %q, want %q", ev.Text, tc.want)
			}
		})
	}
}

// An engine keeps what ran before the power went, and gives each name once: a rank that comes back there, or
// lives again, needs one of its own. So do all ranks and nodes.
// boxPolicy has rules for containers alone.
type containerPolicy func(context.Context, container.Wish) error

func (containerPolicy) Run(context.Context, launcher.Spec) error { return nil }

func (p containerPolicy) Contain(ctx context.Context, w container.Wish) error { return p(ctx, w) }
