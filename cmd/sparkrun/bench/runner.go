package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

// runner runs cases one after the other.
type runner struct {
	*journal
	a *app.App
	o runOptions

	server *server // that runs; nil: none
	dead   string  // what names the server that could not be started last, and why
	why    error
}

// all runs the cases of which something is missing, and tells how many have failed. An error ends the run, which can be
// resumed.
func (r *runner) all(ctx context.Context, cases []bench.Case) (failed int, err error) {
	defer func() { err = errors.Join(err, r.stop(ctx)) }()
	if r.Left != "" {
		r.a.Say("stopping job " + r.Left + ", a server that was left behind")
		r.server = &server{Server: bench.Server{Job: r.Left}}
		if err := r.stop(ctx); err != nil {
			return 0, err
		}
	}
	for i, c := range cases {
		switch err := r.one(ctx, c, fmt.Sprintf("%d of %d, %s", i+1, len(cases), c.Label())); {
		case ctx.Err() != nil:
			return failed, ctx.Err()
		case errors.Is(err, errFailed):
			if failed++; r.o.failFast {
				return failed, nil
			}
		case err != nil:
			return failed, err
		}
	}
	if err := r.stop(ctx); err != nil {
		return failed, err
	}
	return failed, r.add(bench.Line{Ended: &bench.Ended{At: time.Now().UTC(), Failed: failed}})
}

// errFailed: a case has failed, which is kept and told.
var errFailed = errors.New("a case failed")

// one runs what is missing of a case.
func (r *runner) one(ctx context.Context, c bench.Case, name string) error {
	var lacks []int
	for n := 1; n <= c.Repeats; n++ {
		if !r.Done(c.Key(), n) {
			lacks = append(lacks, n)
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	if c.Load == nil || r.server != nil && r.server.of != c.Server() {
		if err := r.stop(ctx); err != nil {
			return err
		}
	}
	fail := func(repeat int, res bench.Result, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		res.Key, res.Scenario, res.Values, res.Repeat, res.Argv, res.Env = c.Key(), c.Scenario, c.Values, repeat, c.Argv, c.Env
		res.Load, res.Error, res.Figures = c.Load, err.Error(), nil
		r.a.Say(name + ": failed: " + res.Error)
		return errors.Join(errFailed, r.add(bench.Line{Result: &res}))
	}
	if c.Load != nil && r.server == nil {
		if err := r.start(ctx, c, name); err != nil {
			return fail(lacks[0], bench.Result{At: time.Now().UTC()}, err)
		}
	}
	for n := range c.Warmup {
		r.a.Say(fmt.Sprintf("%s: warming up, %d of %d", name, n+1, c.Warmup))
		if res, err := r.measure(ctx, c, -n); err != nil {
			return fail(lacks[0], res, fmt.Errorf("warm-up: %w", err))
		}
	}
	for _, n := range lacks {
		res, err := r.measure(ctx, c, n)
		if err != nil {
			return fail(n, res, err)
		}
		if ctx.Err() != nil {
			return ctx.Err() // it may have been cut short by the same Ctrl-C
		}
		if err := r.add(bench.Line{Result: &res}); err != nil {
			return err
		}
		r.a.Say(fmt.Sprintf("%s: %d of %d: %s", name, n, c.Repeats, inShort(res)))
	}
	return nil
}

// inShort are the first figures of a result, and what is to be known of them.
func inShort(res bench.Result) string {
	var said []string
	for _, f := range res.Figures {
		if f.Name == "output_throughput" || f.Name == "ttft_p50" || f.Name == "tpot_p50" || res.Load == nil {
			said = append(said, strings.TrimSpace(fmt.Sprintf("%s %.4g %s", f.Name, f.Value, f.Unit)))
		}
	}
	return strings.Join(append(said, res.Notes...), ", ")
}

// measure runs a case once.
func (r *runner) measure(ctx context.Context, c bench.Case, repeat int) (res bench.Result, err error) {
	res = bench.Result{Key: c.Key(), Scenario: c.Scenario, Values: c.Values, Repeat: repeat, At: time.Now().UTC(), Argv: c.Argv,
		Env: c.Env, Load: c.Load}
	res.Before = gpus(ctx, r.a)
	within, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("it took longer than its timeout, %v", c.Timeout))
	defer cancel()
	began := time.Now()
	if c.Load != nil {
		res.Server = &r.server.Server
		res.Client = r.server.client
		err = r.ask(within, c, &res)
	} else {
		out := tail{}
		if r.o.verbose {
			out.to = r.a.Err
		}
		if err = child(within, r.a, c.Argv, c.Env, &out, &out); err == nil {
			res.Figures, err = bench.Find(c.Figures, out.Bytes())
			res.Figures = append(res.Figures, bench.Figure{Name: bench.Seconds, Value: time.Since(began).Seconds(), Unit: "s",
				Better: bench.Lower})
		}
		if err != nil {
			err = fmt.Errorf("%w; it said last: %s", err, lastLines(out.String()))
		}
	}
	res.After = gpus(ctx, r.a)
	return res, err
}
