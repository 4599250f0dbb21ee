package container

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// loaderCache is where an image's dynamic loader has the names of all libraries (ld.so(8)).
const loaderCache = "/etc/ld.so.cache"

// HasLibrary tells whether an image's loader knows a library, such as libibverbs.so.1.
// known is false for an image without a cache of names: a static one, or one of another
// libc. It makes a container that is never started, and takes it away; labels are for who
// finds that one, should this process die meanwhile.
func (e *Engine) HasLibrary(ctx context.Context, image, library string, labels map[string]string) (has, known bool, err error) {
	r, err := e.c.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: image, Entrypoint: []string{"/never-run"}, Cmd: []string{}, Labels: labels},
		HostConfig: &container.HostConfig{NetworkMode: "none"},
	})
	if err != nil {
		return false, false, e.failed("look into image "+image, err)
	}
	defer func() {
		// Also when ctx has ended meanwhile.
		away, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWait)
		defer cancel()
		if rerr := e.Remove(away, r.ID); err == nil {
			err = rerr
		}
	}()
	got, err := e.c.CopyFromContainer(ctx, r.ID, client.CopyFromContainerOptions{SourcePath: loaderCache})
	if cerrdefs.IsNotFound(err) {
		return false, false, nil
	}
	if err != nil {
		return false, false, e.failed("look into image "+image, err)
	}
	defer got.Content.Close()
	files := tar.NewReader(got.Content)
	if _, err := files.Next(); err != nil {
		return false, false, fmt.Errorf("look into image %s: %s: %w", image, loaderCache, err)
	}
	names, err := io.ReadAll(io.LimitReader(files, 16<<20))
	if err != nil {
		return false, false, fmt.Errorf("look into image %s: %s: %w", image, loaderCache, err)
	}
	return bytes.Contains(names, append([]byte(library), 0)), true, nil
}
