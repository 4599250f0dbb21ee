package models

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/oci"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// imageRepo has the contents of all images: what two of them share comes once.
var imageRepo = modelcache.Repo{Type: modelcache.Image, Name: "blobs"}

// imageOrder makes an order's part of an image. Its commit stands for the name, too: what one order fetches under another
// name is tagged by another order.
func imageOrder(ref string, im oci.Image) (modelcache.Manifest, *wire.ImageOrder) {
	sum := sha256.Sum256([]byte(ref + "@" + im.Root))
	x := modelcache.Manifest{Repo: imageRepo, Commit: hex.EncodeToString(sum[:20])}
	o := &wire.ImageOrder{Ref: ref, Root: im.Root, Types: map[string]string{}}
	for _, b := range im.Blobs {
		x.Files = append(x.Files, fileOf(b))
		if b.Type != "" {
			o.Types[b.Digest()] = b.Type
		}
	}
	return x, o
}

// imageOf is the reverse.
func imageOf(o wire.ModelOrder) oci.Image {
	im := oci.Image{Root: o.Image.Root}
	for _, f := range o.Manifest.Files {
		b := oci.Blob{SHA256: f.SHA256, Size: f.Size}
		b.Type = o.Image.Types[b.Digest()]
		im.Blobs = append(im.Blobs, b)
	}
	return im
}

// title is what an order is called.
func title(o wire.ModelOrder) string {
	if o.Image != nil {
		return o.Image.Ref
	}
	return o.Manifest.Repo.Name
}

// listImages tells what this node's engine has.
func (m *Models) listImages(ctx context.Context, _ wire.Caller, r wire.ImagesRequest) (wire.NodeImages, error) {
	n := wire.NodeImages{ID: m.cfg.Self, Host: m.cfg.Host, Arch: runtime.GOARCH}
	e, err := m.engine(ctx)
	if err != nil {
		return n, err
	}
	var all []container.Stored
	if r.Ref == "" {
		all, err = e.Images(ctx)
	} else {
		if _, err := oci.ParseRef(r.Ref); err != nil {
			return n, err
		}
		var one container.Stored
		if one, err = e.Stored(ctx, r.Ref); err == nil {
			all = append(all, one)
		} else if errors.Is(err, container.ErrNoImage) {
			err = nil
		}
	}
	for _, s := range all {
		n.Images = append(n.Images, wire.HeldImage{ID: s.ID, Refs: s.Refs, Digests: s.Digests, Created: s.Created,
			Size: s.Size, DiffIDs: s.DiffIDs})
	}
	return n, err
}

func (m *Models) engine(ctx context.Context) (*container.Engine, error) {
	if m.cfg.Engine == "" {
		return nil, fmt.Errorf("%w: this machine starts no containers", container.ErrNoEngine)
	}
	return container.Open(ctx, m.cfg.Engine)
}

func (m *Models) allowImage(ctx context.Context, user, ref string) error {
	if err := m.cfg.Allow(ctx, container.Wish{User: user, Image: ref}); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrDenied, err)
	}
	return nil
}

