package models

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/oci"
	"github.com/sparkrun/sparkrun/launcher/filesync/relay"
	"github.com/sparkrun/sparkrun/launcher/preflight"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// imagesFor is how long contents are kept after they were last used: a machine that was away may come for them. The
// engine has its own copy.
const imagesFor = 10 * time.Minute

// enginesShare is how much an engine may take for an image, in sizes of its contents: the contents, and what they
// unpack to. It is a guess: how well layers are packed is not known before.
const enginesShare = 3

// mayTake refuses an image's order that this node cannot do.
func (m *Models) mayTake(ctx context.Context, o wire.ModelOrder) error {
	if _, err := oci.ParseRef(o.Image.Ref); err != nil {
		return fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	}
	if err := m.allowImage(ctx, o.User, o.Image.Ref); err != nil {
		return err
	}
	e, err := m.engine(ctx)
	if err != nil {
		return err
	}
	st, err := e.Storage(ctx)
	if err != nil {
		return err
	}
	need := enginesShare * o.Manifest.Bytes()
	if oneDisk(st.Root, m.cfg.Images) {
		need += o.Manifest.Bytes()
	}
	if free := preflight.FreeAbove(st.Root); free != nil && *free < need {
		return fmt.Errorf("%w: %s, where its Docker keeps images, has %s free, and %s may take %s: `docker system df` "+
			"says what takes it, `docker image prune` frees some", modelcache.ErrRoom, st.Root, launcher.Size(*free),
			o.Image.Ref, launcher.Size(need))
	}
	return nil
}

func oneDisk(a, b string) bool {
	var sa, sb unix.Stat_t
	return unix.Stat(a, &sa) == nil && unix.Stat(b, &sb) == nil && sa.Dev == sb.Dev
}

// bringImage has the engine pull an image from this node, and fetches each content when the engine asks for it: what it
// has of other images it does not ask for. A content is handed to it while it arrives.
func (m *Models) bringImage(ctx context.Context, p *pull) (id string, err error) {
	o := p.order
	lease, err := m.images.Hold(imageRepo)
	if err != nil {
		return "", err
	}
	defer lease.Drop()
	defer m.imagesUsed()
	if _, err := m.awaitEngine(ctx); err != nil {
		return "", err
	}
	outside := func(modelcache.File) openOutside { return nil }
	if o.Outside {
		named, err := oci.ParseRef(o.Image.Ref)
		if err != nil {
			return "", err
		}
		src, err := m.registry(ctx, named, o.ID, o.User, o.Token)
		if err != nil {
			return "", err
		}
		defer src.Close()
		outside = func(f modelcache.File) openOutside { return fromRegistry(src, blobOf(o, f)) }
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w := &wanted{m: m, p: p, outside: outside, on: presences(o),
		begun: map[string]bool{}, ctx: ctx, fail: cancel}
	at, err := oci.Serve(imageOf(o), w.open)
	if err != nil {
		cancel(nil)
		return "", err
	}
	defer at.Close()
	id, err = m.engineTakes(ctx, p, at)
	if err != nil {
		if ctx.Err() != nil { // what could not be fetched says more than the engine
			err = context.Cause(ctx)
		}
		cancel(err)
	}
	w.end() // what has come is kept for others
	cancel(nil)
	return id, err
}

func blobOf(o wire.ModelOrder, f modelcache.File) oci.Blob {
	b := oci.Blob{SHA256: f.SHA256, Size: f.Size}
	b.Type = o.Image.Types[b.Digest()]
	return b
}

func fromRegistry(src *oci.Source, b oci.Blob) openOutside {
	return func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
		body, err := src.OpenBlob(ctx, b, off, n)
		for _, final := range []error{oci.ErrNoImage, oci.ErrLogin, oci.ErrNoRange} {
			if errors.Is(err, final) {
				return nil, fmt.Errorf("%w: %w", relay.ErrGone, err)
			}
		}
		return body, err
	}
}

