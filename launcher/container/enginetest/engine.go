// Package enginetest gives tests a real container engine of their own: dockerd, in a
// network namespace and with folders that are removed after the tests. Its image has
// busybox and nothing else.
package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/moby/moby/client"
)

// patience bounds what an engine does in a second or two on an idle machine.
const patience = 90 * time.Second

// Image is the only image.
const Image = "sparkrun-test:1"

// Engine is a dockerd that runs, or ran.
type Engine struct {
	Dir, Socket string
	// Half is a static program that is either half of a container.
	Half    string
	ImageID string

	cmd   *exec.Cmd
	ended chan struct{}
}

// New starts an engine. Close ends it, with all containers in it.
func New() (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("start an engine: this needs root: run the tests as root")
	}
	for _, p := range []string{"dockerd", "busybox", "unshare"} {
		if _, err := exec.LookPath(p); err != nil {
			return nil, fmt.Errorf("start an engine: %w: install docker.io and busybox-static", err)
		}
	}
	// Not in a test's own folder: a unix socket's path has at most 108 bytes.
	dir, err := os.MkdirTemp("/var/tmp", "sr-dockerd-")
	if err != nil {
		return nil, err
	}
	e := &Engine{Dir: dir, Socket: filepath.Join(dir, "s"), Half: filepath.Join(dir, "half")}
	if err := errors.Join(e.Run(), e.build(), e.bring()); err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// Group is the parent cgroup of all its containers, as the engine's driver writes it.
func (e *Engine) Group() string { return "/" + filepath.Base(e.Dir) }

// Run starts dockerd, also after a Halt, and waits until it answers.
func (e *Engine) Run() error {
	log, err := os.OpenFile(filepath.Join(e.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd = exec.Command("unshare", "--net", "dockerd", "--data-root", e.Dir+"/data", "--exec-root", e.Dir+"/exec",
		"-p", e.Dir+"/pid", "-H", "unix://"+e.Socket,
		"--bridge=none", "--iptables=false", "--ip6tables=false", "--live-restore", "--cgroup-parent", e.Group(),
		"--exec-opt", "native.cgroupdriver=cgroupfs") // systemd's would want a slice for a parent
	e.cmd.Stdout, e.cmd.Stderr = log, log
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := e.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := e.cmd, make(chan struct{})
	e.ended = ended
	go func() { // joined by ended
		_ = cmd.Wait()
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := e.do(ctx, func(c *client.Client) error {
			_, err := c.Ping(ctx, client.PingOptions{})
			return err
		})
		if err == nil {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ended:
			return e.failed("dockerd ended", err)
		case <-ctx.Done():
			return e.failed("dockerd does not answer", err)
		}
	}
}

// Halt ends dockerd and leaves its containers running.
func (e *Engine) Halt() error {
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-e.ended:
		return nil
	case <-time.After(patience):
		_ = syscall.Kill(-e.cmd.Process.Pid, syscall.SIGKILL)
		<-e.ended
		return e.failed("stop dockerd", context.DeadlineExceeded)
	}
}

// Close ends everything and leaves nothing.
func (e *Engine) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := e.do(ctx, func(c *client.Client) error {
		all, err := c.ContainerList(ctx, client.ContainerListOptions{All: true})
		for _, x := range all.Items {
			_, rerr := c.ContainerRemove(ctx, x.ID, client.ContainerRemoveOptions{Force: true})
			err = errors.Join(err, rerr)
		}
		return err
	})
	err = errors.Join(err, e.Halt())
	groups, _ := filepath.Glob("/sys/fs/cgroup/*" + e.Group())
	for _, g := range append(groups, "/sys/fs/cgroup"+e.Group()) {
		os.Remove(g)
	}
	// dockerd leaves its network namespace mounted.
	mounts, merr := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], e.Dir+"/") {
			merr = errors.Join(merr, syscall.Unmount(f[1], syscall.MNT_DETACH))
		}
	}
	return errors.Join(err, merr, os.RemoveAll(e.Dir))
}

func (e *Engine) do(ctx context.Context, f func(*client.Client) error) error {
	c, err := client.New(client.WithHost("unix://" + e.Socket))
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		return err
	}
	return f(c)
}

func (e *Engine) failed(what string, err error) error {
	b, _ := os.ReadFile(filepath.Join(e.Dir, "log"))
	return fmt.Errorf("%s: %w\n%s", what, err, b[max(0, len(b)-4000):])
}

func (e *Engine) build() error {
	cmd := exec.Command("go", "build", "-o", e.Half, "github.com/sparkrun/sparkrun/launcher/container/enginetest/half")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the halves: %w\n%s", err, out)
	}
	return nil
}

// bring imports the image.
func (e *Engine) bring() error {
	tree, err := busybox()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return e.do(ctx, func(c *client.Client) error {
		res, err := c.ImageImport(ctx, client.ImageImportSource{Source: tree, SourceName: "-"}, Image,
			client.ImageImportOptions{Changes: []string{"ENV COLOUR=image SHAPE=image PATH=/bin", "WORKDIR /tmp"}})
		if err != nil {
			return err
		}
		defer res.Close()
		for dec := json.NewDecoder(res); ; {
			var m struct{ Error string }
			switch err := dec.Decode(&m); {
			case errors.Is(err, io.EOF):
				im, err := c.ImageInspect(ctx, Image)
				e.ImageID = im.ID
				return err
			case err != nil:
				return err
			case m.Error != "":
				return fmt.Errorf("import image: %s", m.Error)
			}
		}
	})
}

// busybox is a root file system with busybox alone.
func busybox() (io.Reader, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h tar.Header, data []byte) {
		h.Size = int64(len(data))
		err = errors.Join(err, w.WriteHeader(&h))
		_, werr := w.Write(data)
		err = errors.Join(err, werr)
	}
	add(tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	add(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, program)
	for _, name := range strings.Fields("sh cat echo env grep head id kill ls mkdir sleep setsid stty tty tee " +
		"touch true") {
		add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeSymlink, Linkname: "busybox", Mode: 0o777}, nil)
	}
	return &b, errors.Join(err, w.Close())
}
