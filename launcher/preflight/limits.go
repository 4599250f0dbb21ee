package preflight

import (
	"context"

	"github.com/sparkrun/sparkrun/launcher/shim"
)

// limits refuses ulimits that the shim could not set.
func limits(_ context.Context, c *Case) error { return shim.MayLimit(c.Stage.Ulimits) }
