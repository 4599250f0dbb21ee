package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/sparkrun/sparkrun/launcher/login"
)

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
	if g, err := gpuOf(root, Facts{}); g != NoGPU || err != nil {
		t.Errorf("no driver: %q, %v", g, err)
	}
	at("dev/nvidiactl", "")
	if _, err := gpuOf(root, Facts{CDI: true}); err == nil || !strings.Contains(err.Error(), "nvidia-ctk cdi generate") {
		t.Errorf("no way: %v", err)
	}
	if g, err := gpuOf(root, Facts{CDI: true, Nvidia: true}); g != OldGPU || err != nil {
		t.Errorf("no spec: %q, %v", g, err)
	}
	at("var/run/cdi/nvidia.yaml", "kind: nvidia.com/gpu\n")
	if g, err := gpuOf(root, Facts{CDI: true, Nvidia: true}); g != CDIGPU || err != nil {
		t.Errorf("a spec: %q, %v", g, err)
	}
	if g, err := gpuOf(root, Facts{Nvidia: true}); g != OldGPU || err != nil {
		t.Errorf("a spec, and an engine before it: %q, %v", g, err)
	}
}

func TestGroupOfContainers(t *testing.T) {
	root := t.TempDir()
	if parent, folder := groupOf(root, true, "n-abcd.1"); parent != "" || folder != "" {
		t.Errorf("controllers in v1: %q, %q", parent, folder)
	}
	must(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644))
	for systemd, want := range map[bool][2]string{
		true:  {"sparkrun-n_abcd.1.slice", root + "/sparkrun.slice/sparkrun-n_abcd.1.slice"},
		false: {"/sparkrun/n-abcd.1.boxes", root + "/sparkrun/n-abcd.1.boxes"},
	} {
		if parent, folder := groupOf(root, systemd, "n-abcd.1"); parent != want[0] || folder != want[1] {
			t.Errorf("by systemd %v: %q, %q, want %q", systemd, parent, folder, want)
		}
	}
}

func TestOnHost(t *testing.T) {
	b := &Prepared{Spec: Spec{Mounts: []Mount{{Source: "/real/work", Target: "/work"},
		{Source: "/real/data", Target: "/work/data"}}}}
	for inside, want := range map[string]string{
		"/work/a.py": "/real/work/a.py", "/work": "/real/work", "/work/data/x": "/real/data/x", "/works": "", "/": "",
		"/opt/x": "",
	} {
		if got := b.OnHost(inside); got != want {
			t.Errorf("%s is %q, want %q", inside, got, want)
		}
	}
}

