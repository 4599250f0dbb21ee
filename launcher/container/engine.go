package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// Socket is the engine's default socket.
const Socket = "/var/run/docker.sock"

var (
	ErrNoEngine    = errors.New("no container engine answers")
	ErrNoImage     = errors.New("no such image")
	ErrNoContainer = errors.New("no such container")
	ErrNameTaken   = errors.New("a container of that name is there already")
	// ErrNotForUs: the registry has no such image, or not for this user.
	ErrNotForUs = errors.New("the registry has no such image for us")
)

// Engine talks to a node's container engine by Docker's API, 1.41 and later: that of Docker
// 20.10.
type Engine struct {
	c      *client.Client
	socket string
}

// oldestAPI is what this package needs. The client library itself goes down to 1.40, which
// knows no cgroup namespaces.
const oldestAPI = "1.41"

// Open connects and agrees on a version. ErrNoEngine: no engine answers; the text says what
// to do.
func Open(ctx context.Context, socket string) (*Engine, error) {
	c, err := client.New(client.WithHost("unix://"+socket), client.WithUserAgent("sparkrun"))
	if err != nil {
		return nil, fmt.Errorf("open engine %s: %w", socket, err)
	}
	e := &Engine{c: c, socket: socket}
	// The version is negotiated here: left to itself the client does that with its first
	// call, and if that fails continues with its newest version, which each later call
	// refuses as too new.
	p, err := c.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true, ForceNegotiate: true})
	if err != nil {
		c.Close()
		return nil, e.failed("open engine "+socket, err)
	}
	if older(p.APIVersion, oldestAPI) {
		c.Close()
		return nil, fmt.Errorf("open engine %s: its API is %s, want %s or later: Docker Engine 20.10 has it", socket,
			p.APIVersion, oldestAPI)
	}
	return e, nil
}

// Close ends its connections.
func (e *Engine) Close() error { return e.c.Close() }