// wanted are the contents that the engine asks for.
type wanted struct {
	m       *Models
	p       *pull
	outside func(modelcache.File) openOutside
	on      map[launcher.NodeID]*presence
	ctx     context.Context //nolint:containedctx // of the order: a content is fetched also when its reader goes
	fail    context.CancelCauseFunc

	mu    sync.Mutex
	begun map[string]bool
	queue []int // large contents, by their place in the manifest
	turns bool  // inTurn runs
	over  bool
	under sync.WaitGroup
}

// findAgain is how often it is looked whether a content has begun to come.
const findAgain = 50 * time.Millisecond

// open gives the engine a content, from here or while it arrives.
func (w *wanted) open(ctx context.Context, b oci.Blob, off, n int64) (io.ReadCloser, error) {
	i := slices.IndexFunc(w.p.order.Manifest.Files, func(f modelcache.File) bool { return f.SHA256 == b.SHA256 })
	if i < 0 {
		return nil, fmt.Errorf("read %s: %w", b.Digest(), modelcache.ErrAbsent)
	}
	f := w.p.order.Manifest.Files[i]
	for {
		src, err := w.m.find(keyOf(imageRepo, f))
		if err == nil {
			return src.Open(ctx, off, n)
		}
		w.begin(i)
		for _, ctx := range []context.Context{w.ctx, ctx} {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
		}
		if err := sleep(ctx, findAgain); err != nil {
			return nil, err
		}
	}
}

// begin has a content fetched, once: small ones at once, large ones one after the other. Several at once would each be
// slower, and so would be their chunks on the way through the chain; and an engine unpacks layers in order.
func (w *wanted) begin(i int) {
	f := w.p.order.Manifest.Files[i]
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun[f.SHA256] || w.over {
		return
	}
	w.begun[f.SHA256] = true
	w.p.update(func() { w.p.state = wire.ModelFetches })
	if f.Size <= relay.ChunkBytes {
		w.under.Go(func() { w.fetch(f) })
		return
	}
	w.queue = append(w.queue, i)
	if !w.turns {
		w.turns = true
		w.under.Go(w.inTurn)
	}
}

// asksAtOnce is within what time an engine asks for as many contents as it takes at once.
const asksAtOnce = 100 * time.Millisecond

// lastChunks is how much of a content is still to come when the next one is begun: it is on its way by then.
const lastChunks = relay.ChunkBytes

// inTurn fetches large contents, the first of the manifest first: so all nodes of a chain fetch the same one. The next
// one is begun when the end of the last one is on its way.
func (w *wanted) inTurn() {
	for sleep(w.ctx, asksAtOnce) == nil {
		w.mu.Lock()
		if len(w.queue) == 0 || w.over {
			w.turns = false
			w.mu.Unlock()
			return
		}
		slices.Sort(w.queue)
		f := w.p.order.Manifest.Files[w.queue[0]]
		w.queue = w.queue[1:]
		w.mu.Unlock()
		over := make(chan struct{})
		w.under.Go(func() {
			defer close(over)
			w.fetch(f)
		})
		for w.m.lacks(f) > lastChunks {
			select {
			case <-over:
			case <-time.After(findAgain):
				continue
			}
			break
		}
	}
}

// lacks is how much of a content is still to come.
func (m *Models) lacks(f modelcache.File) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	if under := m.under[keyOf(imageRepo, f)]; under != nil {
		return f.Size - under.Have()
	}
	return f.Size // it has not begun, or has ended
}

func (w *wanted) fetch(f modelcache.File) {
	turn := slices.Index(w.p.order.Manifest.Files, f)
	err := w.m.file(w.ctx, w.p, turn, f, w.m.chain(w.p.order, imageRepo, f, w.on), w.outside(f))
	if err != nil {
		w.fail(fmt.Errorf("%s: %w", f.Path, err))
	}
}

