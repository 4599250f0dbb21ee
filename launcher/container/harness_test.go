package container

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"go.uber.org/goleak"
)

// patience is how long a test waits for what has to happen.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	code := m.Run()
	if theRig.stop != nil {
		theRig.stop()
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// rig is what tests share: a real engine of their own, an image in it, and the program.
type rig struct {
	dir, socket, half string
	image             Image
	halt              func() error // ends the engine; run starts it again
	stop              func()
}

var (
	theRig  rig
	rigOnce sync.Once
	errRig  error
)

const testImage = "sparkrun-test:1"

// open starts dockerd in a network namespace of its own, with its folders in one that
// is removed at the end: nothing of this machine's is touched.
func open(t *testing.T) (*rig, *Engine) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("an engine takes root: run the tests as root")
	}
	rigOnce.Do(func() { errRig = theRig.start() })
	if errRig != nil {
		t.Fatal(errRig)
	}
	e, err := Open(t.Context(), theRig.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return &theRig, e
}

func (r *rig) start() (err error) {
	for _, p := range []string{"dockerd", "busybox", "unshare"} {
		if _, err := exec.LookPath(p); err != nil {
			return fmt.Errorf("%w: install docker.io and busybox-static", err)
		}
	}
	// Not below /tmp's usual names: a unix socket's path has 108 bytes.
	if r.dir, err = os.MkdirTemp("/var/tmp", "sr-dockerd-"); err != nil {
		return err
	}
	r.socket = filepath.Join(r.dir, "s")
	if err := r.run(); err != nil {
		return err
	}
	r.half = filepath.Join(r.dir, "half")
	build := exec.Command("go", "build", "-o", r.half, "./testdata/half")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build halves: %w\n%s", err, out)
	}
	return r.bring()
}

// run starts the engine and waits until it answers.
func (r *rig) run() error {
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("unshare", "--net", "dockerd", "--data-root", r.dir+"/data", "--exec-root", r.dir+"/exec", "-p", r.dir+"/pid", "-H", "unix://"+r.socket,
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--live-restore", "--cgroup-parent", r.group())
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	r.halt = func() error {
		_ = syscall.Kill(cmd.Process.Pid, syscall.SIGTERM)
		select {
		case <-ended:
			return nil
		case <-time.After(patience):
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			<-ended
			return r.failed("stop dockerd", context.DeadlineExceeded)
		}
	}
	r.stop = func() {
		r.sweep()
		_ = r.halt()
		groups, _ := filepath.Glob("/sys/fs/cgroup/*/" + r.group())
		groups = append(groups, "/sys/fs/cgroup/"+r.group())
		for _, g := range groups {
			os.Remove(g)
		}
		os.RemoveAll(r.dir)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		e, err := Open(ctx, r.socket)
		if err == nil {
			return e.Close()
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ended:
			return r.failed("dockerd ended", err)
		case <-ctx.Done():
			return r.failed("dockerd does not answer", err)
		}
	}
}

func (r *rig) failed(what string, err error) error {
	b, _ := os.ReadFile(filepath.Join(r.dir, "log"))
	return fmt.Errorf("%s: %w\n%s", what, err, b[max(0, len(b)-4000):])
}

func (r *rig) group() string { return filepath.Base(r.dir) }

// sweep takes away every container.
func (r *rig) sweep() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := Open(ctx, r.socket)
	if err != nil {
		return
	}
	defer e.Close()
	all, _ := e.List(ctx, nil)
	for _, c := range all {
		_ = e.Remove(ctx, c.ID)
	}
}

// bring imports an image of busybox alone.
func (r *rig) bring() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := Open(ctx, r.socket)
	if err != nil {
		return err
	}
	defer e.Close()
	path, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		_ = w.WriteHeader(&h)
		_, _ = w.Write(data)
	}
	add(tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	for _, name := range strings.Fields("sh cat echo env grep head id kill ls mount mkdir sleep setsid stty tty true touch tee ulimit nsenter su") {
		add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
	}
	if err := w.Close(); err != nil {
		return err
	}
	res, err := e.c.ImageImport(ctx, client.ImageImportSource{Source: &b, SourceName: "-"}, testImage,
		client.ImageImportOptions{Changes: []string{"ENV COLOUR=image SHAPE=image PATH=/bin", "WORKDIR /tmp"}})
	if err != nil {
		return err
	}
	defer res.Close()
	for dec := json.NewDecoder(res); ; {
		var m struct{ Error string }
		if dec.Decode(&m) != nil {
			break
		}
		if m.Error != "" {
			return fmt.Errorf("import image: %s", m.Error)
		}
	}
	r.image, err = e.Image(ctx, testImage)
	return err
}
