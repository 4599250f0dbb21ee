package gateway

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// request is a client's request on its way.
type request struct {
	r      *http.Request
	answer *answer
	began  time.Time
	route  *route
	path   string // of the engine's
	key    *key

	in     *incoming
	scan   scan
	head   []byte // what was read of the body
	whole  bool   // that is all of it
	kept   int64  // bytes that are accounted for
	length int64  // of the body that the engine gets; -1: not known
	form   bool   // the body is a form

	asked, model string // as the client says; as the service does
	start, end   int    // of the model's name in head
	session      string
	pin          *pin

	waits    time.Time // since when it waits; zero: it does not
	comments time.Time // when the next comment is due
	misses   []miss
	counter  *counter
	to       *backend // that was asked last
	watched  *watched
	broken   bool // the engine broke off
}

// missed is what became of the last connection to it; nil: none failed.
func (rq *request) missed(b *backend) *miss {
	for i := len(rq.misses) - 1; i >= 0; i-- {
		if m := &rq.misses[i]; m.job == b.Job && m.generation == b.Generation {
			return m
		}
	}
	return nil
}

// miss notes a connection that failed. The first one stays the first: by it patience is measured.
func (rq *request) miss(b *backend, err error, now time.Time) {
	if m := rq.missed(b); m != nil && m != &rq.misses[0] {
		m.at, m.err = now, err
		return
	}
	rq.misses = append(rq.misses, miss{b.Job, b.Generation, now, err})
}

// ServeHTTP answers one request.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	x := g.index.Load()
	a := &answer{ResponseWriter: w, rc: http.NewResponseController(w), form: formOf(r)}
	switch r.URL.Path {
	case "/":
		g.greet(a, r)
		return
	case "/health":
		a.WriteHeader(http.StatusOK)
		return
	}
	k, no := x.admit(r.Header, now)
	if no == nil {
		no = k.spend(now)
	}
	if no == nil && len(x.keys) == 0 && (g.crossing.Check(r) != nil || rebound(r)) {
		no = refuse(403, "", "a page of another site may not ask here: make a key with `sparkrun gateway key create`, or "+
			"have its server ask")
	}
	if no == nil && g.metrics(a, r, x, k) {
		return
	}
	if no == nil && g.models(a, r, x, k) {
		return
	}
	rq := &request{r: r, answer: a, began: now, key: k, length: r.ContentLength}
	rq.in = &incoming{body: r.Body, rc: a.rc}
	g.pass(1)
	defer func() { // also where an aborted answer panics
		g.pass(-1)
		rq.in.end()
		g.kept.Add(-rq.kept)
	}()
	if no == nil {
		no = g.routed(rq, x)
	}
	if no == nil {
		no = g.read(rq, x)
	}
	if no != nil {
		rq.drain()
		g.refuseEarly(a, k, no)
		return
	}
	g.handOn(rq)
}

// rebound tells of a browser's request to a name that its page chose: such a name may lead anywhere (DNS rebinding), so
// that the page counts as one of this site. Addresses, localhost and names without a dot are no page's to choose.
func rebound(r *http.Request) bool {
	if r.Header.Get("Sec-Fetch-Site") == "" && r.Header.Get("Origin") == "" {
		return false
	}
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err != nil && strings.Contains(host, ".")
}

// refuseEarly refuses a request of which no model is known.
func (g *Gateway) refuseEarly(a *answer, k *key, no *refusal) {
	c := g.counters.of("", k.label())
	c.requests.Add(1)
	c.errors.Add(1)
	a.fail(no)
}

// routed finds the route of a request's path and method.
func (g *Gateway) routed(rq *request, x *index) *refusal {
	r := rq.r
	rq.path = r.URL.Path
	if rq.route = routes[r.URL.Path]; rq.route != nil {
		if r.Method != http.MethodPost {
			rq.answer.Header().Set("Allow", http.MethodPost)
			return refuse(405, "", "%s takes POST, not %.16q", rq.path, r.Method)
		}
		return nil
	}
	id, is := keptAnswer(r)
	if !is {
		return unknownPath(r.URL.Path)
	}
	rq.route = keptRoute
	if rq.pin = g.pins.find(id); rq.pin == nil {
		rq.pin = x.only(id)
	}
	if rq.pin == nil || !x.mayAny(rq.key, rq.pin.model) {
		return unknownAnswer(id, g.cfg.Host)
	}
	rq.asked = rq.pin.model
	return nil
}

