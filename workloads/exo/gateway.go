package exo

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// gateway is in front of the API of an exo of several nodes: it has the model placed, says
// at /health whether it answers, and passes all other requests on.
type gateway struct {
	api      url.URL // exo's own, on this node
	nodes    int
	sharding string
	model    string       // empty: whoever uses it places one
	network  netip.Prefix // on which the parts of the model meet; zero: as exo has it
	client   http.Client
	out      io.Writer
	// every and slow are the time between two looks: until it is ready, and then.
	every, slow time.Duration

	health  atomic.Pointer[string] // why it does not answer; empty: it does
	told    string
	was     bool   // it has been ready
	refused int    // placements in a row
	failed  string // what one of the parts has said that failed, since it was ready last
}

// GatewayCommand is the command of sparkrun that stands before exo's API: rank 0's node runs it as a
// rank, with the address and the port that clients know, exo's own port, the number of nodes, how
// the model is cut, and the model. It is not for people.
const GatewayCommand = "exo-gateway"

// How exo cuts a model (exo/shared/types/worker/shards.py, Sharding).
const (
	Pipeline = "Pipeline"
	Tensor   = "Tensor"
)

// Bounds for the gateway.
const (
	answerWait  = 10 * time.Second // for an answer of exo's
	maxState    = 64 << 20         // bytes of one
	maxRefusals = 5                // placements that are refused until the gateway gives up
)

// GatewayMain is the whole of `sparkrun exo-gateway HOST PORT API NODES SHARDING MODEL`; it
// gives the exit code.
func GatewayMain(args []string) int {
	if err := runGateway(context.Background(), args); err != nil {
		fmt.Fprintln(os.Stderr, "sparkrun:", err)
		return launcher.ExitOwnFailure
	}
	return 0
}

func runGateway(ctx context.Context, args []string) error {
	if len(args) != 6 {
		return fmt.Errorf("%s: this is a part of `sparkrun launch exo`, and nothing by itself", GatewayCommand)
	}
	nodes, err := strconv.Atoi(args[3])
	if err != nil {
		return fmt.Errorf("read number of nodes: %w", err)
	}
	g := &gateway{
		api:   url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", args[2])},
		nodes: nodes, sharding: args[4], model: args[5],
		client: http.Client{Timeout: answerWait, Transport: &http.Transport{DisableKeepAlives: true}},
		out:    os.Stdout, every: time.Second, slow: 5 * time.Second,
	}
	if g.network, err = networkOf(os.Getenv("SPARKRUN_ADDR")); err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(args[0], args[1]))
	if err != nil {
		return fmt.Errorf("listen for clients: %w", err)
	}
	return g.run(ctx, l)
}

