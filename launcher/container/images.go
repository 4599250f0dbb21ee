package container

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"
)

// Stored is an image as its engine stores it.
type Stored struct {
	ID      string    // sha256:...: of its configuration, or of what stands for it in a registry
	Refs    []string  // its names with tags
	Digests []string  // its names with digests: of what was pulled
	Arch    string    // only of one that was asked for by name
	DiffIDs []string  // so, too: its layers' sums, unpacked
	Created time.Time // when it was built
	Size    int64     // on the disk, in bytes
}

// Images lists all images that have a name.
func (e *Engine) Images(ctx context.Context) ([]Stored, error) {
	var items []struct {
		ID                    string `json:"Id"`
		RepoTags, RepoDigests []string
		Created, Size         int64
	}
	if err := e.call(ctx, request{method: "GET", path: "/images/json"}, &items); err != nil {
		return nil, e.failed("list images", err)
	}
	var all []Stored
	for _, i := range items {
		all = append(all, Stored{ID: i.ID, Refs: withNames(i.RepoTags), Digests: withNames(i.RepoDigests),
			Created: time.Unix(i.Created, 0).UTC(), Size: i.Size})
	}
	return all, nil
}

// withNames leaves out what older engines write where there is no name.
func withNames(refs []string) (out []string) {
	for _, r := range refs {
		if !strings.Contains(r, "<none>") {
			out = append(out, r)
		}
	}
	return out
}

// Stored finds an image by reference or ID. ErrNoImage: it is not there.
func (e *Engine) Stored(ctx context.Context, ref string) (Stored, error) {
	var r struct {
		ID                    string `json:"Id"`
		RepoTags, RepoDigests []string
		Architecture, Created string
		Size                  int64
		RootFS                struct{ Layers []string }
	}
	err := e.call(ctx, request{method: "GET", path: "/images/" + ref + "/json"}, &r)
	if refusedWith(err, statusNotFound) {
		return Stored{}, fmt.Errorf("look at image %s: %w", ref, ErrNoImage)
	}
	if err != nil {
		return Stored{}, e.failed("look at image "+ref, err)
	}
	s := Stored{ID: r.ID, Refs: withNames(r.RepoTags), Digests: withNames(r.RepoDigests), Arch: r.Architecture,
		DiffIDs: r.RootFS.Layers, Size: r.Size}
	s.Created, _ = time.Parse(time.RFC3339Nano, r.Created) // one without a date has none
	return s, nil
}

// Tag gives an image a name more.
func (e *Engine) Tag(ctx context.Context, ref, repository, tag string) error {
	err := e.call(ctx, request{method: "POST", path: "/images/" + ref + "/tag",
		query: url.Values{"repo": {repository}, "tag": {tag}}}, nil)
	if err != nil {
		return e.failed(fmt.Sprintf("tag image %s:%s", repository, tag), err)
	}
	return nil
}

// Untag takes a name from an image that has another one. One that is gone is no error.
func (e *Engine) Untag(ctx context.Context, ref string) error {
	err := e.call(ctx, request{method: "DELETE", path: "/images/" + ref, query: url.Values{"noprune": {"1"}}}, nil)
	if err != nil && !refusedWith(err, statusNotFound) {
		return e.failed("untag image "+ref, err)
	}
	return nil
}

// Save gives an image as `docker save` does. It has to be closed.
func (e *Engine) Save(ctx context.Context, ref string) (io.ReadCloser, error) {
	r, err := e.send(ctx, request{method: "GET", path: "/images/" + ref + "/get"})
	if refusedWith(err, statusNotFound) {
		return nil, fmt.Errorf("save image %s: %w", ref, ErrNoImage)
	}
	if err != nil {
		return nil, e.failed("save image "+ref, err)
	}
	return saved{r}, nil
}

type saved struct{ *response }

func (s saved) Read(p []byte) (int, error) { return s.body.Read(p) }

func (s saved) Close() error {
	s.response.Close()
	return nil
}

// Storage is what an engine says of its images.
type Storage struct {
	Root     string // the folder with them
	insecure map[string]bool
	ranges   []netip.Prefix
}

// Storage asks the engine.
func (e *Engine) Storage(ctx context.Context) (Storage, error) {
	var r struct {
		DockerRootDir  string
		RegistryConfig struct {
			InsecureRegistryCIDRs []string
			IndexConfigs          map[string]struct{ Secure bool }
		}
	}
	if err := e.call(ctx, request{method: "GET", path: "/info"}, &r); err != nil {
		return Storage{}, e.failed("ask the engine", err)
	}
	s := Storage{Root: r.DockerRootDir, insecure: map[string]bool{}}
	for host, c := range r.RegistryConfig.IndexConfigs {
		s.insecure[host] = !c.Secure
	}
	for _, text := range r.RegistryConfig.InsecureRegistryCIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			s.ranges = append(s.ranges, p)
		}
	}
	return s, nil
}

// Insecure tells whether the engine takes images from a registry without a certificate that it can judge.
func (s Storage) Insecure(registry string) bool {
	if is, told := s.insecure[registry]; told {
		return is
	}
	host, _, err := net.SplitHostPort(registry)
	if err != nil {
		host = registry
	}
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return false
	}
	for _, p := range s.ranges {
		if p.Contains(addr.Unmap()) {
			return true
		}
	}
	return false
}

// LoginOf gives a login as Pull takes it.
func LoginOf(registry, username, password, identityToken string) string {
	b, err := json.Marshal(credentials{username, password, identityToken, registry})
	if err != nil {
		return "" // it has strings only
	}
	return base64.URLEncoding.EncodeToString(b)
}

// PullHere fetches an image from a registry of this machine. unpacks is called when a layer is being unpacked.
func (e *Engine) PullHere(ctx context.Context, ref string, unpacks func()) error {
	r, err := e.send(ctx, request{method: "POST", path: "/images/create", query: url.Values{"fromImage": {ref}}})
	if err != nil {
		return e.failed("have the engine take the image", err)
	}
	defer r.Close()
	for dec := json.NewDecoder(r.body); ; {
		var m struct{ Status, Error string }
		switch err := dec.Decode(&m); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return e.failed("have the engine take the image", cause(ctx, err))
		case m.Error != "":
			return e.failed("have the engine take the image", errors.New(m.Error))
		case m.Status == "Extracting":
			unpacks()
		}
	}
}
