// Package oci decides what an image consists of, how its contents are read from a registry or from
// what an engine saves, and how an engine on this machine takes them in.
//
// It must not know where contents are kept, nor how they go from node to node: it gives and takes
// them by their sums. It has no engine: who has one calls it.
package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// What callers tell apart.
var (
	ErrNoImage = errors.New("no such image")
	// ErrLogin: the registry does not give it to us: whether it has one is not always told.
	ErrLogin = errors.New("the registry does not give it to this user")
	// ErrOffline: the registry is not reached, or is not well.
	ErrOffline    = errors.New("the registry is not reached")
	ErrNoRange    = errors.New("the registry gives no part of a content")
	ErrNoPlatform = errors.New("there is no such image for this kind of machine")
	// ErrOldEngine: what it saves has not the layout of OCI.
	ErrOldEngine = errors.New("its Docker saves images without their sums: Docker Engine 25 or later is needed")
)

// Media types of Docker's own, beside OCI's.
const (
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerOld      = "application/vnd.docker.distribution.manifest.v1+prettyjws"
)

// maxManifest bounds an index, a manifest or a configuration, in bytes.
const maxManifest = 4 << 20

// Blob is one content of an image.
type Blob struct {
	SHA256 string // hex
	Size   int64
	// Type is the media type of an index or a manifest; empty: a configuration or a layer.
	Type string
}

// Digest is its name.
func (b Blob) Digest() string { return "sha256:" + b.SHA256 }

// Image is what there is to fetch.
type Image struct {
	Root  string // digest of the index or manifest that stands for it
	Blobs []Blob // each once, in the order in which an engine asks for them
	// Platforms are those of the machines that it was looked up for.
	Platforms []Platform
}

// Platform is the image for one kind of machine.
type Platform struct {
	Arch             string
	Manifest, Config string // digests
	DiffIDs          []string
	Created          time.Time
}

// ParseRef reads a reference as docker does: Docker Hub where it names no registry, latest where it
// has neither tag nor digest.
func ParseRef(ref string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("read image %q: %w: want NAME[:TAG], such as nvcr.io/nvidia/pytorch:25.10-py3", ref, err)
	}
	return named, nil
}

// Registry is the registry that a reference names.
func Registry(named reference.Named) string { return reference.Domain(named) }

// Resolve finds what an image has for machines of these kinds. get reads a content whole, and verifies it.
func Resolve(ctx context.Context, root ocispec.Descriptor, arches []string,
	get func(context.Context, ocispec.Descriptor) ([]byte, error)) (Image, error) {
	im := Image{Root: root.Digest.String()}
	err := im.walk(ctx, root, arches, get)
	for _, arch := range arches {
		if err == nil && !slices.ContainsFunc(im.Platforms, func(p Platform) bool { return p.Arch == arch }) {
			err = fmt.Errorf("%w: linux/%s", ErrNoPlatform, arch)
		}
	}
	return im, err
}

func (im *Image) add(d ocispec.Descriptor, kind string) error {
	if d.Digest.Algorithm() != digest.SHA256 || d.Digest.Validate() != nil || d.Size < 0 {
		return fmt.Errorf("image %s: content %q of %d bytes: want a sha256 and a size", im.Root, d.Digest, d.Size)
	}
	b := Blob{SHA256: d.Digest.Encoded(), Size: d.Size, Type: kind}
	if !slices.ContainsFunc(im.Blobs, func(x Blob) bool { return x.SHA256 == b.SHA256 }) {
		im.Blobs = append(im.Blobs, b)
	}
	return nil
}

func (im *Image) walk(ctx context.Context, d ocispec.Descriptor, arches []string,
	get func(context.Context, ocispec.Descriptor) ([]byte, error)) error {
	if err := im.add(d, d.MediaType); err != nil {
		return err
	}
	text, err := get(ctx, d)
	if err != nil {
		return err
	}
	switch d.MediaType {
	case ocispec.MediaTypeImageIndex, dockerList:
		var index ocispec.Index
		if err := json.Unmarshal(text, &index); err != nil {
			return fmt.Errorf("read index %s: %w", d.Digest, err)
		}
		for _, arch := range arches {
			i := slices.IndexFunc(index.Manifests, func(m ocispec.Descriptor) bool {
				return m.Platform != nil && m.Platform.OS == "linux" && m.Platform.Architecture == arch
			})
			if i < 0 { // an index may have another one in it, or say nothing of kinds
				i = slices.IndexFunc(index.Manifests, func(m ocispec.Descriptor) bool { return m.Platform == nil })
			}
			if i < 0 {
				continue
			}
			if err := im.walk(ctx, index.Manifests[i], []string{arch}, get); err != nil {
				return err
			}
		}
		return nil
	case ocispec.MediaTypeImageManifest, dockerManifest:
		return im.manifest(ctx, d, text, get)
	case dockerOld:
		return fmt.Errorf("image %s: %w: its manifest is of Docker's first form: push it anew", d.Digest, ErrNoPlatform)
	}
	return fmt.Errorf("image %s: a manifest of the unknown type %q", d.Digest, d.MediaType)
}

func (im *Image) manifest(ctx context.Context, d ocispec.Descriptor, text []byte,
	get func(context.Context, ocispec.Descriptor) ([]byte, error)) error {
	var m ocispec.Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return fmt.Errorf("read manifest %s: %w", d.Digest, err)
	}
	if err := im.add(m.Config, ""); err != nil {
		return err
	}
	conf, err := get(ctx, m.Config)
	if err != nil {
		return err
	}
	var c ocispec.Image
	if err := json.Unmarshal(conf, &c); err != nil {
		return fmt.Errorf("read configuration %s: %w", m.Config.Digest, err)
	}
	p := Platform{Arch: c.Architecture, Manifest: d.Digest.String(), Config: m.Config.Digest.String()}
	for _, id := range c.RootFS.DiffIDs {
		p.DiffIDs = append(p.DiffIDs, id.String())
	}
	if c.Created != nil {
		p.Created = *c.Created
	}
	if !slices.ContainsFunc(im.Platforms, func(x Platform) bool { return x.Arch == p.Arch }) {
		im.Platforms = append(im.Platforms, p)
	}
	for _, layer := range m.Layers {
		if strings.Contains(layer.MediaType, "nondistributable") || strings.Contains(layer.MediaType, ".foreign.") {
			return fmt.Errorf("image %s: %w: its registry does not give layer %s", d.Digest, ErrNoPlatform, layer.Digest)
		}
		if err := im.add(layer, ""); err != nil {
			return err
		}
	}
	return nil
}
