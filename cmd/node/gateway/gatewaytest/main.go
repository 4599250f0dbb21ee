// Command gatewaytest is what scripts/bench_gateway, scripts/gateway_clients and e2e tests need beside the gateway:
// engines that answer without a model, a gateway without a cluster, and clients.
//
//	gatewaytest engine ADDR
//	gatewaytest service ADDR
//	gatewaytest load [--clients N] [--requests N] [--limit TIME] MODEL URL...
//	gatewaytest gateway PORT MODEL=ADDR...
//	gatewaytest bare ADDR ADDR
//	gatewaytest streams URL N
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "engine":
		l, err := net.Listen("tcp", args[1])
		if err != nil {
			return err
		}
		srv := &http.Server{Handler: engine()}
		defer context.AfterFunc(ctx, func() { srv.Close() })()
		if err := srv.Serve(l); ctx.Err() == nil {
			return err
		}
		return nil
	case len(args) == 2 && args[0] == "service":
		return service(ctx, args[1])
	case len(args) > 2 && args[0] == "load":
		return load(ctx, args[1:])
	case len(args) > 2 && args[0] == "gateway":
		return serve(ctx, args[1], args[2:])
	case len(args) == 3 && args[0] == "bare":
		return bare(ctx, args[1], args[2])
	case len(args) == 3 && args[0] == "streams":
		n, err := strconv.Atoi(args[2])
		if err != nil {
			return err
		}
		return streams(ctx, args[1], n)
	}
	return fmt.Errorf("usage: gatewaytest engine ADDR | service ADDR | load MODEL URL... | " +
		"gateway PORT MODEL=ADDR... | bare ADDR ADDR | streams URL N")
}

// bare is net/http's ReverseProxy and nothing else, from the first address to the second.
func bare(ctx context.Context, at, to string) error {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: to})
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 4096}
	srv := &http.Server{Addr: at, Handler: proxy}
	defer context.AfterFunc(ctx, func() { srv.Close() })()
	if err := srv.ListenAndServe(); ctx.Err() == nil {
		return err
	}
	return nil
}

// serve has a gateway on loopback. The model "comes" is ready 7 seconds after it
// is first waited for; there is an alias gpt-4 of the first.
func serve(ctx context.Context, port string, models []string) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	v := gateway.View{Since: time.Now()}
	for i, m := range models {
		name, addr, _ := strings.Cut(m, "=")
		at, err := netip.ParseAddrPort(addr)
		if err != nil {
			return err
		}
		v.Backends = append(v.Backends, rendezvous.Backend{
			Job: launcher.JobID(fmt.Sprint("j", i)), Models: []string{name}, State: "ready", Ready: name != "comes",
			Comes: name == "comes", Addr: at, Generation: 1, Host: "here",
		})
		if i == 0 {
			v.Gateway.Aliases = map[string]string{"gpt-4": name}
		}
	}
	view := &rendezvous.Latest[gateway.View]{}
	view.Store(v)
	g, err := gateway.Open(gateway.Config{
		Host: "here", Port: uint16(n), Map: view, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	defer g.Close()
	go start(ctx, g, v, view)
	if err := g.Run(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

// start makes all services ready a while after the first request waits for one.
func start(ctx context.Context, g *gateway.Gateway, v gateway.View, view *rendezvous.Latest[gateway.View]) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for waits := 0; waits < 70; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, c := range g.Counts() {
			if c.Waiting > 0 || waits > 0 {
				waits++
				break
			}
		}
	}
	v.Backends = slices.Clone(v.Backends)
	for i := range v.Backends {
		v.Backends[i].Ready, v.Backends[i].Comes = true, false
	}
	view.Store(v)
}
