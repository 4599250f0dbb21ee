package oci

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const blobPrefix = "blobs/sha256/"

// Unpack reads what an engine saves of one image. Each content is kept by keep, which has to verify its sum; get gives
// it again.
func Unpack(ctx context.Context, saved io.Reader, arches []string, keep func(Blob, io.Reader) error,
	get func(Blob) ([]byte, error)) (Image, error) {
	var index *ocispec.Index
	for in := tar.NewReader(saved); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Image{}, fmt.Errorf("read saved image: %w", err)
		}
		switch name := strings.TrimPrefix(h.Name, "./"); {
		case h.Typeflag != tar.TypeReg:
		case strings.HasPrefix(name, blobPrefix):
			b := Blob{SHA256: strings.TrimPrefix(name, blobPrefix), Size: h.Size}
			if err := digest.Digest(b.Digest()).Validate(); err != nil {
				return Image{}, fmt.Errorf("read saved image: %s: %w", name, err)
			}
			if err := keep(b, in); err != nil {
				return Image{}, err
			}
		case name == ocispec.ImageIndexFile:
			index = &ocispec.Index{}
			if err := json.NewDecoder(io.LimitReader(in, maxManifest)).Decode(index); err != nil {
				return Image{}, fmt.Errorf("read saved image: %s: %w", name, err)
			}
		}
	}
	if index == nil || len(index.Manifests) == 0 {
		return Image{}, ErrOldEngine
	}
	return Resolve(ctx, index.Manifests[0], arches, func(_ context.Context, d ocispec.Descriptor) ([]byte, error) {
		if d.Size > maxManifest {
			return nil, fmt.Errorf("read %s: %d bytes, want %d at most", d.Digest, d.Size, maxManifest)
		}
		return get(Blob{SHA256: d.Digest.Encoded(), Size: d.Size})
	})
}
