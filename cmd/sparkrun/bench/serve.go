package bench

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/workloads/bench"
	"github.com/sparkrun/sparkrun/workloads/bench/load"
)

// server is one that was started.
type server struct {
	bench.Server
	of          string // bench.Case.Server
	client      string // bench.Own or bench.VLLM
	model, root string // as the server lists it; root is where its tokenizer is, if it says that
}

// start starts a case's server, if it does not run, as `sparkrun launch --json` does, and waits until it answers.
func (r *runner) start(ctx context.Context, c bench.Case, name string) error {
	if r.server != nil {
		return nil
	}
	if r.dead == c.Server() {
		return r.why
	}
	r.a.Say(name + ": starting its server")
	ctx, cancel := within(ctx, c)
	defer cancel()
	s, errs, began := &server{of: c.Server()}, r.tail(), time.Now()
	err := r.child(ctx, c.Argv, c.Env, &watcher{s: s, heard: func() error {
		r.server = s // from now on it has to be stopped
		return r.add(bench.Line{Server: &s.Server})
	}}, errs)
	if err == nil && s.URL == "" {
		err = errors.New("it has ended and never served")
	}
	if err != nil {
		r.dead, r.why = c.Server(), errs.after(fmt.Errorf("start its server: %w", err))
		return r.why
	}
	s.Took = time.Since(began).Seconds()
	for _, path := range []string{"/version", "/get_server_info", "/props"} { // vLLM and TensorRT-LLM, SGLang, llama.cpp
		var said struct {
			Version string `json:"version"`
			Build   string `json:"build_info"`
		}
		if get(ctx, s.URL+path, &said) == nil && said.Version+said.Build != "" {
			s.Engine = said.Version + said.Build
			break
		}
	}
	r.a.Say(fmt.Sprintf("%s: job %s answers at %s after %.0f s", name, s.Job, s.URL, s.Took))
	return r.add(bench.Line{Server: &s.Server})
}

// meet finds out which model a case asks the server for, and what is to ask it.
func (r *runner) meet(ctx context.Context, c bench.Case) error {
	ctx, cancel := within(ctx, c)
	defer cancel()
	s := r.server
	s.model, s.root, s.client = c.Load.Model, "", bench.Own
	var models struct{ Data []struct{ ID, Root string } }
	if err := get(ctx, s.URL+"/v1/models", &models); err != nil {
		return err
	}
	for _, m := range models.Data {
		if s.model == "" || m.ID == s.model {
			s.model, s.root = m.ID, m.Root
		}
	}
	if s.model == "" {
		return errors.New("it lists no model: client.model names one")
	}
	if c.Load.Use == bench.Own {
		return nil
	}
	err := r.child(ctx, []string{"sparkrun", "exec", s.Job, "--", "sh", "-c", "command -v vllm"}, nil, io.Discard, io.Discard)
	switch {
	case err == nil:
		s.client = bench.VLLM
	case c.Load.Use == bench.VLLM:
		r.dead, r.why = c.Server(), fmt.Errorf("client.use vllm: there is no vllm in the PATH of its rank 0: %w", err)
		return r.why
	}
	return nil
}

// straight asks servers at their own addresses: a proxy of the user's is for others, and what is compressed is late.
func straight(places int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: places, DisableCompression: true}}
}

func get(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	client := straight(1)
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s", url, res.Status)
	}
	return json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(into)
}

