package pull

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// On a terminal each machine has a line, which is drawn over: bytes, rate, time left, source.
func TestPullViewOnATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		kind := Kind{Begin: func(wire.ModelPlan) []string { return nil },
			Whole: func(p wire.ModelProgress) string { return "whole: " + p.Dir }}
		v := NewView(&app.App{Err: &out, Columns: func() int { return 60 }}, kind, "org/m", true)
		take := func(p wire.ModelProgress) string {
			t.Helper()
			out.Reset()
			if err := v.Take(p); err != nil {
				t.Fatal(err)
			}
			return out.String()
		}
		take(wire.ModelProgress{Plan: &wire.ModelPlan{Repo: modelcache.Repo{Name: "org/m"}, Commit: "aaaaaaaaaaaa",
			Hosts: []string{"spark1", "spark2"}}})
		at := func(host string, have int64, from string) wire.ModelProgress {
			return wire.ModelProgress{Host: host, State: wire.ModelFetches, Have: have, Bytes: 10 << 30, From: from}
		}
		take(at("spark1", 0, "outside"))
		take(at("spark2", 0, "spark1"))
		time.Sleep(2 * time.Second)
		want := "\x1b[2A\x1b[Jspark1: 2 GiB of 10 GiB  1 GiB/s  8s left  from outside\nspark2: 0 B of 10 GiB  from spark1\n"
		if got := take(at("spark1", 2<<30, "outside")); got != want {
			t.Errorf("drawn %q, want %q", got, want)
		}
		done := at("spark1", 10<<30, "outside")
		done.State, done.Dir = wire.ModelDone, "/a/folder"
		if got := take(done); strings.Count(got, "\n") != 2 || !strings.Contains(got, "spark1: whole: /a/folder\n") {
			t.Errorf("when one is done: %q", got)
		}
		v.Plan.Hosts = []string{strings.Repeat("s", 70), "spark2"}
		long := at(v.Plan.Hosts[0], 0, "spark1")
		for line := range strings.Lines(take(long)) {
			if n := len(strings.TrimPrefix(line, "\x1b[1A\x1b[J")); n > 60 {
				t.Errorf("a line of %d columns would be drawn over wrongly: %q", n, line)
			}
		}
	})
}

// As JSON a machine that fetches has its rate and the time left, once they are known.
func TestPullLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		v := NewView(&app.App{}, Kind{}, "org/m", false)
		tell := v.Lines(&out)
		for range 3 {
			out.Reset()
			have := v.told["spark1"].Have + 1<<30
			if err := tell(wire.ModelProgress{Host: "spark1", State: wire.ModelFetches, Have: have, Bytes: 10 << 30}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		want := `{"type":"fetch","host":"spark1","state":"fetches","have":3221225472,"bytes":10737418240,` +
			`"bytes_per_s":1073741824,"seconds_left":7}` + "\n"
		if out.String() != want {
			t.Errorf("told %s, want %s", &out, want)
		}
	})
}