func (w *wanted) end() {
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.under.Wait()
}

const (
	// engineTries is how often the engine may give up before its word counts: it may have been restarted.
	engineTries = 5
	// engineWithin is how long an engine is waited for: after a boot it may come later than this agent.
	engineWithin = time.Minute
)

func (m *Models) awaitEngine(ctx context.Context) (*container.Engine, error) {
	for began := time.Now(); ; {
		e, err := m.engine(ctx)
		if !errors.Is(err, container.ErrNoEngine) || m.cfg.Engine == "" || time.Since(began) > engineWithin {
			return e, err
		}
		if err := sleep(ctx, time.Second); err != nil {
			return nil, err
		}
	}
}

// engineTakes has the engine pull, and gives the image its name.
func (m *Models) engineTakes(ctx context.Context, p *pull, at *oci.Endpoint) (id string, err error) {
	o := p.order
	var e *container.Engine
	for try := 1; ; try++ {
		if e, err = m.awaitEngine(ctx); err != nil {
			return "", err
		}
		err = e.PullHere(ctx, at.Reference(), func() {
			p.update(func() {
				if len(p.under) == 0 {
					p.state = wire.ModelUnpacks
				}
			})
		})
		if err == nil {
			break
		}
		if ctx.Err() != nil || try == engineTries || strings.Contains(err.Error(), "no space left") {
			return "", err
		}
		m.cfg.Logger.Info("engine asked again", "image", o.Image.Ref, "error", err)
		if err := sleep(ctx, time.Second); err != nil {
			return "", err
		}
	}
	defer func() { // the name under the secret is nobody's: it would keep the image for ever
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), untagWithin)
		defer cancel()
		err = errors.Join(err, e.Untag(ctx, at.Reference()))
	}()
	named, err := oci.ParseRef(o.Image.Ref)
	if err != nil {
		return "", err
	}
	if tagged, ok := named.(reference.Tagged); ok {
		if err := e.Tag(ctx, at.Reference(), reference.TrimNamed(named).Name(), tagged.Tag()); err != nil {
			return "", err
		}
	} else if err := m.nameByDigest(ctx, e, o, named); err != nil { // an engine has such a name by a pull only
		return "", err
	}
	im, err := e.Stored(ctx, named.String())
	if err != nil {
		return "", err
	}
	return im.ID, nil
}

// untagWithin bounds how long an engine takes to forget a name.
const untagWithin = 10 * time.Second

// nameByDigest has the engine look the image up in its registry, whose contents it has by now: it does not take a name
// with a digest from anybody else.
func (m *Models) nameByDigest(ctx context.Context, e *container.Engine, o wire.ModelOrder, named reference.Named) error {
	auth := ""
	if o.Token != nil {
		login, err := m.login(o.ID, o.User, *o.Token)
		if err != nil {
			return err
		}
		auth = container.LoginOf(oci.Registry(named), login.Username, login.Password, login.RefreshToken)
	}
	if err := e.Pull(ctx, named.String(), auth, func(container.Progress) {}); err != nil {
		return fmt.Errorf("all of it is here, but only %s itself can give the name %s: %w", oci.Registry(named),
			o.Image.Ref, err)
	}
	return nil
}

// A marker stays until contents are removed: who follows the order may ask after the agent has ended.
const takenExt = ".taken"

func (m *Models) markTaken(o wire.ModelOrder, id string) {
	if err := durable.Write(filepath.Join(m.cfg.Orders, string(o.ID)+takenExt), []byte(id), 0o600); err != nil {
		m.cfg.Logger.Error("keep what was taken", "image", o.Image.Ref, "error", err)
	}
}

func (m *Models) wasTaken(id launcher.JobID) (image string, is bool) {
	text, err := os.ReadFile(filepath.Join(m.cfg.Orders, string(id)+takenExt))
	return string(text), err == nil
}

