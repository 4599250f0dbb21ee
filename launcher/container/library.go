package container

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
)

// loaderCache is where an image's dynamic loader keeps the names of all libraries
// (ld.so(8)).
const loaderCache = "/etc/ld.so.cache"

// Libraries reports which of some libraries, such as libibverbs.so.1, an image's loader
// knows. nil: the image has no such cache, for it is static or has another libc. It makes a
// container that is never started, and removes it; the labels let a later process find it,
// should this one die meanwhile.
func (e *Engine) Libraries(ctx context.Context, image string, labels map[string]string,
	names ...string) (has map[string]bool, err error) {
	id, err := e.create(ctx, "", body{Image: image, Entrypoint: []string{"/never-run"}, Cmd: []string{}, Labels: labels,
		HostConfig: hostConfig{NetworkMode: "none"}})
	if err != nil {
		return nil, e.failed("look into image "+image, err)
	}
	defer func() {
		// Also when ctx has ended meanwhile.
		away, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWait)
		defer cancel()
		if rerr := e.Remove(away, id); err == nil {
			err = rerr
		}
	}()
	got, err := e.send(ctx, request{method: "GET", path: "/containers/" + id + "/archive",
		query: url.Values{"path": {loaderCache}}})
	if refusedWith(err, statusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, e.failed("look into image "+image, err)
	}
	defer got.Close()
	files := tar.NewReader(got.body)
	if _, err := files.Next(); err != nil {
		return nil, fmt.Errorf("look into image %s: %s: %w", image, loaderCache, err)
	}
	cache, err := io.ReadAll(io.LimitReader(files, 16<<20))
	if err != nil {
		return nil, fmt.Errorf("look into image %s: %s: %w", image, loaderCache, err)
	}
	has = map[string]bool{}
	for _, name := range names {
		// Each name ends with a zero byte, and so does the path that ends with the name,
		// after a slash.
		has[name] = bytes.Contains(cache, append([]byte("/"+name), 0))
	}
	return has, nil
}