// failed maps an error of the engine to one of ours.
func (e *Engine) failed(what string, err error) error {
	switch {
	case client.IsErrConnectionFailed(err):
		return fmt.Errorf("%s: %w at %s: start it (systemctl start docker), or install it", what, ErrNoEngine, e.socket)
	case cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in use"):
		return fmt.Errorf("%s: %w: %w", what, ErrNameTaken, err)
	case strings.Contains(err.Error(), "no space left"):
		return fmt.Errorf("%s: %w: `docker system df` says what takes it, `docker image prune` frees some", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Facts are the properties of an engine that requests depend on.
type Facts struct {
	SystemdRuns bool // systemd manages its cgroups: a group's parent is a slice
	CDI         bool // it gives out devices by CDI specs, if there are some
	Nvidia      bool // it has NVIDIA's runtime
	UsernsRemap bool // root in a container is nobody on the host
	Rootless    bool
}

// Facts asks the engine for them.
func (e *Engine) Facts(ctx context.Context) (Facts, error) {
	r, err := e.c.Info(ctx, client.InfoOptions{})
	if err != nil {
		return Facts{}, e.failed("ask the engine", err)
	}
	f := Facts{SystemdRuns: r.Info.CgroupDriver == "systemd", CDI: len(r.Info.CDISpecDirs) > 0}
	_, f.Nvidia = r.Info.Runtimes["nvidia"]
	for _, o := range r.Info.SecurityOptions {
		f.UsernsRemap = f.UsernsRemap || strings.Contains(o, "name=userns")
		f.Rootless = f.Rootless || strings.Contains(o, "name=rootless")
	}
	return f, nil
}

// Image is an image of a node.
type Image struct {
	ID      string // sha256 of its configuration
	Digest  string // of its manifest in a registry; empty for one that was loaded or built
	Arch    string // amd64, arm64
	Workdir string
}

// Image finds an image by reference or ID. ErrNoImage: it is not there.
func (e *Engine) Image(ctx context.Context, ref string) (Image, error) {
	r, err := e.c.ImageInspect(ctx, ref)
	if cerrdefs.IsNotFound(err) {
		return Image{}, fmt.Errorf("look at image %s: %w", ref, ErrNoImage)
	}
	if err != nil {
		return Image{}, e.failed("look at image "+ref, err)
	}
	im := Image{ID: r.ID, Arch: r.Architecture}
	if len(r.RepoDigests) > 0 {
		_, im.Digest, _ = strings.Cut(r.RepoDigests[0], "@")
	}
	if r.Config != nil {
		im.Workdir = r.Config.WorkingDir
	}
	return im, nil
}

// Progress is how far a pull has come.
type Progress struct {
	Done, Total int64 // bytes of the layers that are known so far
}

// Pull fetches an image and reports progress. auth is a registry's X-Registry-Auth, or
// empty.
func (e *Engine) Pull(ctx context.Context, ref, auth string, tell func(Progress)) error {
	r, err := e.c.ImagePull(ctx, ref, client.ImagePullOptions{RegistryAuth: auth})
	switch {
	case cerrdefs.IsNotFound(err) || cerrdefs.IsUnauthorized(err) || cerrdefs.IsPermissionDenied(err):
		return fmt.Errorf("pull image %s: %w: %w", ref, ErrNotForUs, err)
	case err != nil:
		return e.failed("pull image "+ref, err)
	}
	defer r.Close()
	layers := map[string]Progress{}
	var all Progress
	for dec := json.NewDecoder(r); ; {
		var m struct {
			ID, Status, Error string
			ErrorDetail       struct{ Code int }
			ProgressDetail    struct{ Current, Total int64 }
		}
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return e.failed("pull image "+ref, err)
		case m.ErrorDetail.Code == http.StatusUnauthorized || m.ErrorDetail.Code == http.StatusForbidden ||
			m.ErrorDetail.Code == http.StatusNotFound:
			return fmt.Errorf("pull image %s: %w: %s", ref, ErrNotForUs, m.Error)
		case m.Error != "": // the status of the answer was sent before the error
			return e.failed("pull image "+ref, errors.New(m.Error))
		case m.Status != "Downloading" || m.ProgressDetail.Total <= 0:
			continue
		}
		was := layers[m.ID]
		now := Progress{m.ProgressDetail.Current, m.ProgressDetail.Total}
		layers[m.ID] = now
		all.Done, all.Total = all.Done+now.Done-was.Done, all.Total+now.Total-was.Total
		tell(all)
	}
}

// Create makes a container without starting it. ErrNameTaken: there is one of that name.
func (e *Engine) Create(ctx context.Context, s Spec) (id string, err error) {
	if err := s.Validate(); err != nil {
		return "", err
	}
	cfg, host := s.body()
	r, err := e.c.ContainerCreate(ctx, client.ContainerCreateOptions{Config: cfg, HostConfig: host, Name: s.Name})
	if cerrdefs.IsNotFound(err) {
		return "", fmt.Errorf("create container %s of %s: %w: it was removed after the job was prepared: launch again",
			s.Name, s.Image, ErrNoImage)
	}
	if err != nil {
		return "", e.failed("create container "+s.Name, err)
	}
	return r.ID, nil
}

// Start starts a container.
func (e *Engine) Start(ctx context.Context, id string) error {
	if _, err := e.c.ContainerStart(ctx, id, client.ContainerStartOptions{}); err != nil {
		return e.failed("start container "+brief(id), err)
	}
	return nil
}

// brief is an id as docker ps shows it, or a name.
func brief(id string) string {
	if len(id) == 64 {
		return id[:12]
	}
	return id
}

// State is the state of a container.
type State struct {
	Running   bool
	PID       int // of its first process on the host; 0: it does not run
	OOMKilled bool
	Error     string // why it was not started
}

// State asks for the state. ErrNoContainer: the container is gone.
func (e *Engine) State(ctx context.Context, id string) (State, error) {
	r, err := e.c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if cerrdefs.IsNotFound(err) {
		return State{}, fmt.Errorf("look at container %s: %w", brief(id), ErrNoContainer)
	}
	if err != nil {
		return State{}, e.failed("look at container "+brief(id), err)
	}
	st := r.Container.State
	if st == nil {
		return State{}, fmt.Errorf("look at container %s: the engine gives no state", brief(id))
	}
	return State{Running: st.Running, PID: st.Pid, OOMKilled: st.OOMKilled, Error: st.Error}, nil
}

// Remove removes a container, with KILL if it runs. One that is gone is no error.
func (e *Engine) Remove(ctx context.Context, id string) error {
	_, err := e.c.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	switch {
	case err == nil || cerrdefs.IsNotFound(err):
		return nil
	case cerrdefs.IsConflict(err) && strings.Contains(err.Error(), "already in progress"):
		return nil
	}
	return e.failed("remove container "+brief(id), err)
}

// Found is one container of a list.
type Found struct {
	ID, Name string
	Labels   map[string]string
	Running  bool
}

// List gives all containers with all these labels, dead ones too.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]Found, error) {
	f := client.Filters{}
	for k, v := range labels {
		f.Add("label", k+"="+v)
	}
	r, err := e.c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: f})
	if err != nil {
		return nil, e.failed("list containers", err)
	}
	var out []Found
	for _, c := range r.Items {
		name := ""
		if len(c.Names) > 0 {
			name = strings.TrimPrefix(c.Names[0], "/")
		}
		out = append(out, Found{ID: c.ID, Name: name, Labels: c.Labels, Running: string(c.State) == "running"})
	}
	return out, nil
}

// older compares versions of the API: 1.9 is below 1.41.
func older(a, b string) bool {
	var amaj, amin, bmaj, bmin int
	_, erra := fmt.Sscanf(a, "%d.%d", &amaj, &amin)
	_, errb := fmt.Sscanf(b, "%d.%d", &bmaj, &bmin)
	return erra != nil || errb != nil || amaj < bmaj || amaj == bmaj && amin < bmin
}
