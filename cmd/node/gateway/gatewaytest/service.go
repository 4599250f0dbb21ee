package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// service is an engine as a job has it: with a health, and metrics as vLLM's. Its environment says the rest: ENGINE is
// its name, which each answer has as its id; "broken" ends before it is ready. BEGUN is a file for the
// X-Request-Id of each request that came. ANSWER is how long an answer that is no stream takes, LOAD how long the
// engine takes to become ready.
func service(ctx context.Context, addr string) error {
	name := os.Getenv("ENGINE")
	if name == "broken" {
		time.Sleep(2 * time.Second)
		return errors.New("RuntimeError: Engine core initialization failed")
	}
	takes, loads := durationOf("ANSWER"), durationOf("LOAD")
	begun, err := os.OpenFile(os.Getenv("BEGUN"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil && os.Getenv("BEGUN") != "" {
		return err
	}
	time.Sleep(loads)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	var running atomic.Int64
	answers, mux := engine(), http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=%[1]q} %[2]d\n"+
			"# TYPE vllm:generation_tokens_total counter\nvllm:generation_tokens_total{model_name=%[1]q} %[3]d\n",
			name, running.Load(), time.Now().UnixMilli())
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		if begun != nil {
			fmt.Fprintln(begun, r.Header.Get("X-Request-Id"))
		}
		running.Add(1)
		defer running.Add(-1)
		if r.Header.Get("X-Stream") == "" {
			time.Sleep(takes)
		}
		answers.ServeHTTP(w, r)
	})
	srv := &http.Server{Handler: mux}
	defer context.AfterFunc(ctx, func() { srv.Close() })() // at once, as engines do: what is under way is lost
	if err := srv.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

func durationOf(name string) time.Duration {
	d, _ := time.ParseDuration(strings.TrimSpace(os.Getenv(name))) //nolint:errcheck // not set: 0
	return d
}
