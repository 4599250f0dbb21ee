package job

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A machine that has gone away a moment ago answers nobody: the list is worth more than its count.
const (
	countWithin = 500 * time.Millisecond // of one machine
	countsLimit = time.Second            // of all together, with the question who they are
)

// gatewayCounts are what the machines' gateways have counted.
type gatewayCounts struct{ nodes []wire.NodeGatewayCounts }

// countRequests asks for them; nil: nobody has answered in time.
func countRequests(ctx context.Context, b *wire.Client) *gatewayCounts {
	ctx, cancel := context.WithTimeout(ctx, countsLimit)
	defer cancel()
	res, err := wire.GatewayCounts.Call(ctx, b, wire.GatewayCountsRequest{Within: countWithin})
	if err != nil || !slices.ContainsFunc(res.Nodes, func(n wire.NodeGatewayCounts) bool { return n.Error == "" }) {
		return nil
	}
	return &gatewayCounts{res.Nodes}
}

// modelRequests are the requests for a service's model, as service ls --json prints them.
type modelRequests struct {
	Requests  int64     `json:"requests"`
	Errors    int64     `json:"errors"`
	UnderWay  int64     `json:"under_way"`
	Waiting   int64     `json:"waiting"`
	FirstByte firstByte `json:"first_byte"`
	TokensIn  int64     `json:"tokens_in"`
	TokensOut int64     `json:"tokens_out"`
	Missing   []string  `json:"missing"` // machines that have not told
}

type firstByte struct {
	Count int64         `json:"count"`
	Sum   time.Duration `json:"sum"` // nanoseconds
}

// of adds up what was asked of a service's model; nil: it is not known, or the service has ended.
func (g *gatewayCounts) of(j rendezvous.JobStatus, now time.Time) *modelRequests {
	if g == nil || j.Outcome != nil {
		return nil
	}
	models := j.Backend(now).Models
	var all wire.GatewayCount
	missing := []string{}
	for _, n := range g.nodes {
		if n.Error != "" {
			missing = append(missing, n.Host)
		}
		for _, c := range n.Counts {
			if slices.Contains(models, c.Model) {
				all = all.Add(c)
			}
		}
	}
	return &modelRequests{Requests: all.Requests, Errors: all.Errors, UnderWay: all.UnderWay, Waiting: all.Waiting,
		FirstByte: firstByte{all.FirstByte.Count, all.FirstByte.Sum}, TokensIn: all.TokensIn, TokensOut: all.TokensOut,
		Missing: missing}
}

func (r *modelRequests) text() string {
	switch {
	case r == nil:
		return "-"
	case r.Waiting > 0:
		return fmt.Sprintf("%d (%d wait)", r.UnderWay, r.Waiting)
	}
	return fmt.Sprint(r.UnderWay)
}
