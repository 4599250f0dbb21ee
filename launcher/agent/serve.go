package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A service is looked at by the agent of rank 0's node from the start of its ranks to their
// end, under any leader and under none. It tells what it sees and ends nothing.

// How often, and for how long one answer is waited for.
const (
	lookSoon     = time.Second // before it has answered for the first time
	lookEvery    = 5 * time.Second
	healthWait   = 10 * time.Second
	metricsWait  = 5 * time.Second
	generateWait = 90 * time.Second
	generateEach = time.Minute
	answerMost   = 1 << 20          // bytes
	beatEvery    = 15 * time.Second // between two events that tell no more than other metrics
	wedgeBeat    = time.Minute      // between two that tell of a wedge again: a try may have become free
)

// watcher looks at one service.
type watcher struct {
	t    *try
	as   launcher.Assignment
	port string
	addr string // where it was found to answer
	sights
	toldAt time.Time
	asking sync.WaitGroup
	made   chan error // of the completion under way; nil: none is
	asked  time.Time
	model  string
}

// watch begins the looks, once, where the try is of a service and this is rank 0's node.
func (t *try) watch(ctx context.Context, beside *sync.WaitGroup) {
	as := t.assignment
	if as == nil || as.Spec.Service == nil || as.NodeRank != 0 || t.unwatch != nil || t.ending || t.entry.Phase != launcher.PhaseStarted {
		return
	}
	ctx, t.unwatch = context.WithCancel(ctx)
	w := &watcher{t: t, as: *as, model: as.Spec.Service.Model}
	w.generates = as.Spec.Service.Probe == launcher.ProbeGenerate
	if t.seen != nil { // by this agent's previous life
		w.seen = *t.seen
		if w.seen.State == launcher.ServiceWedged {
			w.frozen = wedgeAfter
		}
	}
	beside.Go(func() { w.run(ctx) })
}

// readSeen gives what a previous life of the agent has seen of a service; nil: nothing.
func readSeen(dir string) (*launcher.ServiceSeen, error) {
	var seen launcher.ServiceSeen
	err := readJSON(servicePath(dir), &seen)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return nil, err
	}
	return &seen, nil
}

func servicePath(dir string) string { return filepath.Join(dir, "service.json") }

func (w *watcher) run(ctx context.Context) {
	defer w.asking.Wait()
	own, err := readOwn(w.t.dir)
	if err == nil {
		w.port, err = servicePort(w.as, ports{port: readPort(w.t.dir), own: own, head: own})
	}
	if err != nil {
		w.t.a.cfg.Logger.Error("find the service's port", "job", w.as.Job, "error", err)
		return
	}
	for ctx.Err() == nil {
		w.look(ctx)
		wait := lookEvery
		if w.seen.Ready == nil {
			wait = lookSoon
		}
		pause(ctx, wait)
	}
}

// look asks the service once, and tells what has changed.
func (w *watcher) look(ctx context.Context) {
	v := w.as.Spec.Service
	found := sight{health: w.health(ctx)}
	if found.health == nil && v.Metrics != "" {
		found.metrics = w.metrics(ctx)
	} else if v.Metrics != "" && w.seen.Ready != nil { // its health may be slow, and its metrics tell why
		found.metrics = w.metrics(ctx)
	}
	found.blind = v.Metrics != "" && found.metrics == nil
	w.generate(ctx, found.metrics)
	if ctx.Err() != nil {
		return // it is being ended: what was seen on the way is of no account
	}
	now := time.Now()
	before := w.seen
	w.note(now, found)
	w.seen.Addr = w.addr
	turned := before.State != w.seen.State || before.Addr != w.seen.Addr || before.Text != w.seen.Text && w.seen.State != launcher.ServiceWedged
	switch {
	case turned:
		if err := writeJSON(servicePath(w.t.dir), w.seen); err != nil {
			w.t.a.cfg.Logger.Error("keep what was seen of the service", "job", w.as.Job, "error", err)
		}
	case now.Sub(w.toldAt) < beatEvery, !w.moved() && (w.seen.State != launcher.ServiceWedged || now.Sub(w.toldAt) < wedgeBeat):
		return
	}
	w.measure(now)
	w.toldAt = now
	w.t.served(w.seen)
}

// served tells what was seen of the service, and keeps it for leaders to come.
func (t *try) served(seen launcher.ServiceSeen) {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.entryMu.Lock()
	t.seen = &seen
	t.entryMu.Unlock()
	t.a.emit(launcher.Event{Key: t.key, Kind: launcher.Served, Service: &seen})
}

// servicePort is where the service answers on this node.
func servicePort(as launcher.Assignment, at ports) (string, error) {
	_, _, seat := as.Local(0)
	at.fill(&seat)
	return seat.Resolve(as.Spec.Service.Port)
}

// servicePublished is the service's port as the packet filter takes it; none where this is not
// rank 0's node, or the port is not known.
func servicePublished(as launcher.Assignment, at ports) []launcher.Ports {
	if as.Spec.Service == nil || as.NodeRank != 0 {
		return nil
	}
	text, err := servicePort(as, at)
	port, nerr := strconv.ParseUint(text, 10, 16)
	if err != nil || nerr != nil {
		return nil
	}
	return []launcher.Ports{{First: uint16(port), Last: uint16(port)}}
}

