package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/workloads/bench"
)

// runner runs cases one after the other.
type runner struct {
	*journal
	a   *app.App
	o   runOptions
	dir string // in which children run

	server *server // that runs; nil: none
	dead   string  // what names the server that could not be started, or asked, last, and why
	why    error
	said   []string // notes of results: each is said once
}

// all runs the cases of which something is missing, and tells how many have failed. An error ends the run, which can be
// resumed, as the end of ctx does.
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
		ok, err := r.one(ctx, c, fmt.Sprintf("%d of %d, %s", i+1, len(cases), c.Label()))
		if err != nil || ctx.Err() != nil {
			return failed, err
		}
		if !ok {
			failed++
		}
	}
	if err := r.stop(ctx); err != nil {
		return failed, err
	}
	return failed, r.add(bench.Line{Ended: &bench.Ended{At: time.Now().UTC(), Failed: failed}})
}

// one runs what is missing of a case. A failure is kept and told; what else goes wrong is an error.
func (r *runner) one(ctx context.Context, c bench.Case, name string) (ok bool, err error) {
	lacks := r.lacks(c)
	if len(lacks) == 0 {
		return true, nil
	}
	if c.Load == nil || r.server != nil && r.server.of != c.Server() {
		if err := r.stop(ctx); err != nil {
			return false, err
		}
	}
	fail := func(res bench.Result, cause error) (bool, error) {
		if ctx.Err() != nil {
			return false, nil //nolint:nilerr // the run is being ended, which is no failure
		}
		res.Repeat, res.Error, res.Figures = max(lacks[0], res.Repeat), cause.Error(), nil
		r.a.Say(name + ": failed: " + res.Error)
		// A server may be gone or hang now: the next case has a new one.
		return false, errors.Join(r.add(bench.Line{Result: &res}), r.stop(ctx))
	}
	if c.Load != nil {
		err := r.start(ctx, c, name)
		if err == nil {
			err = r.meet(ctx, c)
		}
		if err != nil {
			return fail(c.Begun(0), err)
		}
	}
	for n := 1 - c.Warmup; n <= c.Repeats; n++ { // those to warm up are from 0 down
		if n <= 0 {
			r.a.Say(fmt.Sprintf("%s: warming up, %d of %d", name, n+c.Warmup, c.Warmup))
		} else if !slices.Contains(lacks, n) {
			continue
		}
		res := c.Begun(n)
		switch err := r.measure(ctx, c, &res); {
		case err != nil:
			return fail(res, err)
		case ctx.Err() != nil:
			return false, nil //nolint:nilerr // it may have been cut short by the same Ctrl-C
		case n > 0:
			if err := r.add(bench.Line{Result: &res}); err != nil {
				return false, err
			}
			r.a.Say(fmt.Sprintf("%s: %d of %d: %s", name, n, c.Repeats, r.inShort(res)))
		}
	}
	return true, nil
}

// lacks are the repeats that a case has not yet.
func (r *runner) lacks(c bench.Case) (out []int) {
	key := c.Key()
	for n := 1; n <= c.Repeats; n++ {
		if !r.Done(key, n) {
			out = append(out, n)
		}
	}
	return out
}

// inShort are the first figures of a result, and what is to be known of them and was not said yet.
func (r *runner) inShort(res bench.Result) string {
	var said []string
	for _, f := range res.Figures {
		if f.Name == "output_throughput" || f.Name == "ttft_p50" || f.Name == "tpot_p50" || res.Load == nil {
			said = append(said, f.Name+" "+number(f.Value, f.Unit))
		}
	}
	for _, n := range res.Notes {
		if !slices.Contains(r.said, n) {
			r.said = append(r.said, n)
			said = append(said, n)
		}
	}
	return strings.Join(said, ", ")
}

// within is a context that ends with a case's timeout.
func within(ctx context.Context, c bench.Case) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("it took longer than its timeout, %v", c.Timeout))
}

// tail is for what a child writes, which --verbose shows.
func (r *runner) tail() *tail {
	if r.o.verbose {
		return &tail{to: r.a.Err}
	}
	return &tail{}
}

// measure runs a case once.
func (r *runner) measure(ctx context.Context, c bench.Case, res *bench.Result) (err error) {
	res.Before = gpus(ctx, r.a)
	defer func() { res.After = gpus(ctx, r.a) }()
	timed, cancel := within(ctx, c)
	defer cancel()
	if c.Load != nil {
		return r.ask(timed, c, res)
	}
	out, began := r.tail(), time.Now()
	if err = r.child(timed, c.Argv, c.Env, out, out); err == nil {
		took := time.Since(began).Seconds()
		res.Figures, err = bench.Find(c.Patterns, out.kept.Bytes())
		res.Figures = append(res.Figures, bench.Figure{Name: bench.Seconds, Value: took, Unit: "s", Better: bench.Lower})
	}
	return out.after(err)
}
