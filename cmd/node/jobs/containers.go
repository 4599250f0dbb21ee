package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Containers is what the agent needs for ranks in containers; nil where this node has
// no engine.
func Containers(socket, cluster string) *container.Config {
	program, err := os.Executable()
	if err != nil || socket == "" {
		return nil
	}
	return &container.Config{Socket: socket, Cluster: cluster, Program: program}
}

// Over tells which attempts are recorded as ended. The leader that answers has just
// proven that it leads. A job that the record does not know is left out: a take-over may
// have lost its record while it runs.
func (k *Ranks) Over(ctx context.Context, keys []launcher.Key) (map[launcher.Key]bool, error) {
	res, err := wire.Jobs.Call(ctx, k.cfg.Leader.As(wire.Caller{User: &wire.User{Name: "root"}}),
		wire.JobsRequest{})
	if err == nil && res.Problem != "" {
		err = errors.New(res.Problem)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the record whether jobs have ended: %w", err)
	}
	out := map[launcher.Key]bool{}
	for _, j := range res.Jobs {
		for _, key := range keys {
			if j.Spec.ID == key.Job {
				out[key] = over(j.Job, key)
			}
		}
	}
	return out, nil
}

// over answers it for one job: a later generation begins only when the one before is
// proven gone.
func over(j rendezvous.Job, k launcher.Key) bool {
	return j.Plan.Generation > k.Generation || j.Plan.Generation == k.Generation && j.Outcome != nil
}