// hereAt are the addresses of this node at which a rank may listen: the one that the user has
// said, then management's, where clients come.
func hereAt(as launcher.Assignment, seat launcher.Seat) []string {
	said, unspecified6 := "", false
	if v := as.Spec.Service; v != nil && as.NodeRank == 0 {
		if at, err := netip.ParseAddr(v.Listen); err == nil && !at.IsUnspecified() {
			said = at.String()
		} else if err == nil {
			unspecified6 = at.Is6()
		}
	}
	var out []string
	all := []string{said, seat.Management, seat.Addr, "127.0.0.1"}
	if unspecified6 { // Python's asyncio then takes no IPv4
		all = append(all, "::1")
	}
	for _, a := range all {
		if a != "" && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// health looks for the service where it answered last, else at each address of this node.
func (w *watcher) health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	if w.addr != "" {
		if err := w.healthAt(ctx, w.addr); !errors.Is(err, errNoListener) {
			return err
		}
	}
	_, _, seat := w.as.Local(0)
	for _, host := range hereAt(w.as, seat) {
		addr := net.JoinHostPort(host, w.port)
		if err := w.healthAt(ctx, addr); !errors.Is(err, errNoListener) {
			w.addr = addr // whoever listens there is the one to ask
			return err
		}
	}
	return fmt.Errorf("%w on port %s", errNoListener, w.port)
}

var errNoListener = errors.New("nothing listens")

func (w *watcher) healthAt(ctx context.Context, addr string) error {
	v := w.as.Spec.Service
	if v.Health == "" {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return because(ctx, "a connection to "+addr, healthWait, err)
		}
		c.Close()
		return nil
	}
	res, err := ask(ctx, http.MethodGet, "http://"+addr+v.Health, nil)
	if err != nil {
		return because(ctx, "GET "+v.Health, healthWait, err)
	}
	defer res.Body.Close()
	if res.StatusCode > 399 {
		return fmt.Errorf("GET %s: it answers %s", v.Health, status(res))
	}
	return nil
}

// ask asks this machine, and nobody else.
func ask(ctx context.Context, method, url string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return direct.Do(req)
}

// because says in few words why there was no answer.
func because(ctx context.Context, what string, wait time.Duration, err error) error {
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: no answer within %s", what, wait)
	case op != nil && op.Op == "dial":
		return fmt.Errorf("%s: %w", what, errNoListener)
	}
	return fmt.Errorf("%s: the connection broke", what)
}

// metrics reads the server's; nil: there are none to be had.
func (w *watcher) metrics(ctx context.Context) *metrics {
	if w.addr == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, metricsWait)
	defer cancel()
	res, err := ask(ctx, http.MethodGet, "http://"+w.addr+w.as.Spec.Service.Metrics, nil)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil
	}
	return readMetrics(io.LimitReader(res.Body, metricsMost), w.t.a.cfg.Servers)
}

// generate asks for one token now and then, beside the looks: the server may be at work. A
// server that has requests shows by its metrics whether it generates.
func (w *watcher) generate(ctx context.Context, m *metrics) {
	if w.as.Spec.Service.Probe != launcher.ProbeGenerate || w.seen.Ready == nil {
		return
	}
	if w.made != nil {
		select {
		case w.generated = <-w.made:
			w.made = nil
		default:
		}
		return
	}
	if m != nil && m.running > 0 && w.frozen == 0 {
		w.generated = nil // it does, for somebody
	}
	if m != nil && m.running > 0 || time.Since(w.asked) < generateEach {
		return
	}
	made, addr := make(chan error, 1), w.addr
	w.made, w.asked = made, time.Now()
	w.asking.Go(func() { made <- w.complete(ctx, addr) })
}

// complete has the server generate one token.
func (w *watcher) complete(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, generateWait)
	defer cancel()
	if w.model == "" {
		var list struct{ Data []struct{ ID string } }
		if err := askJSON(ctx, http.MethodGet, "http://"+addr+"/v1/models", nil, &list); err != nil {
			return fmt.Errorf("the list of its models: %w", err)
		}
		if len(list.Data) == 0 {
			return errors.New("it names no model that could be asked")
		}
		w.model = list.Data[0].ID
	}
	body, err := json.Marshal(struct {
		Model     string `json:"model"`
		Prompt    string `json:"prompt"`
		MaxTokens int    `json:"max_tokens"`
	}{w.model, "1", 1})
	if err != nil {
		return err
	}
	var answer struct{ Choices []json.RawMessage }
	if err := askJSON(ctx, http.MethodPost, "http://"+addr+"/v1/completions", body, &answer); err != nil {
		return fmt.Errorf("a completion of one token: %w", err)
	}
	if len(answer.Choices) == 0 {
		return errors.New("a completion of one token: it is empty")
	}
	return nil
}

// errKept is of a server that wants a key, which is its users' alone.
var errKept = errors.New("it wants a key, and is not asked")

func askJSON(ctx context.Context, method, url string, body []byte, into any) error {
	res, err := ask(ctx, method, url, body)
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("no answer within %s", generateWait)
		}
		return errors.New("the connection broke")
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden:
		return errKept
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("it answers %s", status(res))
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, answerMost)).Decode(into); err != nil {
		return errors.New("its answer is not the JSON of one")
	}
	return nil
}