// handOn has a request answered by an engine.
func (g *Gateway) handOn(rq *request) {
	rq.counter = g.counters.of(rq.model, rq.key.label())
	rq.counter.requests.Add(1)
	rq.counter.underWay.Add(1)
	defer g.finish(rq)
	for {
		b, no := g.place(rq)
		if no != nil {
			g.give(rq, no)
			return
		}
		err := g.forward(rq, b)
		if err == nil {
			rq.answer.end()
			return
		}
		if rq.r.Context().Err() != nil {
			return
		}
		if no = rq.in.refused(); no != nil || errors.As(err, &no) { // it is the client's body, or no path of the engine's
			g.give(rq, no)
			return
		}
		var unreached unreachedError
		if !errors.As(err, &unreached) {
			if silent(err) {
				g.avoid(b)
			}
			g.sparing.Say(slog.LevelWarn, "engine gave no answer", string(b.Job), slog.String("job", string(b.Job)),
				slog.String("error", err.Error()))
			g.give(rq, noAnswer(rq, b, err))
			return
		}
		g.avoid(b)
		rq.miss(b, unreached.error, time.Now())
	}
}

// read reads the model and what else tells where the request goes, and whether its key may ask for it.
func (g *Gateway) read(rq *request, x *index) *refusal {
	if rq.route == keptRoute {
		rq.in.scan = nil
		rq.whole, rq.length, rq.model = true, 0, rq.asked // such requests have no body that says anything
		return nil
	}
	if no := g.readHead(rq); no != nil {
		return no
	}
	if !x.mayAsk(rq.key, rq.asked) {
		return refuse(403, "", "key %s may not ask for model %.128q: GET /v1/models lists what it may",
			rq.key.name, rq.asked)
	}
	if no, _ := x.stale(g.cfg.Host, time.Now()); no != nil {
		return no
	}
	model, ok := x.resolve(rq.asked)
	if !ok {
		return x.unknown(rq.asked, rq.key)
	}
	rq.model = model
	if rq.session = rq.r.Header.Get("X-Session-Id"); rq.session == "" {
		if rq.session = rq.scan.cacheKey; rq.session == "" {
			rq.session = rq.scan.user
		}
	}
	if id := rq.scan.previous; id != "" && rq.route.previous {
		if rq.pin = g.pins.find(id); rq.pin == nil && len(x.models[model]) > 1 {
			return unknownAnswer(id, g.cfg.Host)
		}
	}
	rq.rename()
	return nil
}

// give tells a client why there is no answer, or nothing where it is gone.
func (g *Gateway) give(rq *request, no *refusal) {
	if no != errGone {
		rq.drain()
		rq.answer.fail(no)
	}
}

func (rq *request) drain() {
	if bad := rq.in.refused(); !rq.whole && bad == nil || bad != nil && bad.status == http.StatusBadRequest {
		rq.in.drain()
	}
}

// finish counts what a request came to. It runs also where an aborted answer panics.
func (g *Gateway) finish(rq *request) {
	c := rq.counter
	c.underWay.Add(-1)
	if rq.broken || rq.answer.status >= http.StatusBadRequest {
		c.errors.Add(1)
	}
	w := rq.watched
	if w == nil {
		return
	}
	if w.tail != nil {
		in, out := usage(w.head, w.tail.bytes())
		c.tokensIn.Add(in)
		c.tokensOut.Add(out)
	}
	if rq.route.previous && rq.answer.status < http.StatusBadRequest {
		if m := answerID().FindSubmatch(w.head); m != nil {
			g.pins.note(pin{string(m[1]), rq.to.Job, rq.to.Generation, rq.model})
		}
	}
}
