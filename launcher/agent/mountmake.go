package agent

import (
	"context"
	"fmt"
	"os"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// makeMounts makes the folders that a job's containers are to have even where a node has none
// yet: caches of its user, by that user's rights alone.
func (a *Agent) makeMounts(ctx context.Context, as launcher.Assignment) error {
	c := as.Spec.MainStage().Container
	if c == nil {
		return nil
	}
	for _, m := range c.Mounts {
		if !m.Make {
			continue
		}
		who, err := login.Lookup(ctx, as.Spec.User)
		if err == nil {
			err = who.Do(func() error { return os.MkdirAll(m.Source, 0o755) })
		}
		if err != nil {
			return fmt.Errorf("make folder for --mount %s: %w", m, err)
		}
	}
	return nil
}