func TestKeyOfLabels(t *testing.T) {
	got, err := keyOfLabels(map[string]string{"com.sparkrun.job": "abcd", "com.sparkrun.generation": "3"})
	if d := cmp.Diff(launcher.Key{Job: "abcd", Generation: 3}, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
	for _, l := range []map[string]string{nil, {"com.sparkrun.job": "abcd"},
		{"com.sparkrun.job": "../x", "com.sparkrun.generation": "1"},
		{"com.sparkrun.job": "abcd", "com.sparkrun.generation": "0"}} {
		if k, err := keyOfLabels(l); err == nil {
			t.Errorf("%v is of %s", l, k)
		}
	}
}

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

func TestSweep(t *testing.T) {
	store := &fakeStore{}
	dir, err := os.MkdirTemp("", "sr-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	ln, err := net.Listen("unix", filepath.Join(dir, "s"))
	must(t, err)
	srv := &http.Server{Handler: store}
	go func() { _ = srv.Serve(ln) }() // ends with Close
	defer srv.Close()

	var asked [][]launcher.Key
	h := NewHost(HostConfig{
		Node: "node", Incarnation: "this one", StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
		Held:   func() map[launcher.Key]bool { return nil },
		Engine: &Config{Socket: ln.Addr().String(), Cluster: "c"},
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
	store.has = []map[string]any{box("a", "over", "1"), box("b", "over", "1"), box("c", "runs", "2"),
		box("d", "whose", "1"), box("e", "", "", "another one"), box("f", "", "", "this one"), box("g", "../x", "1")}
	told := map[string]bool{}
	if left, err := h.sweep(t.Context(), ended, told); left != 0 || err != nil || asked != nil {
		t.Errorf("a node that never had any: %d left, %v, asked %v", left, err, asked)
	}
	must(t, h.noteContainers())
	for range 2 {
		store.removed, asked = nil, nil
		left, err := h.sweep(t.Context(), ended, told)
		if left != 1 || err != nil || len(asked) != 1 || len(asked[0]) != 3 {
			t.Errorf("%d left, %v, asked about %v; want the one that runs left, and one question about three attempts",
				left, err, asked)
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
	left, err := h.sweep(t.Context(), ended, told)
	if left != 3 || err == nil || !strings.Contains(err.Error(), "nobody leads") || len(store.removed) != 1 {
		t.Errorf("without an answer: %d left, %v, removed %v; want all of jobs left", left, err, store.removed)
	}
}

func TestGroupsAreDropped(t *testing.T) {
	const node = "node-1"
	known := launcher.Key{Job: "known", Generation: 1}
	h := NewHost(HostConfig{Node: node, Held: func() map[launcher.Key]bool { return map[launcher.Key]bool{known: false} }})
	root := t.TempDir()
	must(t, os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644))
	at := func(name string) string {
		dir := filepath.Join(root, name)
		must(t, os.MkdirAll(dir, 0o755))
		return dir
	}
	gone := []string{at("sparkrun/" + node + "-gone.1.boxes"),
		at("sparkrun.slice/sparkrun-" + sliceName(node) + "_gone.1.slice")}
	stay := []string{at("sparkrun/" + node + "-busy.1.boxes/in"), at("sparkrun/" + node + "-lives.1"),
		at("sparkrun/other-gone.1.boxes")}
	_, folder := groupOf(root, false, h.groupName(known))
	must(t, os.MkdirAll(folder, 0o755))
	if left := h.dropGroups(root); left != 1 {
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

func TestPlacesOfMounts(t *testing.T) {
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "there/deep"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	must(t, os.Symlink("there", filepath.Join(dir, "link")))
	for below, want := range map[string]string{
		"there/deep": "", "missing": "missing in there: not found here: create it", "there/no/such": "not found here",
		"link/deep": "a link, or lies behind one", "file": "a folder and must be a file",
		"file/x": "not found here",
	} {
		s := Spec{Mounts: []Mount{{Source: dir, Target: "/work"}, {Source: "/usr", Target: "/work/" + below}}}
		err := placesAreThere(login.Self(), s)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want it to say %q", below, err, want)
		}
		args, err := ParseArgs([]string{"--tmpfs=/work/" + below + ":size=1m"})
		must(t, err)
		s.Mounts, s.Args = s.Mounts[:1], args
		if err := placesAreThere(login.Self(), s); (err == nil) != (want == "") {
			t.Errorf("a tmpfs at %s: %v, want %q", below, err, want)
		}
	}
	if err := placesAreThere(login.Self(),
		Spec{Mounts: []Mount{{Source: dir, Target: "/work"}, {Source: "/usr", Target: "/works/missing"},
			{Source: "/usr", Target: "/data"}}}); err != nil {
		t.Errorf("mounts side by side: %v", err)
	}
}

func TestOwnMountsAreIdentified(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	must(t, os.Mkdir(real, 0o700))
	must(t, os.Symlink(real, filepath.Join(dir, "link")))
	mounts := []Mount{{Source: real}, {Source: "/elsewhere", Ino: 7}}
	must(t, identify(mounts, login.Self()))
	var st syscall.Stat_t
	must(t, syscall.Stat(real, &st))
	if mounts[0].Ino != st.Ino || mounts[0].Dev != st.Dev || mounts[1].Ino != 7 {
		t.Errorf("identified as %+v", mounts)
	}
	for _, bad := range []string{filepath.Join(dir, "link"), filepath.Join(dir, "missing")} {
		if err := identify([]Mount{{Source: bad}}, login.Self()); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

func TestNamesOfContainers(t *testing.T) {
	names := map[string]string{}
	as := launcher.Assignment{Key: launcher.Key{Job: "abcd", Generation: 1}}
	for _, c := range []struct {
		node, boot string
		rank       int
	}{
		{"11111111-of-1", "aaaaaaaa-of-a", 0}, {"11111111-of-1", "bbbbbbbb-of-b", 0},
		{"22222222-of-2", "aaaaaaaa-of-a", 0}, {"11111111-of-1", "aaaaaaaa-of-a", 1},
	} {
		h := NewHost(HostConfig{Node: launcher.NodeID(c.node), Boot: c.boot, Engine: &Config{Cluster: "c"}})
		what := fmt.Sprintf("%+v", c)
		name := h.Rank(&Prepared{}, as, c.rank, nil).Name
		if other := names[name]; other != "" {
			t.Errorf("%s has the name of %s: %s", what, other, name)
		}
		names[name] = what
	}
	as.Ranks, as.NodeCount = 2, 1
	as.Spec = launcher.Spec{Nodes: 1, Stages: []launcher.Stage{
		{Name: "ray-head", Where: launcher.OnHead, RanksPerNode: 1},
		{Name: "command", Main: true, Where: launcher.OnHead, PIDsOf: "ray-head", RanksPerNode: 1},
	}}
	h := NewHost(HostConfig{Node: "11111111", Boot: "aaaaaaaa", Engine: &Config{Cluster: "c"}})
	for rank, want := range []string{"", "sparkrun-abcd.1-0-11111111-aaaaaaaa"} {
		if got := h.Rank(&Prepared{}, as, rank, nil).PIDsOf; got != want {
			t.Errorf("rank %d sees the processes of %q, want %q", rank, got, want)
		}
	}
	if want := "sparkrun-abcd.1-0-11111111-bbbbbbbb"; names[want] == "" {
		t.Errorf("no %s among %v", want, names)
	}
}

// An engine that takes connections and never answers is named, rather than waited for until nobody knows why.
func TestEngineThatHangs(t *testing.T) {
	dir, err := os.MkdirTemp("", "sr-")
	must(t, err)
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", socket) // the kernel lets callers in
	must(t, err)
	defer ln.Close()
	if _, _, err := openEngine(t.Context(), socket, 100*time.Millisecond); err == nil ||
		!strings.Contains(err.Error(), "the engine at "+socket+" accepts connections and has not answered within 100ms") {
		t.Errorf("an engine that hangs: %v", err)
	}
	h := NewHost(HostConfig{Engine: &Config{Socket: socket}})
	if err := h.Answers(t.Context(), false, time.Hour); err != nil {
		t.Errorf("an engine that nobody has used: %v", err)
	}
	if err := h.Answers(t.Context(), true, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(),
		"has not answered within 50ms") {
		t.Errorf("an engine that hangs is asked for a sign of life: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
