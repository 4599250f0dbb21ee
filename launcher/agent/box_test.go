package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/shim"
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
			cfg.Policy = boxPolicy(func(_ context.Context, w BoxWish) error { return errors.New("not your image: " + w.Image) })
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

// An image that a launch would pull keeps a dry run from nothing: the whole plan is told, and the model looked for.
func TestExplainBeforeThePull(t *testing.T) {
	socket, end := fakeEngine(t, map[string]any{}, nil)
	defer end()
	n := newNode(t, func(cfg *Config) {
		cfg.Containers = &Containers{Socket: socket, Cluster: "c", Program: "/proc/self/exe"}
	})
	model := t.TempDir()
	as := n.as("true")
	st := as.Spec.MainStage()
	st.Container = &launcher.Container{Argv: launcher.Lits("serve", "it"), Image: "an/image:1", Pull: launcher.PullMissing, Mounts: []launcher.Mount{{Source: model, Target: model, ReadOnly: true}}}
	st.Argv, st.Workdir = nil, ""
	plans, m, err := n.a.Explain(n.ctx, as, model)
	if err != nil || len(plans) != 1 || m == nil || !m.Found {
		t.Fatalf("%v, %+v, model %+v", err, plans, m)
	}
	docker := strings.Join(plans[0].Docker, " ")
	if p := plans[0]; !p.Pulls || p.Image != nil || !strings.Contains(docker, "an/image:1") || !strings.Contains(docker, "src="+model) || p.Argv[0] != "serve" {
		t.Errorf("%+v", p)
	}
	st.Container.Pull = launcher.PullNever
	if _, _, err := n.a.Explain(n.ctx, as, ""); err == nil || !strings.Contains(err.Error(), "--pull never") {
		t.Errorf("nobody may pull it: %v", err)
	}
}

func TestMemlockOfContainers(t *testing.T) {
	yes := func([]launcher.Ulimit) error { return nil }
	no := func([]launcher.Ulimit) error { return errors.New("LimitMEMLOCK=64k") }
	nics, own := []string{"/dev/infiniband/uverbs0"}, []launcher.Ulimit{{Name: "memlock", Soft: 65536, Hard: 65536}}
	for name, c := range map[string]struct {
		devices          []string
		asked            []launcher.Ulimit
		may              func([]launcher.Ulimit) error
		root             bool
		unlimited, short bool
	}{
		"no NIC":                       {nil, nil, yes, true, true, false},
		"a NIC":                        {nics, nil, yes, true, true, false},
		"asked for":                    {nics, own, no, true, false, false},
		"no NIC, and may not":          {nil, nil, no, true, false, false},
		"a NIC, and may not":           {nics, nil, no, true, false, true},
		"a NIC, and the engine may":    {nics, nil, no, false, true, false},
		"no NIC, the agent not root's": {nil, nil, no, false, false, false},
	} {
		if unlimited, short := memlock(c.devices, c.asked, c.may, c.root); unlimited != c.unlimited || short != c.short {
			t.Errorf("%s: unlimited %t, short %t", name, unlimited, short)
		}
	}
}

