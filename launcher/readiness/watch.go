package readiness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A service is watched by the agent of rank 0's node from the start of its ranks to their
// end, under any leader or none. The watcher reports what it sees and ends nothing.

// How often, and how long one answer may take.
const (
	lookSoon     = time.Second // before its first answer
	lookEvery    = 5 * time.Second
	healthWait   = 10 * time.Second
	metricsWait  = 5 * time.Second
	generateWait = 90 * time.Second
	generateEach = time.Minute
	answerMost   = 1 << 20          // bytes
	beatEvery    = 15 * time.Second // between two events that only report metrics
	wedgeBeat    = time.Minute      // between two that report a wedge again: the job may have an attempt left by then
)

// Watcher watches one service.
type Watcher struct {
	Assignment launcher.Assignment
	Port       string // where it is to answer
	Servers    []launcher.Server
	// Tell is called with what was seen; turned: more than its metrics has changed.
	Tell func(seen launcher.ServiceSeen, turned bool)
	// Memory tells what its ranks here hold, in bytes, or nil; nil: nobody measures it.
	Memory func() *int64

	addr string // where it was found to answer
	history
	toldAt time.Time
	asking sync.WaitGroup
	made   chan error // result of the completion under way; nil: none is
	asked  time.Time
	listed time.Time // when its names were asked for
	model  string
}

// Run watches until ctx ends. before is what was seen earlier; nil: nothing.
func (w *Watcher) Run(ctx context.Context, before *launcher.ServiceSeen) {
	defer w.asking.Wait()
	w.model, w.generates = w.Assignment.Spec.Service.Model, w.Assignment.Spec.Service.Probe == launcher.ProbeGenerate
	if before != nil {
		w.seen = *before
		if w.seen.State == launcher.ServiceWedged {
			w.frozen = wedgeAfter
		}
	}
	for ctx.Err() == nil {
		w.look(ctx)
		wait := time.NewTimer(lookEvery)
		if w.seen.Ready == nil {
			wait.Reset(lookSoon)
		}
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
		}
	}
}

// look asks the service once, and reports changes.
func (w *Watcher) look(ctx context.Context) {
	v := w.Assignment.Spec.Service
	found := observation{health: w.health(ctx)}
	if found.health == nil && v.Metrics != "" {
		found.metrics = w.metrics(ctx)
	} else if v.Metrics != "" && w.seen.Ready != nil { // its health check may be slow, and its metrics show why
		found.metrics = w.metrics(ctx)
	}
	found.blind = v.Metrics != "" && found.metrics == nil
	w.generate(ctx, found.metrics)
	if ctx.Err() != nil {
		return // it is being ended: what was just seen does not count
	}
	now := time.Now()
	before := w.seen
	w.note(now, found)
	w.seen.Addr = w.addr
	if found.health == nil {
		w.seen.Models = w.names(ctx)
	}
	turned := before.State != w.seen.State || before.Addr != w.seen.Addr || before.Text != w.seen.Text &&
		w.seen.State != launcher.ServiceWedged || !slices.Equal(before.Models, w.seen.Models)
	switch {
	case turned, idle(before) != idle(w.seen): // who waits for the last request's end is told
	case now.Sub(w.toldAt) < beatEvery, !w.moved() &&
		(w.seen.State != launcher.ServiceWedged || now.Sub(w.toldAt) < wedgeBeat):
		return
	}
	w.measure(now)
	if w.Memory != nil && w.seen.Ready != nil {
		w.seen.Memory = w.Memory()
	}
	w.toldAt = now
	w.Tell(w.seen, turned)
}

// idle tells whether no request is under way.
func idle(s launcher.ServiceSeen) bool { return s.Running != nil && *s.Running == 0 }

// hereAt are the addresses of this node at which a rank may listen: the one that the user
// gave, then the management address, which clients use.
func hereAt(as launcher.Assignment, placement launcher.Placement) []string {
	said, unspecified6 := "", false
	if v := as.Spec.Service; v != nil && as.NodeRank == 0 {
		if at, err := netip.ParseAddr(v.Listen); err == nil && !at.IsUnspecified() {
			said = at.String()
		} else if err == nil {
			unspecified6 = at.Is6()
		}
	}
	var out []string
	all := []string{said, placement.Management, placement.Addr, "127.0.0.1"}
	if unspecified6 { // Python's asyncio then accepts no IPv4
		all = append(all, "::1")
	}
	for _, a := range all {
		if a != "" && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// health asks the service where it answered last, else at each address of this node.
func (w *Watcher) health(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	if w.addr != "" {
		if err := w.healthAt(ctx, w.addr); !errors.Is(err, errNoListener) {
			return err
		}
	}
	addr := w.locate(ctx)
	if addr == "" {
		return fmt.Errorf("%w on port %s", errNoListener, w.Port)
	}
	err := w.healthAt(ctx, addr)
	if !errors.Is(err, errNoListener) {
		w.addr = addr // this is the service's address
	}
	return err
}

// locate finds the first of this node's addresses at which the service listens; empty: at none. It begins with the last:
// a service that begins to listen on all of them meanwhile is not taken for one that has only those tried later.
func (w *Watcher) locate(ctx context.Context) (addr string) {
	_, _, placement := w.Assignment.Local(0)
	for _, host := range slices.Backward(hereAt(w.Assignment, placement)) {
		at := net.JoinHostPort(host, w.Port)
		if c, err := (&net.Dialer{}).DialContext(ctx, "tcp", at); err == nil {
			c.Close()
			addr = at
		}
	}
	return addr
}

var errNoListener = errors.New("nothing listens")

func (w *Watcher) healthAt(ctx context.Context, addr string) error {
	v := w.Assignment.Spec.Service
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
	if res.StatusCode > 299 {
		return fmt.Errorf("GET %s: it answers %s", v.Health, status(res))
	}
	return nil
}

// ask asks this machine, without proxy or redirect.
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

// because says briefly why there was no answer.
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

// metrics reads the server's metrics; nil: they could not be read.
func (w *Watcher) metrics(ctx context.Context) *metrics {
	if w.addr == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, metricsWait)
	defer cancel()
	res, err := ask(ctx, http.MethodGet, "http://"+w.addr+w.Assignment.Spec.Service.Metrics, nil)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil
	}
	return readMetrics(io.LimitReader(res.Body, metricsMost), w.Servers)
}

// generate asks for one token now and then, beside the looks, as the server may be busy.
// For a server that has requests its metrics show whether it generates.
func (w *Watcher) generate(ctx context.Context, m *metrics) {
	if w.Assignment.Spec.Service.Probe != launcher.ProbeGenerate || w.seen.Ready == nil {
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
		w.generated = nil // it generates, for another client
	}
	if m != nil && m.running > 0 || time.Since(w.asked) < generateEach {
		return
	}
	made, addr := make(chan error, 1), w.addr
	w.made, w.asked = made, time.Now()
	w.asking.Go(func() { made <- w.complete(ctx, addr) })
}

// complete makes the server generate one token.
func (w *Watcher) complete(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, generateWait)
	defer cancel()
	if w.model == "" {
		var list struct{ Data []struct{ ID string } }
		if err := askJSON(ctx, http.MethodGet, "http://"+addr+"/v1/models", nil, &list); err != nil {
			return fmt.Errorf("the list of its models: %w", err)
		}
		if len(list.Data) == 0 {
			return errors.New("it lists no model")
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

// errKept is for a server that wants an API key, which only its users have.
var errKept = errors.New("it requires an API key, and is not asked")

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
		return errors.New("its answer is not valid JSON")
	}
	return nil
}
