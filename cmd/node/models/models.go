// Package models is a node's part in models: it fetches what it is ordered to, hands on to other members what it has,
// and tells, verifies and removes what there is.
//
// It decides in which order a model goes through the nodes, from whom each takes a file, and what is kept of an order
// so that a node goes on with it after its agent was killed. A pull needs no leader, and is in no record: the agent
// that was asked gives each node its order, and then only watches.
//
// It must not know a file's layout on the disk (launcher/filesync/modelcache), how bytes go from node to node
// (launcher/filesync/relay), or how the Hub is asked (launcher/filesync/hub): it joins them. A token is open in memory
// only.
package models

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/filesync/relay"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a node's part. All of it is needed, but for Readers and Endpoint.
type Config struct {
	Self launcher.NodeID
	Host string
	// Dir is the cache, Orders the folder in which orders are kept.
	Dir, Orders string
	// Readers are those who may read the cache; nil: everybody.
	Readers *modelcache.Readers
	// Images is the folder for images' contents on their way; Engine the socket of the container engine, empty: none.
	Images, Engine string
	// Allow applies the administrator's rules for images.
	Allow func(context.Context, container.Wish) error
	// Endpoint is the Hub; empty: the public one. Users cannot choose it: what comes from another one would be taken
	// for the Hub's by everybody.
	Endpoint string
	Version  string
	Dial     *dial.Dialer
	Everyone wire.Everyone
	// Unseal opens a sealed token; the spec has the order's id and user.
	Unseal func(launcher.Spec, launcher.SealedSecret) ([]byte, error)
	// Reserve is how much of a disk of that size is not for models, in bytes.
	Reserve func(total int64) int64
	Logger  *slog.Logger
}

const (
	// chunksInMemory bounds what the files of a pull have in memory: each takes 16 MiB. An agent with one pull stays
	// below 100 MB. Each pull has its own, so that a slow one holds up no other.
	chunksInMemory = 2
	pullsAtOnce    = 4
	// filesAtOnce is how many files of an order are under way: small ones wait for answers most of the time.
	filesAtOnce = 3
	// heldOpen bounds the files that are open because others read them, heldFor how long they stay so.
	heldOpen = 64
	heldFor  = 30 * time.Second
)

// Models is a node's part.
type Models struct {
	cfg     Config
	cache   *modelcache.Cache
	images  *modelcache.Cache
	slots   chan struct{} // of pulls under way
	begun   chan *pull
	resumed []*pull // whose orders were kept

	mu      sync.Mutex
	pulls   map[string]*pull // by the repository and its commit
	under   map[string]*relay.File
	held    map[string]*heldFile
	clients map[launcher.NodeID]*http.Client

	unheard  unheard   // the Hub, from here
	imagesAt time.Time // when an image's contents were used last
	sweeps   bool      // sweep is armed
	sweep    *time.Timer
}

// Open opens the cache, and reads the orders that were not done. Run goes on with them.
func Open(cfg Config) (*Models, error) {
	cache, err := modelcache.Open(modelcache.Config{Dir: cfg.Dir, Reserve: cfg.Reserve, Private: true})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(cache.Admit(cfg.Readers), cache.Sweep()); err != nil {
		return nil, errors.Join(err, cache.Close())
	}
	images, err := modelcache.Open(modelcache.Config{Dir: cfg.Images, Reserve: cfg.Reserve, DirMode: 0o700, FileMode: 0o600,
		Private: true})
	if err != nil {
		return nil, errors.Join(err, cache.Close())
	}
	m := &Models{cfg: cfg, cache: cache, images: images, sweep: time.NewTimer(imagesFor),
		slots: make(chan struct{}, pullsAtOnce), begun: make(chan *pull),
		pulls: map[string]*pull{}, under: map[string]*relay.File{}, held: map[string]*heldFile{},
		clients: map[launcher.NodeID]*http.Client{}}
	if err := m.readOrders(); err != nil {
		return nil, errors.Join(err, cache.Close(), images.Close())
	}
	if held, err := images.List(); err == nil && len(held) == 0 {
		m.sweep.Stop()
	} else {
		m.sweeps, m.imagesAt = true, time.Now()
	}
	return m, nil
}

// Calls are the procedures that it answers.
func (m *Models) Calls() []wire.Call {
	return append(slices.Concat(wire.Models.Serve(m.list), wire.Images.Serve(m.listImages)),
		wire.ModelPull.Serve(m.pull), wire.ModelVerify.Serve(m.verify), wire.ModelRemove.Serve(m.remove),
		wire.ModelAdd.Serve(m.add),
		wire.NodeModel.Serve(m.take), wire.NodeModelProgress.Serve(m.progress), wire.NodeModelManifest.Serve(m.manifest),
		wire.NodeModelAsk.Serve(m.askHub),
		wire.NodeModelVerify.Serve(m.nodeVerify), wire.NodeModelRemove.Serve(m.nodeRemove),
		wire.ImagePull.Serve(m.pullImage), wire.NodeSaveImage.Serve(m.saveImage),
	)
}

// Run fetches what was ordered. What is not done when ctx ends is gone on with by the next agent.
func (m *Models) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	fetch := func(p *pull) {
		g.Go(func() error {
			m.fetch(ctx, p)
			return nil
		})
	}
	for _, p := range m.resumed {
		fetch(p)
	}
	for {
		select {
		case p := <-m.begun:
			fetch(p)
		case <-m.sweep.C:
			m.dropImages()
		case <-ctx.Done():
			return errors.Join(g.Wait(), context.Cause(ctx))
		}
	}
}

// Close closes what others read, and the cache. Run must have ended.
func (m *Models) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.held {
		m.letGo(key)
	}
	for _, c := range m.clients {
		c.CloseIdleConnections()
	}
	m.sweep.Stop()
	if err := errors.Join(m.cache.Close(), m.images.Close()); err != nil {
		m.cfg.Logger.Error("close model cache", "error", err)
	}
}

// cacheOf is where a repository's files are kept.
func (m *Models) cacheOf(r modelcache.Repo) *modelcache.Cache {
	if r.Type == modelcache.Image {
		return m.images
	}
	return m.cache
}

// client reads a member's files, over all fabric routes to it.
func (m *Models) client(id launcher.NodeID) *http.Client {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.clients[id] == nil {
		m.clients[id] = relay.NewClient(func(ctx context.Context, k int) (net.Conn, error) {
			return m.cfg.Dial.DialFabric(ctx, string(id), dial.Bulk, k)
		})
	}
	return m.clients[id]
}
