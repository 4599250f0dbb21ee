package cluster

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"rsc.io/qr"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type webOptions struct{ qr, json bool }

// NewWebCmd makes `sparkrun web`.
func NewWebCmd(a *app.App) *cobra.Command {
	opts := &webOptions{}
	cmd := &cobra.Command{
		Use:        "web",
		SuggestFor: []string{"ui", "dashboard", "page"},
		Short:      "Print a link to the page: machines, jobs, output, services",
		Long: `Every machine shows a page on port 7943: machines, the fabric, jobs with their output,
services, models, what doctor finds; stop and restart. This prints a link to that of the
machine that answers. It opens once, within five minutes, and the browser that opened it
then has your rights there, until you leave the page, or look at none for 12 hours, or
for a week at most.

Without a certificate the page is on 127.0.0.1 alone; from elsewhere it is reached by
ssh -L 7943:127.0.0.1:7943 HOST. Once the gateway has a CA (sparkrun gateway ca create),
or the agent a certificate (--gateway-cert), others reach it by TLS, and --qr draws the
link for a phone.

--json prints host, urls (one for the others first, if there is one), until, and problem
where it is on 127.0.0.1 alone.`,
		Example: `  sparkrun web
  sparkrun web --qr`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, web),
	}
	cmd.Flags().BoolVar(&opts.qr, "qr", false, "draw the link, for a phone's camera")
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func web(ctx context.Context, a *app.App, o webOptions) error {
	b := a.Dial()
	defer b.Close()
	res, err := wire.OpenWeb.Call(ctx, b, wire.Empty{})
	if err != nil {
		return err
	}
	if len(res.URLs) == 0 {
		return fmt.Errorf("the agent of %s gave no link", plain.Line(res.Host))
	}
	if o.json {
		return a.Object(res)
	}
	if res.Problem != "" {
		if o.qr {
			return fmt.Errorf("--qr: no phone reaches the page of %s, it is on 127.0.0.1 alone: %s", plain.Line(res.Host),
				plain.Line(res.Problem))
		}
		at, err := url.Parse(res.URLs[0])
		if err != nil {
			return fmt.Errorf("read the link: %w", err)
		}
		a.Say(fmt.Sprintf("for a browser on %s; elsewhere first: ssh -L %s:127.0.0.1:%[2]s %[1]s", plain.Line(res.Host),
			plain.Line(at.Port())))
	}
	a.Say("it opens once, within five minutes")
	if o.qr {
		drawn, err := drawQR(res.URLs[0])
		if err != nil {
			return err
		}
		fmt.Fprint(a.Out, drawn)
	}
	fmt.Fprintln(a.Out, plain.Line(res.URLs[0]))
	return nil
}

// drawQR draws a text in half blocks, dark on light whatever the terminal's colours are: two rows of squares a line.
func drawQR(text string) (string, error) {
	code, err := qr.Encode(text, qr.L)
	if err != nil {
		return "", fmt.Errorf("draw the link: %w", err)
	}
	const quiet = 2 // squares around it
	var b strings.Builder
	for y := -quiet; y < code.Size+quiet; y += 2 {
		b.WriteString("\x1b[38;5;16;48;5;231m")
		for x := -quiet; x < code.Size+quiet; x++ {
			switch upper, lower := code.Black(x, y), code.Black(x, y+1); {
			case upper && lower:
				b.WriteString("█")
			case upper:
				b.WriteString("▀")
			case lower:
				b.WriteString("▄")
			default:
				b.WriteString(" ")
			}
		}
		b.WriteString("\x1b[0m\n")
	}
	return b.String(), nil
}
