// Package metrics is a member's /metrics, for Prometheus: its own, those of services' engines, and where both are.
//
// It decides what is told under which name and unit, and that what a machine does not tell is absent, never 0.
//
// It must not count anything, nor do anything between two questions: what it tells is what other parts know at that
// moment. Who may ask is the gateway's to decide, whose listener hands the requests over. Of an engine's metrics it
// must not change a byte.
package metrics

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/gossip"
	"github.com/sparkrun/sparkrun/rendezvous/lead"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a member's metrics. All of it is needed, but for MemoryFloor.
type Config struct {
	Self    launcher.NodeID
	Host    string
	Version string
	// Port is where each member's gateway listens.
	Port uint16
	// MemoryFloor is the memory guard's, in bytes; 0: there is no guard.
	MemoryFloor int64
	Proc        proc.FS
	Record      *rendezvous.Record
	// Members are all, by the newest list that this member has; Present those that gossip knows, the silent too.
	Members   func() []wire.Member
	Present   *rendezvous.Latest[[]gossip.Peer]
	Inventory *rendezvous.Latest[envgen.Inventory]
	Raft      Raft
	Sampler   Sampler
	Ranks     Ranks
}

// Raft is this member's part in it.
type Raft interface {
	Leader() launcher.NodeID // empty: none
	HasRecord() bool         // the record is replicated to this member
}

// Sampler reads the machine, once for all who ask within a second.
type Sampler interface {
	Scrape(context.Context) usage.Machine
	// Totals are what devices and interfaces had counted by then.
	Totals() (devices, interfaces map[string]map[string]uint64)
}

// Ranks are this member's.
type Ranks interface {
	Held() map[launcher.Key]int64 // bytes
	Guarded() int64
}

// Metrics answers.
type Metrics struct {
	cfg       Config
	leads     rendezvous.Latest[*Cluster] // nil: this member does not lead
	transport *http.Transport

	mu   sync.Mutex // of one reading at a time
	last []byte
	at   time.Time // of last
}

// Cluster is what the leader alone knows.
type Cluster struct {
	Jobs   func() []rendezvous.JobStatus
	Status func() (wire.Status, <-chan struct{})
	// Counts are of this leadership.
	Counts func() lead.Counts
}

// New makes it.
func New(cfg Config) *Metrics { return &Metrics{cfg: cfg, transport: newTransport()} }

// Lead has it tell of the cluster, too, until end.
func (m *Metrics) Lead(c Cluster) (end func()) {
	m.leads.Store(&c)
	return func() { m.leads.Store(nil) }
}

// Close lets connections to engines go.
func (m *Metrics) Close() { m.transport.CloseIdleConnections() }

const (
	own       = "/metrics"
	targets   = own + "/targets"
	ofService = own + "/services/"
)

// Serve answers a request that the gateway has let in.
func (m *Metrics) Serve(w http.ResponseWriter, r *http.Request, told gateway.Told) {
	job, is := strings.CutPrefix(r.URL.Path, ofService)
	switch {
	case r.URL.Path == own:
		write(w, contentType, m.read(r.Context(), told))
	case r.URL.Path == targets:
		b, err := json.Marshal(m.targets(told))
		if err != nil { // of strings: it cannot
			panic(err)
		}
		write(w, "application/json", append(b, '\n'))
	case is:
		m.relay(w, r, told, launcher.JobID(job))
	default:
		http.Error(w, "no such path; there are "+own+", "+targets+", "+ofService+"JOB", http.StatusNotFound)
	}
}

func write(w http.ResponseWriter, kind string, b []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.Write(b) //nolint:errcheck // the client is gone
}

// fresh is for how long an answer serves further questions: each reading asks the network cards' firmware.
const fresh = time.Second

// read gives this member's metrics.
func (m *Metrics) read(ctx context.Context, told gateway.Told) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Since(m.at) < fresh {
		return m.last
	}
	p := &page{}
	m.member(p, told)
	m.cluster(p, time.Now())
	requests(p, told.Counts())
	now := m.cfg.Sampler.Scrape(context.WithoutCancel(ctx)) // others may get the same answer
	m.memory(p, now.Memory)
	m.ranks(p, now)
	gpus(p, now.GPUs)
	m.fabric(p)
	agent(p)
	m.last, m.at = p.bytes(), time.Now()
	return m.last
}
