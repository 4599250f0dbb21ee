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

	"github.com/google/go-cmp/cmp"

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
func TestBoxesAreRefused(t *testing.T) {
	anImage := map[string]any{"Id": "sha256:0123", "Architecture": "s390x", "Config": map[string]any{}}
	for want, c := range map[string]struct {
		info, image map[string]any
		change      func(*Config, *launcher.Container)
	}{
		"no container engine answers":  {change: func(cfg *Config, _ *launcher.Container) { cfg.Containers.Socket = "/nobody/here" }},
		"starts no containers":         {change: func(cfg *Config, _ *launcher.Container) { cfg.Containers = nil }},
		"rootless":                     {info: map[string]any{"SecurityOptions": []string{"name=rootless"}}, image: anImage},
		"userns-remap":                 {info: map[string]any{"SecurityOptions": []string{"name=userns"}}, image: anImage},
		"is for s390x":                 {image: anImage},
		"not on this node, and --pull": {change: func(_ *Config, c *launcher.Container) { c.Pull = launcher.PullNever }},
		"not your image": {image: anImage, change: func(cfg *Config, _ *launcher.Container) {
			cfg.Containers.Allow = func(_ context.Context, w BoxWish) error { return errors.New("not your image: " + w.Image) }
		}},
		"/nowhere:/x: not found here": {image: anImage, change: func(_ *Config, c *launcher.Container) {
			c.Mounts = []launcher.Mount{{Source: "/nowhere", Target: "/x"}}
		}},
	} {
		t.Run(want, func(t *testing.T) {
			if c.info == nil {
				c.info = map[string]any{}
			}
			box := &launcher.Container{Argv: launcher.Lits("true"), Image: "an/image", Pull: launcher.PullMissing}
			socket, end := fakeEngine(t, c.info, c.image)
			defer end() // before the node looks for what is left
			n := newNode(t, func(cfg *Config) {
				cfg.Containers = &Containers{Socket: socket, Cluster: "c", Program: "/proc/self/exe"}
				if c.change != nil {
					c.change(cfg, box)
				}
			})
			as := n.as("true")
			st := as.Spec.MainStage()
			st.Argv, st.Container, st.Workdir = nil, box, ""
			n.prepare(as)
			ev := n.hear(launcher.Refused)
			if !strings.Contains(ev.Text, want) {
				t.Errorf("refused with %q, want it to say %q", ev.Text, want)
			}
		})
	}
}

func TestGPUOfAnEngine(t *testing.T) {
	root := t.TempDir()
	at := func(path, text string) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, path), []byte(text), 0o644))
	}
	if g, err := gpuOf(root, container.Facts{}); g != container.NoGPU || err != nil {
		t.Errorf("no driver: %q, %v", g, err)
	}
	at("dev/nvidiactl", "")
	if _, err := gpuOf(root, container.Facts{CDI: true}); err == nil || !strings.Contains(err.Error(), "nvidia-ctk cdi generate") {
		t.Errorf("no way: %v", err)
	}
	if g, err := gpuOf(root, container.Facts{CDI: true, Nvidia: true}); g != container.OldGPU || err != nil {
		t.Errorf("no spec: %q, %v", g, err)
	}
	at("var/run/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
	if g, err := gpuOf(root, container.Facts{CDI: true, Nvidia: true}); g != container.CDIGPU || err != nil {
		t.Errorf("a spec: %q, %v", g, err)
	}
	if g, err := gpuOf(root, container.Facts{Nvidia: true}); g != container.OldGPU || err != nil {
		t.Errorf("a spec, and an engine before it: %q, %v", g, err)
	}
}

func TestBoxGroup(t *testing.T) {
	root := t.TempDir()
	if parent, folder := boxGroup(root, true, "n-abcd.1"); parent != "" || folder != "" {
		t.Errorf("controllers in v1: %q, %q", parent, folder)
	}
	must(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644))
	for systemd, want := range map[bool][2]string{
		true: {"sparkrun-n_abcd.1.slice", root + "/sparkrun.slice/sparkrun-n_abcd.1.slice"}, false: {"/sparkrun/n-abcd.1.boxes", root + "/sparkrun/n-abcd.1.boxes"},
	} {
		if parent, folder := boxGroup(root, systemd, "n-abcd.1"); parent != want[0] || folder != want[1] {
			t.Errorf("by systemd %v: %q, %q, want %q", systemd, parent, folder, want)
		}
	}
}

func TestOnHost(t *testing.T) {
	b := &boxed{Spec: container.Spec{Mounts: []container.Mount{{Source: "/real/work", Target: "/work"}, {Source: "/real/data", Target: "/work/data"}}}}
	for inside, want := range map[string]string{
		"/work/a.py": "/real/work/a.py", "/work": "/real/work", "/work/data/x": "/real/data/x", "/works": "", "/": "", "/opt/x": "",
	} {
		if got := b.onHost(inside); got != want {
			t.Errorf("%s is %q, want %q", inside, got, want)
		}
	}
}

func TestKeyOfLabels(t *testing.T) {
	got, err := keyOfLabels(map[string]string{"com.sparkrun.job": "abcd", "com.sparkrun.generation": "3"})
	if d := cmp.Diff(launcher.Key{Job: "abcd", Generation: 3}, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	for _, l := range []map[string]string{nil, {"com.sparkrun.job": "abcd"}, {"com.sparkrun.job": "../x", "com.sparkrun.generation": "1"}, {"com.sparkrun.job": "abcd", "com.sparkrun.generation": "0"}} {
		if k, err := keyOfLabels(l); err == nil {
			t.Errorf("%v is of %s", l, k)
		}
	}
}
