package node

import (
	"errors"
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
	// The host that is asked hears of the end a heartbeat later; until then a try
	// to come may still come.
	if _, _, err := read(t, c.hosts[1], spec.ID, wire.LogsRequest{Generation: 7}); !errors.Is(err, launcher.ErrInvalid) {
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
	err = cl.Logs(t.Context(), r, func(c wire.LogChunk) error {
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