// saveImage takes an image out of this node's engine: its contents are handed on like any others.
func (m *Models) saveImage(ctx context.Context, _ wire.Caller, r wire.NodeImageSave,
	send func(wire.ImageSaved) error) error {
	if err := m.allowImage(ctx, r.User, r.Ref); err != nil {
		return err
	}
	e, err := m.engine(ctx)
	if err != nil {
		return err
	}
	lease, err := m.images.Hold(imageRepo)
	if err != nil {
		return err
	}
	defer lease.Drop()
	m.imagesUsed()
	defer m.imagesUsed()
	body, err := e.Save(ctx, r.Ref)
	if err != nil {
		return err
	}
	defer body.Close()
	var have int64
	told := time.Now()
	im, err := oci.Unpack(ctx, body, r.Arches, func(b oci.Blob, in io.Reader) error {
		have += b.Size
		if time.Since(told) > progressEvery {
			told = time.Now()
			if err := send(wire.ImageSaved{Have: have}); err != nil {
				return err
			}
		}
		return m.keepBlob(ctx, b, in)
	}, func(b oci.Blob) ([]byte, error) {
		blob, err := m.images.OpenBlob(imageRepo, fileOf(b))
		if err != nil {
			return nil, err
		}
		defer blob.Close()
		text := make([]byte, b.Size)
		_, err = blob.ReadAt(text, 0)
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return text, err
	})
	if err != nil {
		return fmt.Errorf("save image %s: %w", r.Ref, err)
	}
	x, o := imageOrder(r.Ref, im)
	return send(wire.ImageSaved{Have: have, Manifest: &x, Image: o})
}

func fileOf(b oci.Blob) modelcache.File {
	return modelcache.File{Path: "blobs/sha256/" + b.SHA256, Size: b.Size, SHA256: b.SHA256}
}

// keepBlob keeps a content, verified.
func (m *Models) keepBlob(ctx context.Context, b oci.Blob, in io.Reader) error {
	f := fileOf(b)
	if blob, err := m.images.OpenBlob(imageRepo, f); err == nil {
		return blob.Close()
	}
	part, err := m.images.Begin(imageRepo, f)
	for errors.Is(err, modelcache.ErrBusy) { // another pull saves it at this moment
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
		if blob, err := m.images.OpenBlob(imageRepo, f); err == nil {
			return blob.Close()
		}
		part, err = m.images.Begin(imageRepo, f)
	}
	if err != nil {
		return err
	}
	defer part.Close()
	if _, err := io.CopyN(io.Discard, in, part.Prefix()); err != nil {
		return err
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{part}, in, make([]byte, 1<<20)); err != nil {
		return err
	}
	return part.Finish(false)
}

// imagesUsed puts off the removal of contents.
func (m *Models) imagesUsed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.imagesAt = time.Now()
	if !m.sweeps {
		m.sweeps = true
		m.sweep.Reset(imagesFor)
	}
}

// dropImages removes contents that nobody has used for a while.
func (m *Models) dropImages() {
	m.mu.Lock()
	m.sweeps = false
	used := time.Since(m.imagesAt) < imagesFor
	for key, p := range m.pulls {
		if p.order.Image == nil {
			continue
		}
		if p.ended() {
			delete(m.pulls, key)
		} else {
			used = true
		}
	}
	m.mu.Unlock()
	if !used {
		err := m.images.Remove(imageRepo, "")
		if err == nil || errors.Is(err, modelcache.ErrAbsent) {
			m.forgetTaken()
			return
		}
		m.cfg.Logger.Info("contents of images are kept a while longer", "error", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sweeps = true
	m.sweep.Reset(imagesFor)
}

func (m *Models) forgetTaken() {
	marks, _ := filepath.Glob(filepath.Join(m.cfg.Orders, "*"+takenExt))
	for _, at := range marks {
		if err := os.Remove(at); err != nil {
			m.cfg.Logger.Error("remove what was taken", "file", at, "error", err)
		}
	}
}
