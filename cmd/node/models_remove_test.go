package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What is in use is not removed; what is being pulled is given up. Only root removes.
func TestModelRemove(t *testing.T) {
	t.Parallel()
	c, s := withHub(t, 2)
	p := c.hosts[0].pull(pullOf(tiny))
	p.whole(t, c.hosts...)
	cache, err := modelcache.Open(modelcache.Config{Dir: c.hosts[1].cfg.Paths.models()})
	if err != nil {
		t.Fatal(err)
	}
	defer cache.Close()
	lease, err := cache.Hold(modelcache.Repo{Type: modelcache.Model, Name: tiny})
	if err != nil {
		t.Fatal(err)
	}
	req := wire.ModelRemoveRequest{ModelRequest: wire.ModelRequest{ModelRepo: wire.ModelRepo{Name: tiny}}}
	ada := wire.Caller{User: &wire.User{Name: "ada", UID: 1000}}
	if _, err := wire.ModelRemove.Call(t.Context(), c.hosts[0].now().server.As(ada), req); !errors.Is(err, wire.ErrDenied) {
		t.Errorf("ada removes: %v", err)
	}
	remove := func() map[string]wire.NodeModelRemoved {
		t.Helper()
		res, err := wire.ModelRemove.Call(t.Context(), c.hosts[0].now().server.As(asRoot), req)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]wire.NodeModelRemoved{}
		for _, n := range res.Nodes {
			out[n.Host] = n
		}
		return out
	}
	got := remove()
	if !strings.Contains(got["spark2"].Error, "in use") || got["spark1"].Error != "" ||
		got["spark1"].Bytes < int64(len(weights)) {
		t.Errorf("spark2 uses it: %+v", got)
	}
	lease.Drop()
	dir := p.of("spark2").Dir
	elsewhere := t.TempDir() // as a container has it
	if err := unix.Mount(c.hosts[1].cfg.Paths.models(), elsewhere, "", unix.MS_BIND, ""); err != nil {
		t.Logf("not tried from another place: %v", err)
		elsewhere = c.hosts[1].cfg.Paths.models()
	} else {
		t.Cleanup(func() { _ = unix.Unmount(elsewhere, unix.MNT_DETACH) })
	}
	weights, err := os.Open(strings.Replace(dir, c.hosts[1].cfg.Paths.models(), elsewhere, 1) + "/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer weights.Close() // this process is the agents', which know by themselves what they read
	ours := "HF_HUB_CACHE=" + c.hosts[1].cfg.Paths.models()
	for _, x := range []struct {
		what, want string
		args       []string
		env        string
		open       []*os.File
	}{
		{"it has the folder", "was given its folder", []string{"serve", dir}, "", nil},
		{"it has the name", "was given its name", []string{"serve", "--model=" + tiny}, ours, nil},
		{"it reads", "reads " + elsewhere, nil, "", []*os.File{weights}},
		{"it has the name, and another cache", "", []string{"serve", tiny}, "HF_HUB_CACHE=/elsewhere", nil},
	} {
		user := exec.CommandContext(t.Context(), "sh", append([]string{"-c", "read line"}, x.args...)...)
		user.Env, user.ExtraFiles = append(os.Environ(), x.env), x.open
		input, err := user.StdinPipe() // it lives until its input ends
		if err := errors.Join(err, user.Start()); err != nil {
			t.Fatal(err)
		}
		got := remove()["spark2"].Error
		if want := fmt.Sprintf("process %d, sh, %s", user.Process.Pid, x.want); x.want == "" && got != "" ||
			!strings.Contains(got, want) && x.want != "" {
			t.Errorf("%s: %q, want %q", x.what, got, want)
		}
		input.Close()
		_ = user.Wait() // read has met the end
	}
	if _, err := wire.ModelRemove.Call(t.Context(), c.hosts[0].now().server.As(asRoot), req); !errors.Is(err, wire.ErrNoModel) {
		t.Errorf("once more: %v", err)
	}

	s.Rate = 1 << 20
	p = c.hosts[0].pull(pullOf(tiny))
	c.hosts[0].eventually("it is under way", func() bool { return p.of("spark1").State == wire.ModelFetches && p.of("spark1").Have > 0 })
	for host, n := range remove() {
		if n.Error != "" {
			t.Errorf("%s: %+v", host, n)
		}
	}
	<-p.over
	if st := p.of("spark1"); st.State != wire.ModelFailed || !strings.Contains(st.Error, "given up") {
		t.Errorf("the pull: %+v, %v", st, p.err)
	}
}
