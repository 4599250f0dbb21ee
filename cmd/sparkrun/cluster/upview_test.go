package cluster

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/bootstrap"
)

// The table says what each host was to the cluster, and which release it has.
func TestUpTable(t *testing.T) {
	hosts := []bootstrap.Result{
		{Target: "a", Host: "spark1", Cluster: "c1", Part: bootstrap.Member, Release: "1.0.0", Ready: true},
		{Target: "b", Host: "spark2", Part: bootstrap.Joins, Ready: true, Release: "1.0.1"},
		{Target: "c", Host: "spark3", Part: bootstrap.Joins, Error: "its disk is full"},
		{Target: "d", Host: "spark4", Cluster: "c2", Part: bootstrap.Another, Error: "it is in another cluster"},
		{Target: "e", Error: "connect to e: refused"},
	}
	bare := []bootstrap.Result{{Target: "a", Host: "spark1", Part: bootstrap.Founds},
		{Target: "b", Host: "spark2", Part: bootstrap.Joins}}
	for name, c := range map[string]struct {
		results []bootstrap.Result
		dryRun  bool
		want    string
	}{
		"done": {hosts, false, `
TARGET HOST CLUSTER RELEASE STATE
a spark1 member 1.0.0 ready
b spark2 joined 1.0.1 ready
c spark3 no member - failed: its disk is full
d spark4 of another - failed: it is in another cluster
e - - - failed: connect to e: refused
`},
		"looked at": {bare, true, `
TARGET HOST CLUSTER RELEASE STATE
a spark1 would found - not changed
b spark2 would join - not changed
`},
		"taken off": {[]bootstrap.Result{{Target: "a", Host: "spark1"}}, false, `
TARGET HOST STATE
a spark1 ready
`},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			v := newUpView(&app.App{Out: &out}, nil, false)
			if err := v.summary(c.results, c.dryRun, "ready"); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			got.WriteString("\n")
			for line := range strings.Lines(out.String()) {
				got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
			}
			if diff := cmp.Diff(c.want, got.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