// ask has the client ask the server, and puts what it measured into the result.
func (r *runner) ask(ctx context.Context, c bench.Case, res *bench.Result) (err error) {
	var o bench.Outcome
	l, s := *c.Load, r.server
	res.Server, res.Client = &s.Server, s.client
	seed := c.Key() + " " + strconv.Itoa(res.Repeat) // prompts that no other run has: the server keeps what it has read
	if s.client == bench.VLLM {
		o, err = r.vllm(ctx, l, seed)
	} else {
		client := straight(l.Concurrency)
		l.Model = s.model
		o, err = load.Run(ctx, load.Config{Load: l, URL: s.URL, Seed: seed, Client: client})
		client.CloseIdleConnections()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	res.Figures, res.Input, res.Output = o.Figures, o.Input, o.Output
	switch {
	case err != nil:
		return err
	case o.Done == 0:
		return fmt.Errorf("all %d requests failed: %s", o.Failed, o.Problem)
	case o.Failed > 0:
		res.Notes = append(res.Notes, fmt.Sprintf("%d of %d requests failed: %s", o.Failed, o.Failed+o.Done, o.Problem))
	}
	if n := o.Input / o.Done; n > 0 && (n < l.Input*4/5 || n > l.Input*6/5) {
		res.Notes = append(res.Notes, fmt.Sprintf("prompts had %d tokens in the mean, asked for were %d", n, l.Input))
	}
	if n := o.Output / o.Done; n < l.Output {
		res.Notes = append(res.Notes, fmt.Sprintf("answers had %d tokens in the mean, asked for were %d", n, l.Output))
	}
	return nil
}

// vllm has `vllm bench serve` ask the server, beside its rank 0: in its image, where it has one.
func (r *runner) vllm(ctx context.Context, l bench.Load, seed string) (bench.Outcome, error) {
	const script = `d=$(mktemp -d) || exit 1; trap 'rm -rf "$d"' EXIT
"$0" "$@" --save-result --result-dir "$d" --result-filename r.json >&2 && cat "$d/r.json"`
	backend, path := "openai", "/v1/completions"
	if l.API == bench.Chat {
		backend, path = "openai-chat", "/v1/chat/completions"
	}
	s, flags := r.server, fmt.Sprintf("--backend %s --endpoint %s --dataset-name random --random-input-len %d --random-output-len %d "+
		"--ignore-eos --num-prompts %d --max-concurrency %d --seed %d --disable-tqdm --percentile-metrics ttft,tpot,itl "+
		"--metric-percentiles 50,90,99", backend, path, l.Input, l.Output, l.Prompts, l.Concurrency, crc32.ChecksumIEEE([]byte(seed)))
	argv := append([]string{"sparkrun", "exec", s.Job, "--", "sh", "-c", script, "vllm", "bench", "serve", "--base-url", s.URL,
		"--model", cmp.Or(s.root, s.model), "--served-model-name", s.model}, strings.Fields(flags)...)
	var out bytes.Buffer
	errs := r.tail()
	if err := r.child(ctx, argv, nil, &out, errs); err != nil {
		return bench.Outcome{}, errs.after(fmt.Errorf("vllm bench serve: %w", err))
	}
	return bench.ReadVLLM(out.Bytes(), l.Prompts)
}

// stop ends the server that runs, also when the run itself is being ended.
func (r *runner) stop(ctx context.Context) error {
	s := r.server
	if s == nil {
		return nil
	}
	r.server = nil
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*childGrace)
	defer cancel()
	said := r.tail()
	err := r.child(ctx, []string{"sparkrun", "stop", s.Job}, nil, said, said)
	if err != nil && !strings.Contains(said.String(), rendezvous.ErrNoJob.Error()) {
		return said.after(fmt.Errorf("stop server %s: %w", s.Job, err))
	}
	return r.add(bench.Line{Stopped: s.Job})
}

// watcher reads the objects that a launch prints.
type watcher struct {
	s     *server
	heard func() error // the job's id is known
	part  []byte
}

func (w *watcher) Write(b []byte) (int, error) {
	w.part = append(w.part, b...)
	for i := bytes.IndexByte(w.part, '\n'); i >= 0; i = bytes.IndexByte(w.part, '\n') {
		var e struct {
			Type, Job, URL string
			Plan           *struct{ Nodes []struct{ Host string } }
		}
		err := json.Unmarshal(w.part[:i], &e)
		w.part = w.part[i+1:]
		if err != nil || e.Type != "event" {
			continue
		}
		if w.s.Job == "" && e.Job != "" {
			w.s.Job = e.Job
			if err := w.heard(); err != nil {
				return 0, err
			}
		}
		if e.Plan != nil {
			w.s.Hosts = nil
			for _, n := range e.Plan.Nodes {
				w.s.Hosts = append(w.s.Hosts, n.Host)
			}
		}
		w.s.URL = cmp.Or(e.URL, w.s.URL)
	}
	return len(b), nil
}
