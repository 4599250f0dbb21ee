package gateway

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/workloads"
)

// index is a View made ready for look-ups. It is never changed: the next view makes another.
type index struct {
	View
	models map[string][]*backend // by the names that services give, without aliases; by job
	// failed are the models whose service has failed, for who asks why; Backends and models are without those.
	failed map[string]rendezvous.Backend
	keys   map[[sha256.Size]byte]*key
}

// admits tells whether hosts other than this one may use the gateway.
func (x *index) admits() bool { return x.Gateway.Open || len(x.Gateway.Keys) > 0 }

// backend is a service, and what this member has under way with it.
type backend struct {
	rendezvous.Backend
	addr string // Addr as text
	load *load
}

// service is what users call it.
func (b *backend) service() string { return cmp.Or(b.Name, string(b.Job)) }

// load outlives the indexes.
type load struct {
	underWay atomic.Int64
	// unreached: its address was found not to answer, and was not reached since.
	unreached atomic.Bool
	use       use
}

// key is a key, and how much of its rate is used.
type key struct {
	rendezvous.GatewayKey
	name   string
	bucket *bucket
}

// lasting is what the next index takes over from the one before.
type lasting struct {
	mu      sync.Mutex
	loads   map[launcher.JobID]*load
	names   map[launcher.JobID][]string // of its models
	buckets map[[sha256.Size]byte]*bucket
}

func (l *lasting) index(v View) *index {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := &index{View: v, models: map[string][]*backend{}, failed: map[string]rendezvous.Backend{},
		keys: make(map[[sha256.Size]byte]*key, len(v.Gateway.Keys))}
	loads, names := make(map[launcher.JobID]*load, len(v.Backends)), make(map[launcher.JobID][]string, len(v.Backends))
	buckets := make(map[[sha256.Size]byte]*bucket, len(v.Gateway.Keys))
	x.Backends = slices.DeleteFunc(slices.Clone(v.Backends), rendezvous.Backend.Failed)
	for _, b := range v.Backends {
		if b.Failed() {
			for _, name := range b.Models {
				x.failed[name] = b
			}
			continue
		}
		at := l.loads[b.Job]
		if at == nil {
			at = &load{}
		}
		loads[b.Job] = at
		at.use.moves.Store(b.Moves)
		for _, name := range l.names[b.Job] { // its server lists adapters while it runs: who asks for one waits until then
			if !b.Ready && !slices.Contains(b.Models, name) {
				b.Models = append(slices.Clip(b.Models), name)
			}
		}
		names[b.Job] = b.Models
		one := &backend{Backend: b, addr: b.Addr.String(), load: at}
		for _, name := range b.Models {
			if !slices.Contains(x.models[name], one) {
				x.models[name] = append(x.models[name], one)
			}
		}
	}
	for name, k := range v.Gateway.Keys {
		b := l.buckets[k.Hash]
		if b == nil {
			b = &bucket{tokens: burst(k.Rate), at: time.Now()}
		}
		buckets[k.Hash] = b
		x.keys[k.Hash] = &key{GatewayKey: k, name: name, bucket: b}
	}
	l.loads, l.names, l.buckets = loads, names, buckets
	return x
}

// resolve gives the model that a name stands for, as its service calls it. A service's own name comes before an alias.
func (x *index) resolve(name string) (model string, ok bool) {
	if _, is := x.models[name]; is {
		return name, true
	}
	if _, model := x.Gateway.Alias(name); model != "" {
		if _, served := x.models[model]; served {
			return model, true
		}
		return model, false
	}
	return "", false
}

// names are all that a key may ask for, sorted: what services call their models, and aliases of those.
func (x *index) names(k *key) []string {
	var out []string
	for name := range x.models {
		if k.may(name) {
			out = append(out, name)
		}
	}
	for name, model := range x.Gateway.Aliases {
		_, own := x.models[name]
		if !own && x.models[model] != nil && k.may(name) && !strings.HasSuffix(name, "*") {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// near are the names that a client may have meant, the nearest first, three at most.
func near(asked string, names []string) []string {
	type hit struct {
		name string
		away int
	}
	var hits []hit
	low := strings.ToLower(asked)
	for _, name := range names {
		other := strings.ToLower(name)
		most := max(1, len(low)/3)
		away := most + 1
		if d := len(low) - len(other); d <= most && -d <= most {
			away = workloads.Distance(low, other)
		}
		if away > most && len(low) > 2 && (strings.Contains(other, low) || strings.Contains(low, other)) {
			away = most
		}
		if away <= most {
			hits = append(hits, hit{name, away})
		}
	}
	slices.SortStableFunc(hits, func(a, b hit) int { return a.away - b.away })
	var out []string
	for _, h := range hits[:min(3, len(hits))] {
		out = append(out, h.name)
	}
	return out
}

// unknown tells of a name that no service has.
func (x *index) unknown(asked string, k *key) *refusal {
	if len(asked) > valueLength {
		asked = asked[:valueLength]
	}
	_, model := x.Gateway.Alias(asked)
	if b, is := x.failed[cmp.Or(model, asked)]; is && x.mayAsk(k, asked) {
		return refuse(503, "", "model %s does not answer: its service %s has failed: %s; see `sparkrun service ls`",
			cmp.Or(model, asked), cmp.Or(b.Name, string(b.Job)), cmp.Or(b.Text, "no cause is known")).after(30 * time.Second)
	}
	if model != "" && x.mayAsk(k, asked) {
		return refuse(404, "model_not_found", "model %q is an alias of %q, which no service serves now: "+
			"start one, see `sparkrun service ls`", asked, model)
	}
	names := x.names(k)
	if like := near(asked, names); len(like) > 0 {
		return refuse(404, "model_not_found", "no service serves a model %.128q: did you mean %s?", asked, quoted(like))
	}
	switch {
	case len(names) == 0:
		return refuse(404, "model_not_found", "no service serves a model %.128q: none serves any", asked)
	case len(names) > 5:
		names = append(names[:5:5], "...")
	}
	return refuse(404, "model_not_found", "no service serves a model %.128q: there are %s; GET /v1/models lists all",
		asked, strings.Join(names, ", "))
}

func quoted(names []string) string {
	var b strings.Builder
	for i, n := range names {
		switch {
		case i > 0 && i == len(names)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(n)
	}
	return b.String()
}