// pullImage finds out what an image consists of, gives each node that lacks it its order, and tells how far they are.
// They go on without it.
func (m *Models) pullImage(ctx context.Context, c wire.Caller, r wire.ImagePullRequest,
	send func(wire.ModelProgress) error) error {
	named, err := oci.ParseRef(r.Ref)
	if err = errors.Join(err, r.ID.Validate()); err != nil {
		return fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	}
	if err := m.allowImage(ctx, c.User.Name, r.Ref); err != nil {
		return fmt.Errorf("pull %s: %w", r.Ref, err)
	}
	st, err := m.cfg.Everyone.Status(ctx, c, wire.StatusRequest{})
	if err != nil {
		return err
	}
	all, err := wire.Images.Ask(ctx, m.cfg.Everyone, c, wire.ImagesRequest{Ref: named.String()}, m.listImages)
	if err != nil {
		return err
	}
	on, have := map[launcher.NodeID]wire.NodeImages{}, map[launcher.NodeID]int64{}
	for _, n := range all {
		if on[n.ID] = n; len(n.Images) > 0 {
			have[n.ID] = math.MaxInt64
		}
	}
	to, away, err := choose(st.Nodes, wire.ModelPullRequest{On: r.On, Nodes: r.Nodes, All: r.All}, m.cfg.Self, have)
	if err != nil {
		return fmt.Errorf("pull %s: %w", r.Ref, err)
	}
	p := &imagePull{m: m, c: c, r: r, named: named, on: on, send: send}
	if err := p.split(to); err != nil {
		return fmt.Errorf("pull %s: %w", r.Ref, err)
	}
	if err := p.find(ctx, all); err != nil {
		return fmt.Errorf("pull %s: %w", r.Ref, err)
	}
	order := wire.ModelOrder{ID: r.ID, User: c.User.Name, Outside: p.source == "", Token: r.Login}
	nodes := inOrder(p.lack, m.cfg.Self, nil)
	if len(nodes) > 0 {
		order.Manifest, order.Image = imageOrder(named.String(), p.image)
		if p.source != "" {
			order.Chain = append(order.Chain, p.source)
		}
		for _, n := range nodes {
			order.Chain = append(order.Chain, n.ID)
		}
		for _, try := range []bool{true, false} {
			if err := m.give(ctx, c, nodes, st.Nodes, wire.NodeModelRequest{Order: order, Try: try}); err != nil {
				return fmt.Errorf("pull %s: %w", r.Ref, err)
			}
		}
	}
	plan := &wire.ModelPlan{Repo: modelcache.Repo{Type: modelcache.Image, Name: r.Ref}, Commit: p.image.Root,
		Files: len(p.image.Blobs), Bytes: order.Manifest.Bytes(), Offline: p.why}
	for _, n := range nodes {
		plan.Hosts = append(plan.Hosts, n.Host)
	}
	if err := send(wire.ModelProgress{Plan: plan}); err != nil {
		return err
	}
	for _, n := range p.has {
		if err := send(wire.ModelProgress{Host: n.Host, State: wire.ModelDone, Dir: n.Images[0].ID}); err != nil {
			return err
		}
	}
	for _, n := range away {
		s := wire.ModelProgress{Host: n.Host, State: wire.ModelAway, Error: "it is away, and was given no order"}
		if err := send(s); err != nil {
			return err
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return m.watchAll(ctx, nodes, wire.NodeModelWatch{ID: r.ID, Repo: imageRepo, Commit: order.Manifest.Commit}, send)
}

// imagePull is a pull on the node that is asked, until it is known what goes where.
type imagePull struct {
	m     *Models
	c     wire.Caller
	r     wire.ImagePullRequest
	named reference.Named
	on    map[launcher.NodeID]wire.NodeImages
	send  func(wire.ModelProgress) error

	lack   []wire.NodeStatus
	has    []wire.NodeImages
	image  oci.Image
	source launcher.NodeID // a member that gives it; empty: its registry does
	why    string          // of that
}

// split puts aside the nodes that are to keep what they have; those without an engine are refused.
func (p *imagePull) split(to []wire.NodeStatus) error {
	for _, n := range to {
		switch on := p.on[n.ID]; {
		case on.Error != "":
			return fmt.Errorf("%s: %w: %s", n.Host, wire.ErrConflict, on.Error)
		case p.r.Missing && len(on.Images) > 0:
			p.has = append(p.has, on)
		default:
			p.lack = append(p.lack, n)
		}
	}
	return nil
}

// find looks an image up: in its registry, else among members. Nodes that have the very same lack nothing.
func (p *imagePull) find(ctx context.Context, all []wire.NodeImages) error {
	if len(p.lack) == 0 {
		return nil
	}
	var arches []string
	for _, n := range p.lack {
		if arch := p.on[n.ID].Arch; !slices.Contains(arches, arch) {
			arches = append(arches, arch)
		}
	}
	src, err := p.m.registry(ctx, p.named, p.r.ID, p.c.User.Name, p.r.Login)
	if err == nil {
		p.image, err = src.Resolve(ctx, arches)
		src.Close()
	}
	switch {
	case err == nil:
		p.keep(func(n wire.NodeImages) bool { return sameImage(p.image, n) })
		return nil
	case errors.Is(err, oci.ErrNoImage), errors.Is(err, oci.ErrLogin), errors.Is(err, oci.ErrOffline):
		return p.among(ctx, all, arches, err)
	}
	return err
}

// keep has the nodes that have it lack nothing.
func (p *imagePull) keep(has func(wire.NodeImages) bool) {
	p.lack = slices.DeleteFunc(p.lack, func(n wire.NodeStatus) bool {
		on := p.on[n.ID]
		if len(on.Images) == 0 || !has(on) {
			return false
		}
		p.has = append(p.has, on)
		return true
	})
}

// sameImage tells whether a node has it already. Engines number images in two ways: by the configuration, or by what
// stands for it in a registry.
func sameImage(im oci.Image, n wire.NodeImages) bool {
	held := n.Images[0]
	if held.ID == im.Root || slices.ContainsFunc(held.Digests, func(d string) bool { return strings.HasSuffix(d, "@"+im.Root) }) {
		return true
	}
	return slices.ContainsFunc(im.Platforms, func(p oci.Platform) bool {
		return held.ID == p.Config || held.ID == p.Manifest || p.Arch == n.Arch && len(p.DiffIDs) > 0 &&
			slices.Equal(p.DiffIDs, held.DiffIDs) && p.Created.Equal(held.Created)
	})
}

// among has a member give it that has it: the node that is asked before all others.
func (p *imagePull) among(ctx context.Context, all []wire.NodeImages, arches []string, why error) error {
	have := slices.DeleteFunc(all, func(n wire.NodeImages) bool { return len(n.Images) == 0 })
	slices.SortStableFunc(have, func(a, b wire.NodeImages) int {
		return cmp.Compare(first(b.ID == p.m.cfg.Self), first(a.ID == p.m.cfg.Self))
	})
	if len(have) == 0 {
		sentinel := wire.ErrNoImage
		switch {
		case errors.Is(why, oci.ErrOffline):
			sentinel = wire.ErrUnreachable
		case errors.Is(why, oci.ErrLogin):
			sentinel = wire.ErrDenied
		}
		return fmt.Errorf("%w: no machine has it, and %s asked: %w", sentinel, p.m.cfg.Host, why)
	}
	one := have[0].Images[0]
	p.keep(func(n wire.NodeImages) bool { return alike(n.Images[0], one) })
	var refused error
	for _, from := range have {
		if len(p.lack) == 0 {
			return nil
		}
		if !alike(from.Images[0], one) {
			continue
		}
		err := p.save(ctx, from, arches)
		if err == nil || ctx.Err() != nil {
			p.why = fmt.Sprintf("it comes from %s: %v", from.Host, why)
			return err
		}
		refused = errors.Join(refused, fmt.Errorf("%s has it: %w", from.Host, err))
	}
	return fmt.Errorf("%w; and %w", refused, why)
}

func alike(a, b wire.HeldImage) bool {
	return a.ID == b.ID || len(a.DiffIDs) > 0 && slices.Equal(a.DiffIDs, b.DiffIDs) && a.Created.Equal(b.Created)
}

// save has a member take it out of its engine.
func (p *imagePull) save(ctx context.Context, from wire.NodeImages, arches []string) (err error) {
	ask := wire.NodeImageSave{Ref: p.named.String(), User: p.c.User.Name, Arches: arches}
	var got wire.ImageSaved
	take := func(s wire.ImageSaved) error {
		got = s
		return nil
	}
	if from.ID == p.m.cfg.Self {
		err = p.m.saveImage(ctx, p.c, ask, take)
	} else {
		err = wire.NodeSaveImage.Call(ctx, p.m.cfg.Dial.Client(from.ID), ask, take)
	}
	if err == nil && (got.Manifest == nil || got.Image == nil) {
		err = fmt.Errorf("%w: it gave no image", wire.ErrUnreachable)
	}
	if err == nil {
		err = got.Manifest.Check()
	}
	if err == nil {
		p.source, p.image = from.ID, imageOf(wire.ModelOrder{Manifest: *got.Manifest, Image: got.Image})
	}
	return err
}

// registry opens an image's, with the user's login.
func (m *Models) registry(ctx context.Context, named reference.Named, id launcher.JobID, user string,
	login *launcher.SealedSecret) (*oci.Source, error) {
	cfg := oci.Config{Ref: named, UserAgent: "sparkrun/" + m.cfg.Version, Certs: "/etc/docker/certs.d"}
	if login != nil {
		var err error
		if cfg.Login, err = m.login(id, user, *login); err != nil {
			return nil, err
		}
	}
	e, err := m.engine(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s, which looks it up: %w", m.cfg.Host, err)
	}
	st, err := e.Storage(ctx)
	if err != nil {
		return nil, err
	}
	cfg.Insecure = st.Insecure(oci.Registry(named))
	return oci.Open(ctx, cfg)
}

func (m *Models) login(id launcher.JobID, user string, sealed launcher.SealedSecret) (l oci.Login, err error) {
	plain, err := m.cfg.Unseal(launcher.Spec{ID: id, User: user}, sealed)
	if err == nil && json.Unmarshal(plain, &l) != nil { // its error would quote it
		err = launcher.ErrInvalid
	}
	if err != nil {
		return l, fmt.Errorf("open the login: %w", err)
	}
	return l, nil
}
