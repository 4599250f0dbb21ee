package node

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Any host shows the output of any try, of any part of it, and says which host's
// is missing and why.
func TestLogsOfTriesAndHosts(t *testing.T) {
	c := newCluster(t, 3)
	first := c.hosts[0]
	spec := command(3, 1, `echo one; echo "$HOST try $TRY"; exit 5`)
	main := &spec.Stages[0]
	main.Env = append(main.Env, launcher.Var{Name: "TRY", Value: launcher.Of(launcher.RestartCount), Source: "test"})
	spec.MaxRestarts, spec.OnFailure = 1, launcher.ContinueOnFailure
	if out := first.run(spec); out.End != rendezvous.Failed || out.ExitCode != 5 {
		t.Fatalf("outcome %+v", out)
	}
	// The host that is asked hears of the end a heartbeat later.
	if _, _, err := read(t, c.hosts[1], spec.ID, wire.LogsRequest{Generation: 2}); err != nil {
		t.Fatal(err)
	}
	last := 1
	for name, tc := range map[string]struct {
		r    wire.LogsRequest
		want map[string]string
		err  error
	}{
		"the latest try":    {r: wire.LogsRequest{Times: true}, want: map[string]string{"spark1": "one\nspark1 try 1\n", "spark2": "one\nspark2 try 1\n", "spark3": "one\nspark3 try 1\n"}},
		"one before":        {r: wire.LogsRequest{Generation: 1, Follow: true}, want: map[string]string{"spark1": "one\nspark1 try 0\n", "spark2": "one\nspark2 try 0\n", "spark3": "one\nspark3 try 0\n"}},
		"its last lines":    {r: wire.LogsRequest{Generation: 1, Hosts: []string{"spark2"}, From: launcher.From{Lines: &last}}, want: map[string]string{"spark2": "spark2 try 0\n"}},
		"one host":          {r: wire.LogsRequest{Hosts: []string{"spark3"}}, want: map[string]string{"spark3": "one\nspark3 try 1\n"}},
		"what is to come":   {r: wire.LogsRequest{Hosts: []string{"spark3"}, From: launcher.From{Since: time.Now().Add(time.Hour)}}, want: map[string]string{"spark3": ""}},
		"a host without":    {r: wire.LogsRequest{Hosts: []string{"spark9"}}, err: launcher.ErrInvalid},
		"a try never made":  {r: wire.LogsRequest{Generation: 7}, err: launcher.ErrInvalid},
		"a rank elsewhere":  {r: wire.LogsRequest{Ranks: []int{2}, Hosts: []string{"spark1"}}, err: launcher.ErrInvalid},
		"a rank never made": {r: wire.LogsRequest{Ranks: []int{3}}, err: launcher.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := read(t, c.hosts[1], spec.ID, tc.r)
			if !errors.Is(err, tc.err) {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got); tc.err == nil && d != "" {
				t.Error(d)
			}
		})
	}
	c.hosts[2].halt()
	for _, gen := range []launcher.Generation{0, 1} {
		got, away, err := read(t, c.hosts[1], spec.ID, wire.LogsRequest{Generation: gen})
		if err != nil || len(got["spark1"]) == 0 || len(got["spark2"]) == 0 || len(away) != 1 || away[0] != "spark3" {
			t.Errorf("without spark3, generation %d: %v, away %v, %v", gen, got, away, err)
		}
	}
}

// read asks a host for a job's output: each host's, and whose is missing.
func read(t *testing.T, h *host, job launcher.JobID, r wire.LogsRequest) (out map[string]string, away []string, err error) {
	t.Helper()
	r.Job, out = string(job), map[string]string{}
	cl := h.client()
	defer cl.Close()
	err = wire.Logs.Call(t.Context(), cl, r, func(c wire.LogChunk) error {
		if c.Note != "" {
			if !c.Away {
				t.Errorf("note %q", c.Note)
			}
			away = append(away, c.Host)
		}
		if len(c.Data) > 0 && (c.Job != job || r.Times && c.Time.IsZero()) {
			t.Errorf("a chunk of job %q at %s", c.Job, c.Time)
		}
		out[c.Host] += string(c.Data)
		return nil
	})
	return out, away, err
}

