package gateway

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/node/gateway"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type keyCreateOptions struct {
	name    string
	models  []string
	rate    float64
	expires time.Duration // from now; 0: never
	noWake  bool
	metrics bool
}

func newKeyCreateCmd(a *app.App) *cobra.Command {
	opts := &keyCreateOptions{}
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a key for models",
		Long: `Makes a key and prints it on standard output, once: it cannot be shown again, as the
cluster gets only a hash of it. Programs send it as they send OpenAI's or Anthropic's:
Authorization: Bearer KEY, or x-api-key: KEY. NAME says later whose it is.

With the first key every machine listens on the management network as well, and asks for
a key. It takes root.`,
		Example: `  sudo sparkrun gateway key create webui
  sudo sparkrun gateway key create ada --model qwen3-32b --expires 30d > key
  sudo sparkrun gateway key create batch --rate 5
  sudo sparkrun gateway key create monitor --no-wake
  sudo sparkrun gateway key create prometheus --metrics`,
		Args: app.Takes(1, "the key's NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.name = args[0]
			if opts.metrics && len(opts.models) > 0 {
				return app.Usagef("--metrics and --model: a key for metrics may ask no model")
			}
			return app.Running(a, opts, createKey)(cmd, args)
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringArrayVar(&opts.models, "model", nil, "a model, or alias, that it may ask for; repeat for more (default: all)")
	cmd.Flags().Var(rate{&opts.rate}, "rate", "requests a second that each machine takes with it (default: any)")
	cmd.Flags().Var(days{&opts.expires}, "expires", "how long it is good for, such as 30d or 12h (default: for ever)")
	cmd.Flags().BoolVar(&opts.noWake, "no-wake", false,
		"its requests start no service that is --on-demand, and keep none up: for health checks")
	cmd.Flags().BoolVar(&opts.metrics, "metrics", false, "it reads /metrics, and may ask no model")
	app.CompleteFlag(cmd, "model", complete(a, math.MaxInt, func(g wire.GatewayResponse, _ []string) []string {
		return append(modelsOf(g), aliasesOf(g)...)
	}))
	return cmd
}

// rate is a flag's requests a second, above 0.
type rate struct{ r *float64 }

func (r rate) Type() string { return "number" }

func (r rate) String() string {
	if r.r == nil || *r.r == 0 {
		return ""
	}
	return strconv.FormatFloat(*r.r, 'g', -1, 64)
}

func (r rate) Set(text string) error {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v <= 1e6) {
		return errors.New("want requests a second, above 0, such as 5 or 0.5")
	}
	*r.r = v
	return nil
}

// days is a flag's duration that may be long: 30d, or as app.Span takes it.
type days struct{ d *time.Duration }

func (d days) Type() string { return "time" }

func (d days) String() string {
	if d.d == nil {
		return ""
	}
	return app.Span{D: d.d}.String()
}

func (d days) Set(text string) error {
	const most = 10 * 365
	if number, whole := strings.CutSuffix(text, "d"); whole {
		n, err := strconv.Atoi(number)
		if err != nil || n < 1 || n > most {
			return fmt.Errorf("want 1d to %dd", most)
		}
		*d.d = time.Duration(n) * 24 * time.Hour
		return nil
	}
	v, err := app.ParseSpan(text)
	if err != nil || v < time.Minute { // 30 is not meant as seconds
		return errors.New("want a time such as 30d or 12h, a minute at least")
	}
	*d.d = v
	return nil
}

func createKey(ctx context.Context, a *app.App, o keyCreateOptions) error {
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	secret := gateway.KeyPrefix + base64.RawURLEncoding.EncodeToString(random)
	key := rendezvous.NamedGatewayKey{Name: o.name, GatewayKey: rendezvous.GatewayKey{
		Hash: sha256.Sum256([]byte(secret)), Models: o.models, Rate: o.rate, NoWake: o.noWake,
		Metrics: o.metrics,
	}}
	if o.expires > 0 {
		until := time.Now().Add(o.expires).UTC().Truncate(time.Second)
		key.Expires = &until
	}
	now, err := change(ctx, a, rendezvous.GatewayChange{Key: &key})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Out, secret); err != nil {
		return err
	}
	a.Say(fmt.Sprintf("this is key %s: keep it now, it cannot be shown again", o.name))
	sayReach(a, now)
	if now != nil {
		if len(now.Keys) == 1 {
			a.Say("it is the first: from now on every request for a model needs a key, on the machine itself, too")
		}
		for _, m := range o.models {
			if !known(*now, m) {
				a.Say(fmt.Sprintf("warning: no service serves %s now, and it is no alias", m))
			}
		}
	}
	return nil
}
