package gateway

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func newCACmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ca",
		Short: "TLS by a CA of the gateway's own",
		Long: `With a CA of its own the gateway speaks TLS on all addresses but loopback: each machine
has a certificate that is renewed by itself. A machine whose agent has --gateway-cert
shows that one instead. Clients have to trust the CA; it can sign for the cluster's
names and networks alone, and members trust nobody by it.`,
		Example: `  sudo sparkrun gateway ca create --name models.example.com
  sparkrun gateway ca show > ca.pem
  curl --cacert ca.pem https://10.0.0.11:7942/v1/models`,
	}
	app.Group(cmd)
	cmd.AddCommand(newCACreateCmd(a), newCAShowCmd(a), newCARmCmd(a))
	return cmd
}

type caCreateOptions struct{ names []string }

func newCACreateCmd(a *app.App) *cobra.Command {
	opts := &caCreateOptions{}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make the CA, or add names to it",
		Long: `Makes the CA, and has every machine speak TLS within seconds. A machine's certificate
names its host name, the same with .local, its management address, the virtual IP, and
each NAME: by what else clients call the machines. The CA's own certificate permits the
host names, the NAMEs and the management networks, and nothing else.

If there is a CA its key stays: it gets the NAMEs, and the machines that have joined
since. A client with the certificate of before goes on with the machines that it permits,
and with none once there is a new NAME: give it the new one. ca rm and then ca create
make another key, as after the removal of a machine whose root may have copied this one.
It takes root.`,
		Example: `  sudo sparkrun gateway ca create
  sudo sparkrun gateway ca create --name models.example.com,100.64.0.7`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, createCA),
	}
	cmd.Flags().StringSliceVar(&opts.names, "name", nil,
		"a `NAME` or address by which clients call the machines; with commas, or repeat for more")
	app.CompleteFlag(cmd, "name", cobra.NoFileCompletions)
	return cmd
}

func createCA(ctx context.Context, a *app.App, o caCreateOptions) error {
	now, err := change(ctx, a, rendezvous.GatewayChange{CA: &rendezvous.GatewayCA{Names: o.names}})
	if err != nil {
		return err
	}
	a.Say("clients have to trust it: `sparkrun gateway ca show` prints its certificate")
	if now != nil && !now.Open && len(now.Keys) == 0 {
		sayReach(a, now)
	}
	_, err = fmt.Fprintln(a.Out, "the gateway speaks TLS within seconds, but on loopback")
	return err
}

func newCAShowCmd(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "show", SuggestFor: []string{"ls", "list"},
		Short: "Print the CA's certificate, for clients",
		Long: `Prints the certificate of the gateway's CA in PEM form. It is no secret: it lets nobody
in. Programs take it as a file: curl by --cacert, those of Go, OpenSSL and Python's httpx
(openai, anthropic) by SSL_CERT_FILE, in place of all others; Python's requests by
REQUESTS_CA_BUNDLE; Node.js by NODE_EXTRA_CA_CERTS, beside all others.`,
		Example: `  sparkrun gateway ca show > ca.pem
  SSL_CERT_FILE=ca.pem python3 chat.py
  sparkrun gateway ca show | openssl x509 -noout -text`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, &struct{}{}, showCA),
	}
}

func showCA(ctx context.Context, a *app.App, _ struct{}) error {
	b := a.Dial()
	defer b.Close()
	g, err := show(ctx, b)
	if err != nil {
		return err
	}
	if g.CA == nil {
		return fmt.Errorf("%w: `sudo sparkrun gateway ca create` makes one", rendezvous.ErrNoGatewayCA)
	}
	_, err = fmt.Fprint(a.Out, g.CA.Cert)
	return err
}

func newCARmCmd(a *app.App) *cobra.Command {
	return &cobra.Command{
		Use: "rm", Aliases: []string{"remove"},
		Short: "Remove the CA: plain HTTP again",
		Long: `Every machine speaks plain HTTP again, but for those whose agent has --gateway-cert, and
the CA's key is forgotten. Connections end. Tell clients to forget the certificate: a
snapshot of the record has the key still. It takes root.`,
		Example: `  sudo sparkrun gateway ca rm`,
		Args:    app.Takes(0, ""),
		RunE:    app.Running(a, &struct{}{}, removeCA),
	}
}

func removeCA(ctx context.Context, a *app.App, _ struct{}) error {
	now, err := change(ctx, a, rendezvous.GatewayChange{DropCA: true})
	if err != nil {
		return err
	}
	if now != nil && (now.Open || len(now.Keys) > 0) {
		a.Say("warning: keys and requests cross the network in the clear")
	}
	_, err = fmt.Fprintln(a.Out, "the gateway has no CA")
	return err
}

// speaks says how addresses other than loopback speak; nil: there are none, and no CA.
func speaks(l listed) []string {
	var text string
	switch {
	case l.files:
		text = "by the certificate of " + l.asked + "'s agent (--gateway-cert)"
	case l.CA != nil:
		text = "by a CA of its own, until " + l.CA.Until.Local().Format("2006-01-02") + ": `sparkrun gateway ca show`"
		if len(l.CA.Names) > 0 {
			text += "; also for " + plain.Text(strings.Join(l.CA.Names, ", "))
		}
	case len(l.Addresses) > 0:
		text = "none: `sudo sparkrun gateway ca create`, or certificates of yours (`sparkrun help serving`)"
	default:
		return nil
	}
	return []string{"TLS", text}
}

// caNotes say what the CA lacks.
func caNotes(ca *wire.GatewayCA) []string {
	if ca == nil || len(ca.Missing) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("the CA does not know the name or address of %s: `sudo sparkrun gateway ca create` adds "+
		"what there is now, and clients need its certificate anew", app.Hosts(ca.Missing))}
}
