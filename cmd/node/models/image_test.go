package models

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/oci"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Contents of images are there for whoever comes late, and are removed once nobody has used them for a while; not under
// an order.
func TestContentsOfImagesGo(t *testing.T) {
	dir := t.TempDir()
	m := opened(t, Config{Dir: dir + "/models", Orders: dir + "/orders"})
	text := []byte("a layer")
	sum := sha256.Sum256(text)
	b := oci.Blob{SHA256: hex.EncodeToString(sum[:]), Size: int64(len(text))}
	if err := m.keepBlob(t.Context(), b, bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	o := orderOf()
	o.Image = &wire.ImageOrder{Ref: "tiny:1"}
	m.markTaken(o, "sha256:1")
	there := func() bool {
		blob, err := m.images.OpenBlob(imageRepo, fileOf(b))
		if err == nil {
			blob.Close()
		}
		return err == nil
	}
	m.imagesUsed()
	if m.dropImages(); !there() || !m.sweeps {
		t.Error("they went though they have just been used")
	}
	m.imagesAt = time.Now().Add(-imagesFor)
	p := newPull(o)
	m.pulls["an image's"] = p
	if m.dropImages(); !there() {
		t.Error("they went under an order")
	}
	p.update(func() { p.state = wire.ModelDone })
	if id, is := m.wasTaken(o.ID); !is || id != "sha256:1" {
		t.Errorf("of an image that was taken it is said: %q, %v", id, is)
	}
	if m.dropImages(); there() || m.sweeps {
		t.Error("they stay for good")
	}
	if _, is := m.wasTaken(o.ID); is {
		t.Error("the marker stays")
	}
}

// Engines number one image in two ways; an image with other layers, or built at another time, is another one.
func TestSameImage(t *testing.T) {
	built := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	im := oci.Image{Root: "sha256:root", Platforms: []oci.Platform{{Arch: "arm64", Manifest: "sha256:manifest",
		Config: "sha256:config", DiffIDs: []string{"sha256:a", "sha256:b"}, Created: built}}}
	for what, tt := range map[string]struct {
		held wire.HeldImage
		want bool
	}{
		"by its configuration":  {wire.HeldImage{ID: "sha256:config"}, true},
		"by its root":           {wire.HeldImage{ID: "sha256:root"}, true},
		"pulled by docker":      {wire.HeldImage{ID: "sha256:x", Digests: []string{"r/i@sha256:root"}}, true},
		"loaded":                {wire.HeldImage{ID: "sha256:x", DiffIDs: []string{"sha256:a", "sha256:b"}, Created: built}, true},
		"built anew":            {wire.HeldImage{ID: "sha256:x", DiffIDs: []string{"sha256:a", "sha256:b"}, Created: built.Add(1)}, false},
		"another of the name":   {wire.HeldImage{ID: "sha256:x", DiffIDs: []string{"sha256:a"}, Created: built}, false},
		"of which nothing told": {wire.HeldImage{ID: "sha256:x"}, false},
	} {
		if got := sameImage(im, wire.NodeImages{Arch: "arm64", Images: []wire.HeldImage{tt.held}}); got != tt.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// An order's contents are those of its image, with the types by which an engine asks for manifests.
func TestImageOrder(t *testing.T) {
	hex := func(c string) string { return string(bytes.Repeat([]byte(c), 64)) }
	im := oci.Image{Root: "sha256:" + hex("a"), Blobs: []oci.Blob{{SHA256: hex("a"), Size: 5, Type: "application/index"},
		{SHA256: hex("b"), Size: 7}}}
	x, o := imageOrder("docker.io/library/tiny:1", im)
	if err := x.Check(); err != nil || x.Repo.Type != modelcache.Image {
		t.Errorf("%+v: %v", x, err)
	}
	got := imageOf(wire.ModelOrder{Manifest: x, Image: o})
	if got.Root != im.Root || len(got.Blobs) != 2 || got.Blobs[0] != im.Blobs[0] || got.Blobs[1] != im.Blobs[1] {
		t.Errorf("it came back as %+v, want %+v", got, im)
	}
	if other, _ := imageOrder("docker.io/library/tiny:2", im); other.Commit == x.Commit {
		t.Error("another name of it is the same order: it would not be tagged")
	}
}
