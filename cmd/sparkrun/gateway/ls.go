package gateway

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type lsOptions struct{ json bool }

func newLsCmd(a *app.App) *cobra.Command {
	opts := &lsOptions{}
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "Show the addresses, and the models behind them",
		Long: `Shows where the one address for all models is, and who may use it; then the models, one
line a service:

  MODEL    the name that requests give; of a service whose model is not known, its own
  STATE    of the service, as service ls has it; -: none serves it, but it has an alias
  ALIASES  further names of the model

--json prints an object: port, open, keys (how many), addresses (of each machine, where
it listens there), aliases, virtual_ip (addr, host and why), problem (why the machine
that was asked does not listen), tls, ca (cert, until, names, permits and missing), and
backends: job, name, models, state, text, ready, comes (it will be ready without
anybody's doing), addr and host.`,
		Example: `  sparkrun gateway ls
  sparkrun gateway ls --json | jq -r '.backends[] | select(.ready).models[]'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, list),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

// listed is what gateway ls --json prints.
type listed struct {
	Port      uint16               `json:"port"`
	Open      bool                 `json:"open"`
	Keys      int                  `json:"keys"`
	Addresses []address            `json:"addresses"`
	Aliases   map[string]string    `json:"aliases"`
	Backends  []rendezvous.Backend `json:"backends"`
	VirtualIP *wire.VirtualIP      `json:"virtual_ip"`
	Problem   *string              `json:"problem"`
	// TLS: the machine that was asked speaks it on all addresses but loopback.
	TLS bool            `json:"tls"`
	CA  *wire.GatewayCA `json:"ca"`

	asked string // the machine's name
	files bool   // TLS is by files of its administrator's
}

type address struct {
	Host string `json:"host"`
	Away string `json:"away,omitempty"` // the machine's state, where it does not answer
	URL  string `json:"url"`
}

func list(ctx context.Context, a *app.App, o lsOptions) error {
	b := a.Dial()
	defer b.Close()
	g, err := show(ctx, b)
	if err != nil {
		return err
	}
	out := listed{Port: g.Port, Open: g.Open, Keys: len(g.Keys), Addresses: []address{}, Aliases: g.Aliases,
		VirtualIP: g.VirtualIP, TLS: g.Member.TLS, CA: g.CA, asked: g.Member.Host, files: g.Member.Files,
		Backends: append([]rendezvous.Backend{}, g.Backends...)}
	if out.Aliases == nil {
		out.Aliases = map[string]string{}
	}
	if g.Port != 0 && (g.Open || len(g.Keys) > 0) {
		st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
		if err != nil {
			return err
		}
		for _, n := range st.Nodes {
			away := ""
			if n.State != "ready" && n.State != "drained" {
				away = n.State
			}
			out.Addresses = append(out.Addresses, address{n.Host, away, urlOf(g.Member.TLS, n.Addr.String(), g.Port)})
		}
	}
	if g.Member.Problem != "" {
		text := g.Member.Host + " does not " + g.Member.Problem
		out.Problem = &text
	}
	if o.json {
		return a.Object(out)
	}
	if err := a.Table(reach(out)); err != nil {
		return err
	}
	fmt.Fprintln(a.Out)
	if err := a.Table(modelRows(out)); err != nil {
		return err
	}
	if out.Problem != nil {
		a.Say(plain.Text(*out.Problem))
	}
	for _, note := range caNotes(g.CA) {
		a.Say(plain.Text(note))
	}
	for _, s := range g.Backends {
		if s.Text != "" {
			a.Say(plain.Text(serviceOf(s) + ": " + s.Text))
		}
	}
	return nil
}

// urlOf is an address as clients are given it. All machines are taken to speak as the one that was asked.
func urlOf(tls bool, host string, port uint16) string {
	scheme := "http"
	if tls {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, strconv.Itoa(int(port))) + "/v1"
}

// reach says where it is, and who may use it.
func reach(l listed) [][]string {
	if l.Port == 0 {
		return [][]string{{"Address", "none: the leader's agent has --gateway 0"}}
	}
	rows := [][]string{{"Address", urlOf(false, "127.0.0.1", l.Port) + " on each machine"}}
	for _, at := range l.Addresses {
		of := at.Host
		if at.Away != "" {
			of += ", " + at.Away
		}
		rows = append(rows, []string{"", at.URL + " (" + of + ")"})
	}
	if v := l.VirtualIP; v != nil && v.Host != "" && len(l.Addresses) == 0 {
		rows = append(rows, []string{"", "virtual IP " + v.Addr.String() + ", on " + v.Host + " now: it answers once there is a key"})
	} else if v != nil && v.Host != "" {
		rows = append(rows, []string{"", urlOf(l.TLS, v.Addr.Addr().String(), l.Port) + " (virtual IP, on " + v.Host + " now)"})
	} else if v != nil {
		rows = append(rows, []string{"", "virtual IP " + v.Addr.String() + ", on no machine: " + cmp.Or(v.Why, "it is being taken")})
	}
	if how := speaks(l); how != nil {
		rows = append(rows, how)
	}
	switch {
	case l.Keys > 0:
		return append(rows, []string{"Keys", fmt.Sprintf("%d: a request needs one", l.Keys)})
	case l.Open:
		return append(rows, []string{"Keys", "none, and it is open: everybody who reaches it may use it"})
	}
	return append(rows, []string{"Keys",
		"none, so it is on loopback alone: `sudo sparkrun gateway key create NAME` lets others in"})
}

func modelRows(l listed) [][]string {
	rows := [][]string{{"MODEL", "STATE", "SERVICE", "HOST", "ALIASES"}}
	aliases, served := map[string][]string{}, map[string]bool{}
	for name, model := range l.Aliases {
		aliases[model] = append(aliases[model], name)
	}
	of := func(model string) string {
		slices.Sort(aliases[model])
		return cmp.Or(plain.Text(strings.Join(aliases[model], ",")), "-")
	}
	for _, b := range l.Backends {
		for _, m := range b.Models {
			served[m] = true
			rows = append(rows, []string{plain.Text(m), rendezvous.State(b.State).Text(), serviceOf(b), cmp.Or(b.Host, "-"), of(m)})
		}
	}
	for model := range aliases {
		if !served[model] {
			rows = append(rows, []string{plain.Text(model), "-", "-", "-", of(model)})
		}
	}
	slices.SortStableFunc(rows[1:], func(a, b []string) int { return strings.Compare(a[0], b[0]) })
	return rows
}

func serviceOf(b rendezvous.Backend) string { return cmp.Or(b.Name, string(b.Job)) }