// While a job runs or stands in line nobody waits for a try that nobody will
// make, and who follows one in line gets what it writes once it runs.
func TestLogsBeforeTheirTime(t *testing.T) {
	c := newCluster(t, 2)
	launch := func(spec launcher.Spec) launcher.JobID {
		t.Helper()
		accepted := errors.New("accepted")
		cl := c.hosts[0].client()
		defer cl.Close()
		err := wire.Launch.Call(t.Context(), cl, wire.LaunchRequest{Spec: spec}, func(p rendezvous.Progress) error {
			if p.Step == rendezvous.StepRunning || p.Step == rendezvous.StepWaiting {
				return accepted
			}
			return nil
		})
		if !errors.Is(err, accepted) {
			t.Fatal(err)
		}
		return spec.ID
	}
	holder, next := command(2, 1, "sleep 1000"), command(2, 1, "echo at last")
	holder.Name, holder.GPUs = "one", launcher.AllGPUs
	next.Name, next.GPUs, next.Wait = "two", launcher.AllGPUs, true
	launch(holder)
	launch(next)
	for _, h := range c.hosts {
		for _, r := range []wire.LogsRequest{{Generation: 2}, {Generation: 2, Follow: true}} {
			if _, _, err := read(t, h, holder.ID, r); !errors.Is(err, launcher.ErrInvalid) {
				t.Errorf("%s, %+v: %v", h.cfg.Host, r, err)
			}
		}
		if out, _, err := read(t, h, next.ID, wire.LogsRequest{}); err != nil || len(out) > 0 {
			t.Errorf("%s: a job in line wrote %q, %v", h.cfg.Host, out, err)
		}
		if _, _, err := read(t, h, next.ID, wire.LogsRequest{Ranks: []int{0}}); !errors.Is(err, wire.ErrNotYet) {
			t.Errorf("%s: rank 0 of a job in line: %v", h.cfg.Host, err)
		}
	}
	got := make(chan map[string]string)
	for _, h := range c.hosts {
		go func() { // ends with the job
			out, _, err := read(t, h, next.ID, wire.LogsRequest{Follow: true})
			if err != nil {
				t.Error(err)
			}
			got <- out
		}()
	}
	cl := c.hosts[0].client()
	defer cl.Close()
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: "one"}); err != nil {
		t.Fatal(err)
	}
	for range c.hosts {
		if d := cmp.Diff(map[string]string{"spark1": "at last\n", "spark2": "at last\n"}, <-got); d != "" {
			t.Error(d)
		}
	}
}

// A name that two running jobs bear is refused on every host, not taken for the
// later one's where another host leads.
func TestTwoOfOneName(t *testing.T) {
	c := newCluster(t, 2)
	var ids []launcher.JobID
	for range 2 {
		spec := command(1, 1, "sleep 1000")
		spec.Name = "train"
		running := errors.New("running")
		cl := c.hosts[0].client()
		if err := wire.Launch.Call(t.Context(), cl, wire.LaunchRequest{Spec: spec}, func(p rendezvous.Progress) error {
			if p.Step == rendezvous.StepRunning {
				return running
			}
			return nil
		}); !errors.Is(err, running) {
			t.Fatal(err)
		}
		cl.Close()
		ids = append(ids, spec.ID)
	}
	for _, h := range c.hosts {
		h.eventually("both in its copy of the record", func() bool { return len(h.now().record.Jobs()) == 2 })
		if _, _, err := read(t, h, "train", wire.LogsRequest{}); !errors.Is(err, rendezvous.ErrNoJob) || !strings.Contains(err.Error(), "it could be") {
			t.Errorf("%s: %v", h.cfg.Host, err)
		}
	}
	cl := c.hosts[0].client()
	defer cl.Close()
	for _, id := range ids {
		if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(id)}); err != nil {
			t.Errorf("stop %s by its id: %v", id, err)
		}
	}
}