// An engine that is away for hours has what was left when it is back, and not minutes later.
func TestSweepsWhileTheEngineIsAway(t *testing.T) {
	wait := time.Duration(0)
	for range 10 {
		wait = sweepAfter(wait, false)
	}
	if wait != sweepMost {
		t.Errorf("where a job does not end the next look is after %s, want %s", wait, sweepMost)
	}
	if got := sweepAfter(wait, true); got != sweepFirst {
		t.Errorf("while the engine is away it is after %s, want %s", got, sweepFirst)
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

// fakeStore is an engine that has containers and can remove them.
type fakeStore struct {
	mu      sync.Mutex
	has     []map[string]any
	removed []string
}

func (f *fakeStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.Header().Set("Api-Version", "1.41")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.HasSuffix(r.URL.Path, "/containers/json"):
		_ = json.NewEncoder(w).Encode(f.has)
	case r.Method == http.MethodDelete:
		f.removed = append(f.removed, path.Base(r.URL.Path))
		w.WriteHeader(http.StatusNoContent)
	}
}

// One read of the record decides on all that is left; what it does not know stays, and is told once.
func TestSweep(t *testing.T) {
	store := &fakeStore{}
	dir, err := os.MkdirTemp("", "sr-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	must(t, err)
	srv := &http.Server{Handler: store}
	go func() { _ = srv.Serve(ln) }() // ends with Close
	defer srv.Close()                 // before the node looks for what is left

	var asked [][]launcher.Key
	n := newNode(t, func(cfg *Config) {
		cfg.StateDir = t.TempDir()
		cfg.Containers = &Containers{Socket: ln.Addr().String(), Cluster: "c", Program: "/proc/self/exe"}
	})
	ended := func(_ context.Context, keys []launcher.Key) (map[launcher.Key]bool, error) {
		asked = append(asked, keys)
		return map[launcher.Key]bool{{Job: "over", Generation: 1}: true, {Job: "runs", Generation: 2}: false}, nil
	}
	box := func(id, job, gen string, more ...string) map[string]any {
		l := map[string]string{"com.sparkrun.job": job, "com.sparkrun.generation": gen}
		if more != nil {
			l = map[string]string{lookLabel: more[0]}
		}
		return map[string]any{"Id": id, "Names": []string{"/" + id}, "Labels": l, "State": "exited"}
	}
	store.has = []map[string]any{box("a", "over", "1"), box("b", "over", "1"), box("c", "runs", "2"), box("d", "whose", "1"), box("e", "", "", "another life"), box("f", "", "", n.a.life), box("g", "../x", "1")}
	told := map[string]bool{}
	if left, err := n.a.sweep(t.Context(), ended, told); left != 0 || err != nil || asked != nil {
		t.Errorf("a node that never had any: %d left, %v, asked %v", left, err, asked)
	}
	must(t, n.a.noteBoxes())
	for range 2 {
		store.removed, asked = nil, nil
		left, err := n.a.sweep(t.Context(), ended, told)
		if left != 1 || err != nil || len(asked) != 1 || len(asked[0]) != 3 {
			t.Errorf("%d left, %v, asked about %v; want the one that runs left, and one question about three tries", left, err, asked)
		}
		slices.Sort(store.removed)
		if d := cmp.Diff([]string{"a", "b", "e"}, store.removed); d != "" {
			t.Errorf("removed (-want +got):\n%s", d)
		}
		if d := cmp.Diff(map[string]bool{"d": true, "g": true}, told); d != "" {
			t.Errorf("told as staying (-want +got):\n%s", d)
		}
	}
	ended = func(context.Context, []launcher.Key) (map[launcher.Key]bool, error) {
		return nil, errors.New("nobody leads")
	}
	store.removed = nil
	left, err := n.a.sweep(t.Context(), ended, told)
	if left != 3 || err == nil || !strings.Contains(err.Error(), "nobody leads") || len(store.removed) != 1 {
		t.Errorf("without an answer: %d left, %v, removed %v; want all of jobs left", left, err, store.removed)
	}
}

// What a late removal has left of cgroups goes with a sweep, and nobody else's.
func TestGroupsAreDropped(t *testing.T) {
	n := newNode(t)
	root := t.TempDir()
	node := string(n.a.cfg.Node)
	must(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644))
	at := func(name string) string {
		dir := filepath.Join(root, name)
		must(t, os.MkdirAll(dir, 0o755))
		return dir
	}
	gone := []string{at("sparkrun/" + node + "-gone.1.boxes"), at("sparkrun.slice/sparkrun-" + sliceName(node) + "_gone.1.slice")}
	stay := []string{at("sparkrun/" + node + "-busy.1.boxes/in"), at("sparkrun/" + node + "-lives.1"), at("sparkrun/other-gone.1.boxes")}
	known := launcher.Key{Job: "known", Generation: 1}
	n.a.mu.Lock()
	n.a.tries[known] = newTry(n.a, known, nil)
	n.a.mu.Unlock()
	defer func() {
		n.a.mu.Lock()
		delete(n.a.tries, known)
		n.a.mu.Unlock()
	}()
	_, folder := boxGroup(root, false, n.a.groupName(known))
	must(t, os.MkdirAll(folder, 0o755))
	if left := n.a.dropGroups(root); left != 1 {
		t.Errorf("%d left, want the one that is not empty", left)
	}
	for _, dir := range gone {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s stays", dir)
		}
	}
	for _, dir := range append(stay, folder) {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
}

// The place of a mount below another has to be there: an engine would make it as root.
func TestPlacesOfMounts(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "there/deep"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	must(t, os.Symlink("there", filepath.Join(dir, "link")))
	for below, want := range map[string]string{
		"there/deep": "", "missing": "missing in there: not found here: create it", "there/no/such": "not found here", "link/deep": "behind, a link", "file": "a folder where a file",
		"file/x": "not found here",
	} {
		s := container.Spec{Mounts: []container.Mount{{Source: dir, Target: "/work"}, {Source: "/usr", Target: "/work/" + below}}}
		err := placesAreThere(login.Self(), s)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want it to say %q", below, err, want)
		}
		args, err := container.ParseArgs([]string{"--tmpfs=/work/" + below + ":size=1m"})
		must(t, err)
		s.Mounts, s.Args = s.Mounts[:1], args
		if err := placesAreThere(login.Self(), s); (err == nil) != (want == "") {
			t.Errorf("a tmpfs at %s: %v, want %q", below, err, want)
		}
	}
	if err := placesAreThere(login.Self(), container.Spec{Mounts: []container.Mount{{Source: dir, Target: "/work"}, {Source: "/usr", Target: "/works/missing"}, {Source: "/usr", Target: "/data"}}}); err != nil {
		t.Errorf("mounts side by side: %v", err)
	}
}

