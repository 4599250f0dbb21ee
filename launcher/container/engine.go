package container

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net/url"
	"strings"
	"time"
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
	socket  string
	version string // of the API that both know; empty: not agreed on yet
}

// Versions of the API: an engine may be older or newer.
const (
	oldestAPI = "1.41" // what this package needs: cgroup namespaces
	newestAPI = "1.56" // what it was written for
)

// Open agrees on a version. ErrNoEngine: no engine answers; the text says what to do.
func Open(ctx context.Context, socket string) (*Engine, error) {
	e := &Engine{socket: socket}
	r, err := e.send(ctx, request{method: "GET", path: "/_ping"})
	if err != nil {
		return nil, e.failed("open engine "+socket, err)
	}
	defer r.Close()
	e.version = r.header.Get("Api-Version")
	if older(e.version, oldestAPI) {
		return nil, fmt.Errorf("open engine %s: its API is %s, want %s or later: Docker Engine 20.10 has it", socket,
			e.version, oldestAPI)
	}
	if older(newestAPI, e.version) {
		e.version = newestAPI
	}
	return e, nil
}

// failed maps an error of the engine to one of ours.
func (e *Engine) failed(what string, err error) error {
	switch {
	case errors.Is(err, ErrNoEngine):
		return fmt.Errorf("%s: %w at %s: start it (systemctl start docker), or install it", what, ErrNoEngine, e.socket)
	case refusedWith(err, statusConflict) && strings.Contains(err.Error(), "already in use"):
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
	var r struct {
		CgroupDriver                 string
		CDISpecDirs, SecurityOptions []string
		Runtimes                     map[string]struct{}
	}
	if err := e.call(ctx, request{method: "GET", path: "/info"}, &r); err != nil {
		return Facts{}, e.failed("ask the engine", err)
	}
	f := Facts{SystemdRuns: r.CgroupDriver == "systemd", CDI: len(r.CDISpecDirs) > 0}
	_, f.Nvidia = r.Runtimes["nvidia"]
	for _, o := range r.SecurityOptions {
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
	Built   string // see launcher.ImageSeen
}

// built is empty where an engine does not tell enough. Two engines may write one moment in two ways.
func built(created string, layers []string) string {
	at, err := time.Parse(time.RFC3339Nano, created)
	if err != nil || len(layers) == 0 {
		return ""
	}
	sum := fnv.New128a()
	fmt.Fprintln(sum, at.UnixNano(), layers)
	return hex.EncodeToString(sum.Sum(nil))
}

// Image finds an image by reference or ID. ErrNoImage: it is not there.
func (e *Engine) Image(ctx context.Context, ref string) (Image, error) {
	var r struct {
		ID           string `json:"Id"`
		Architecture string
		Created      string
		RepoDigests  []string
		RootFS       struct{ Layers []string }
		Config       *struct{ WorkingDir string }
	}
	err := e.call(ctx, request{method: "GET", path: "/images/" + ref + "/json"}, &r)
	if refusedWith(err, statusNotFound) {
		return Image{}, fmt.Errorf("look at image %s: %w", ref, ErrNoImage)
	}
	if err != nil {
		return Image{}, e.failed("look at image "+ref, err)
	}
	im := Image{ID: r.ID, Arch: r.Architecture, Built: built(r.Created, r.RootFS.Layers)}
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
	name := ref
	if !tagged(ref) {
		name += ":latest" // without a tag an engine pulls all that there are
	}
	r, err := e.send(ctx, request{method: "POST", path: "/images/create", query: url.Values{"fromImage": {name}},
		auth: auth})
	switch {
	case refusedWith(err, statusNotFound, statusUnauthorized, statusForbidden):
		return fmt.Errorf("pull image %s: %w: %w", ref, ErrNotForUs, err)
	case err != nil:
		return e.failed("pull image "+ref, err)
	}
	defer r.Close()
	layers := map[string]Progress{}
	var all Progress
	for dec := json.NewDecoder(r.body); ; {
		var m struct {
			ID, Status, Error string
			ErrorDetail       struct{ Code int }
			ProgressDetail    struct{ Current, Total int64 }
		}
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return e.failed("pull image "+ref, cause(ctx, err))
		case m.ErrorDetail.Code == statusUnauthorized || m.ErrorDetail.Code == statusForbidden ||
			m.ErrorDetail.Code == statusNotFound:
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
	id, err = e.create(ctx, s.Name, s.body())
	if refusedWith(err, statusNotFound) {
		return "", fmt.Errorf("create container %s of %s: %w: it was removed after the job was prepared: launch again",
			s.Name, s.Image, ErrNoImage)
	}
	if err != nil {
		return "", e.failed("create container "+s.Name, err)
	}
	return id, nil
}

// create makes a container of that name; empty: the engine gives it one.
func (e *Engine) create(ctx context.Context, name string, b body) (id string, err error) {
	query := url.Values{}
	if name != "" {
		query.Set("name", name)
	}
	var r struct {
		ID string `json:"Id"`
	}
	err = e.call(ctx, request{method: "POST", path: "/containers/create", query: query, in: b}, &r)
	return r.ID, err
}

// Start starts a container.
func (e *Engine) Start(ctx context.Context, id string) error {
	if err := e.call(ctx, request{method: "POST", path: "/containers/" + id + "/start"}, nil); err != nil {
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
	var r struct {
		State *struct {
			Running, OOMKilled bool
			Pid                int
			Error              string
		}
	}
	err := e.call(ctx, request{method: "GET", path: "/containers/" + id + "/json"}, &r)
	if refusedWith(err, statusNotFound) {
		return State{}, fmt.Errorf("look at container %s: %w", brief(id), ErrNoContainer)
	}
	if err != nil {
		return State{}, e.failed("look at container "+brief(id), err)
	}
	st := r.State
	if st == nil {
		return State{}, fmt.Errorf("look at container %s: the engine gives no state", brief(id))
	}
	return State{Running: st.Running, PID: st.Pid, OOMKilled: st.OOMKilled, Error: st.Error}, nil
}

// Remove removes a container, with KILL if it runs. One that is gone is no error.
func (e *Engine) Remove(ctx context.Context, id string) error {
	err := e.remove(ctx, id)
	if refusedWith(err, statusConflict) && strings.Contains(err.Error(), "is not running") {
		// It ended just before the engine's KILL, and the engine had not heard of that yet.
		wait := request{method: "POST", path: "/containers/" + id + "/wait"}
		if err = e.call(ctx, wait, &struct{}{}); err == nil {
			err = e.remove(ctx, id)
		}
	}
	switch {
	case err == nil || refusedWith(err, statusNotFound):
		return nil
	case refusedWith(err, statusConflict) && strings.Contains(err.Error(), "already in progress"):
		return nil
	}
	return e.failed("remove container "+brief(id), err)
}

func (e *Engine) remove(ctx context.Context, id string) error {
	return e.call(ctx, request{method: "DELETE", path: "/containers/" + id,
		query: url.Values{"force": {"1"}, "v": {"1"}}}, nil)
}

// Found is one container of a list.
type Found struct {
	ID, Name string
	Labels   map[string]string
	Running  bool
}

// List gives all containers with all these labels, dead ones too.
func (e *Engine) List(ctx context.Context, labels map[string]string) ([]Found, error) {
	var with []string
	for k, v := range labels {
		with = append(with, k+"="+v)
	}
	filters, err := json.Marshal(map[string][]string{"label": with})
	if err != nil {
		return nil, err
	}
	var items []struct {
		ID     string `json:"Id"`
		Names  []string
		Labels map[string]string
		State  string
	}
	err = e.call(ctx, request{method: "GET", path: "/containers/json",
		query: url.Values{"all": {"1"}, "filters": {string(filters)}}}, &items)
	if err != nil {
		return nil, e.failed("list containers", err)
	}
	var out []Found
	for _, c := range items {
		name := ""
		if len(c.Names) > 0 {
			name = strings.TrimPrefix(c.Names[0], "/")
		}
		out = append(out, Found{ID: c.ID, Name: name, Labels: c.Labels, Running: c.State == "running"})
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