// networkOf is the network of one of this node's addresses; zero: no interface has it.
func networkOf(text string) (netip.Prefix, error) {
	own, err := netip.ParseAddr(text)
	if err != nil { // nobody has said it
		return netip.Prefix{}, nil //nolint:nilerr // see above
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("read this node's addresses: %w", err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == own.Unmap() {
			return p.Masked(), nil
		}
	}
	return netip.Prefix{}, nil
}

// unanswered answers in exo's stead.
func unanswered(w http.ResponseWriter, r *http.Request, _ error) {
	if r.Context().Err() != nil { // the client has gone
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusBadGateway)
	io.WriteString(w, `{"error":"exo's API does not answer"}`+"\n") //nolint:errcheck // nobody is left to tell
}

// run serves until it fails, or ctx ends.
func (g *gateway) run(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g.say("exo has not answered yet")
	proxy := httputil.NewSingleHostReverseProxy(&g.api)
	// exo closes a connection that has been idle for 5 s (Hypercorn), and a POST on one that it is closing is lost.
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	proxy.FlushInterval = -1 // tokens as they come
	proxy.ErrorHandler = unanswered
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	mux := http.NewServeMux()
	mux.Handle("/", proxy)
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if why := *g.health.Load(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
		}
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 30 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	tended := make(chan error, 1)
	go func() { tended <- g.tend(ctx) }()
	select {
	case err := <-served:
		cancel()
		return errors.Join(fmt.Errorf("serve clients: %w", err), <-tended)
	case err := <-tended:
		server.Close()
		if e := <-served; !errors.Is(e, http.ErrServerClosed) {
			err = errors.Join(err, e)
		}
		return err
	}
}

// tend watches the model until ctx ends. A placement that is refused before the model was ready
// once is an error, and so is a part that failed until exo gave the model up: --restart counts
// these. What is lost otherwise is placed again.
func (g *gateway) tend(ctx context.Context) error {
	for {
		why, err := g.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // nobody waits any more
		case err != nil && (!g.was || g.failed != ""):
			return err
		case err != nil:
			why = err.Error()
		}
		g.say(why)
		wait := g.every
		if why == "" {
			g.was, wait = true, g.slow
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// say stores what is awaited, and prints it when it has changed.
func (g *gateway) say(why string) {
	g.health.Store(&why)
	news := why
	switch {
	case why == "" && g.model == "":
		news = "all machines have found each other"
	case why == "":
		news = g.model + " is ready"
	}
	if news != g.told {
		g.told = news
		fmt.Fprintln(g.out, "exo: "+news)
	}
}

// look finds out what is awaited; empty: nothing. An error says that waiting is useless.
func (g *gateway) look(ctx context.Context) (why string, err error) {
	var s State
	if status, body, err := g.ask(ctx, http.MethodGet, "/state", nil, nil); err != nil || status != http.StatusOK {
		return "exo's API does not answer", nil //nolint:nilerr // it comes, or exo ends
	} else if err := json.Unmarshal(body, &s); err != nil {
		return "", fmt.Errorf("read exo's state: %w; this is written for exo 1.0.71", err)
	}
	p := s.Progress()
	switch {
	case p.Ready:
		g.failed = ""
		return "", nil
	case p.Placed:
		g.failed = cmp.Or(p.Failed, g.failed)
		return strings.Join(p.Lines, "; "), nil
	case g.failed != "":
		return "", fmt.Errorf("exo has given the model %s up: %s", g.model, g.failed)
	}
	if why := s.Waits(g.nodes); why != "" || g.model == "" {
		return why, nil
	}
	return g.place(ctx, s)
}

// place asks exo where it would have the model, and has it there.
func (g *gateway) place(ctx context.Context, s State) (why string, err error) {
	query := url.Values{"model_id": {g.model}, "sharding": {g.sharding}, "instance_meta": {"MlxRing"},
		"min_nodes": {strconv.Itoa(g.nodes)}}
	status, body, err := g.ask(ctx, http.MethodGet, "/instance/placement", query, nil)
	if err == nil && status == http.StatusOK {
		if body, err = Place(body, s, g.network); err != nil {
			return "", err
		}
		status, body, err = g.ask(ctx, http.MethodPost, "/instance", nil, body)
	}
	switch {
	case err != nil: // it is busy, or ends
		return "exo gives no answer about the model", nil //nolint:nilerr // see above
	case status == http.StatusOK:
		g.refused = 0
		return "exo is told to place the model", nil
	case status == http.StatusInternalServerError:
		// it looks for what it does not know on Hugging Face, and fails without a word
		why = "exo does not take the model " + g.model + ": its output says why: there may be none of this name, or no " +
			"way to Hugging Face"
	default:
		why = "exo does not take the model " + g.model + ": " + Reason(body)
	}
	if g.refused++; g.refused >= maxRefusals {
		return "", errors.New(why)
	}
	return why, nil
}

func (g *gateway) ask(
	ctx context.Context, method, path string, query url.Values, body []byte,
) (status int, answer []byte, err error) {
	at := g.api
	at.Path, at.RawQuery = path, query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, at.String(), bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := g.client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxState))
	return res.StatusCode, answer, err
}