// The folders that sparkrun lays out are no less looked at than the user's.
func TestOwnMountsAreIdentified(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	must(t, os.Mkdir(real, 0o700))
	must(t, os.Symlink(real, filepath.Join(dir, "link")))
	mounts := []container.Mount{{Source: real}, {Source: "/elsewhere", Ino: 7}}
	must(t, identify(mounts, login.Self()))
	var st syscall.Stat_t
	must(t, syscall.Stat(real, &st))
	if mounts[0].Ino != st.Ino || mounts[0].Dev != st.Dev || mounts[1].Ino != 7 {
		t.Errorf("identified as %+v", mounts)
	}
	for _, bad := range []string{filepath.Join(dir, "link"), filepath.Join(dir, "missing")} {
		if err := identify([]container.Mount{{Source: bad}}, login.Self()); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

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
			socket, end := fakeEngine(t, map[string]any{}, map[string]any{"Id": "sha256:0123", "Architecture": "s390x", "Config": map[string]any{}})
			defer end() // before the node looks for what is left
			n := newNode(t, func(cfg *Config) {
				cfg.Containers = &Containers{Socket: socket, Cluster: "c", Program: "/proc/self/exe"}
				cfg.Policy = boxPolicy(func(_ context.Context, w BoxWish) error {
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
				Argv: launcher.Lits("true"), Image: "an/image", Pull: launcher.PullMissing, ModelCache: hub, CacheOffered: tc.offered,
				Mounts: []launcher.Mount{{Source: models, Target: "/models"}, {Source: kernels, Target: "/kernels", Make: tc.make}},
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
func TestNamesOfContainers(t *testing.T) {
	names := map[string]string{}
	as := launcher.Assignment{Key: launcher.Key{Job: "abcd", Generation: 1}}
	for _, c := range []struct {
		node, boot string
		rank       int
	}{
		{"11111111-of-1", "aaaaaaaa-of-a", 0}, {"11111111-of-1", "bbbbbbbb-of-b", 0}, {"22222222-of-2", "aaaaaaaa-of-a", 0}, {"11111111-of-1", "aaaaaaaa-of-a", 1},
	} {
		a := &Agent{cfg: Config{Node: launcher.NodeID(c.node), Boot: c.boot, RunDir: "/run/x", Containers: &Containers{Cluster: "c"}}}
		what := fmt.Sprintf("%+v", c)
		name := a.containerOf(&boxed{}, as, shim.Rank{Rank: c.rank}).Name
		if other := names[name]; other != "" {
			t.Errorf("%s has the name of %s: %s", what, other, name)
		}
		names[name] = what
	}
	as.Ranks, as.NodeCount = 2, 1
	as.Spec = launcher.Spec{Nodes: 1, Stages: []launcher.Stage{
		{Name: "ray-head", Where: launcher.OnHead, RanksPerNode: 1}, {Name: "command", Main: true, Where: launcher.OnHead, PIDsOf: "ray-head", RanksPerNode: 1},
	}}
	a := &Agent{cfg: Config{Node: "11111111", Boot: "aaaaaaaa", RunDir: "/run/x", Containers: &Containers{Cluster: "c"}}}
	for rank, want := range []string{"", "sparkrun-abcd.1-0-11111111-aaaaaaaa"} {
		if got := a.containerOf(&boxed{}, as, shim.Rank{Rank: rank}).PIDsOf; got != want {
			t.Errorf("rank %d sees the processes of %q, want %q", rank, got, want)
		}
	}
	if want := "sparkrun-abcd.1-0-11111111-bbbbbbbb"; names[want] == "" {
		t.Errorf("no %s among %v", want, names)
	}
}

// boxPolicy has rules for containers alone.
type boxPolicy func(context.Context, BoxWish) error

func (boxPolicy) Run(context.Context, launcher.Spec) error { return nil }

func (p boxPolicy) Contain(ctx context.Context, w BoxWish) error { return p(ctx, w) }
