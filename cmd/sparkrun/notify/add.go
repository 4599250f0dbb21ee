package notify

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type addOptions struct {
	name    string
	on      []string
	headers string // a file
	args    []string
}

func newAddCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add",
		Short: "Add a webhook, or a command",
		Long: `Adds whom to tell. Both kinds get one JSON object, with these keys; those that an event
has nothing for are left out, and more may come:

  id       the same whenever this event is sent, for who must not act twice
  event    job-failed and so on, or test
  cluster  its id
  job_id, name, user   of the job or service
  host, rank           of the rank that failed first, else what it is about
  state    of the job, service or machine; for doctor-error its code
  cause    why, in a line
  time     RFC 3339, UTC
  text     all of it in a sentence; content is the same, for Discord`,
		Example: `  sudo sparkrun notify add webhook --name team https://hooks.slack.com/services/T0/B0/XXXX
  sudo sparkrun notify add command --on job-failed,job-ended -- /usr/local/bin/mail-job`,
	}
	app.Group(cmd)
	cmd.AddCommand(newAddWebhookCmd(a), newAddCommandCmd(a))
	return cmd
}

func (o *addOptions) bind(cmd *cobra.Command) {
	all := rendezvous.NotifyEvents()
	cmd.Flags().StringVar(&o.name, "name", "", "what to call it (default: the URL's host, or the command)")
	cmd.Flags().StringSliceVar(&o.on, "on", nil,
		"the events, of "+strings.ReplaceAll(rendezvous.JoinEvents(all), ",", ", ")+" (default: all but job-ended)")
	app.CompleteFlag(cmd, "name", cobra.NoFileCompletions)
	app.CompleteFlag(cmd, "on", func(*cobra.Command, []string, string) (out []string, _ cobra.ShellCompDirective) {
		for _, e := range all {
			out = append(out, string(e))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	})
}

// events are those that were asked for.
func (o *addOptions) events() ([]rendezvous.NotifyEvent, error) {
	all := rendezvous.NotifyEvents()
	if len(o.on) == 0 {
		return slices.DeleteFunc(all, func(e rendezvous.NotifyEvent) bool { return e == rendezvous.EventJobEnded }), nil
	}
	var out []rendezvous.NotifyEvent
	for _, word := range o.on {
		e := rendezvous.NotifyEvent(word)
		if !slices.Contains(all, e) {
			return nil, app.Usagef("--on %s: no such event: want of %s", word, rendezvous.JoinEvents(all))
		}
		if !slices.Contains(out, e) {
			out = append(out, e)
		}
	}
	return out, nil
}

func newAddWebhookCmd(a *app.App) *cobra.Command {
	opts := &addOptions{}
	cmd := &cobra.Command{
		Use:   "webhook [flags] URL",
		Short: "Have a URL called",
		Long: `The machine that leads POSTs each event to the URL as JSON (sparkrun notify add --help
has the keys). Slack, Mattermost and Discord take it as it is, ntfy with the template of
the example. TLS certificates are verified, and redirects are not followed. Every machine
that may lead has to reach the URL.

The URL and the headers are kept sealed: notify ls shows the URL's host alone. To keep it
out of the shell's history give - and the URL on standard input. --header-file has lines
such as Authorization: Bearer TOKEN; - is standard input. It takes root.`,
		Example: `  sudo sparkrun notify add webhook https://hooks.slack.com/services/T0/B0/XXXX
  sudo sparkrun notify add webhook --name discord - < url
  sudo sparkrun notify add webhook 'https://ntfy.sh/TOPIC?tpl=1&m={{.text}}'
  sudo sparkrun notify add webhook --header-file token https://example.com/hook`,
		Args: app.Takes(1, "the URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.args = args
			return app.Running(a, opts, addWebhook)(cmd, args)
		},
	}
	opts.bind(cmd)
	cmd.Flags().StringVar(&opts.headers, "header-file", "", "a file with headers to send, which may be secret")
	return cmd
}

func newAddCommandCmd(a *app.App) *cobra.Command {
	opts := &addOptions{}
	cmd := &cobra.Command{
		Use:   "command [flags] -- CMD [ARG...]",
		Short: "Have a command run",
		Long: `The machine that leads runs the command as root for each event, one after the other, and
ends it after 30 seconds. On its standard input it has the event as JSON (sparkrun notify
add --help has the keys), and the same in SPARKRUN_EVENT, SPARKRUN_JOB_ID, SPARKRUN_TEXT
and so on. SPARKRUN_CAUSE and SPARKRUN_TEXT may have what a user's program printed: quote
them. If it exits otherwise than with 0 it is run again: five tries in ten minutes.

It has to be on every machine that may lead. Its arguments are kept sealed. For another
user than root: -- runuser -u NAME -- CMD. It takes root.`,
		Example: `  sudo sparkrun notify add command -- /usr/local/bin/page-me
  sudo sparkrun notify add command --name wall -- sh -c 'wall "$SPARKRUN_TEXT"'`,
		Args: func(_ *cobra.Command, args []string) error {
			return app.Takes(max(1, len(args)), "the command: -- CMD ARG...")(nil, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); at > 0 {
				return app.Usagef("unexpected argument %q before --", args[0])
			}
			opts.args = args
			return app.Running(a, opts, addCommand)(cmd, args)
		},
	}
	cmd.Flags().SetInterspersed(false) // flags after the command belong to it
	opts.bind(cmd)
	return cmd
}

func addWebhook(ctx context.Context, a *app.App, o addOptions) error {
	on, err := o.events()
	if err != nil {
		return err
	}
	add := wire.NotifyAdd{Name: o.name, On: on, URL: o.args[0]}
	if add.URL == "-" && o.headers == "-" {
		return app.Usagef("the URL and --header-file cannot both be standard input")
	}
	if add.URL == "-" {
		lines, err := linesOf(a, "-")
		if err != nil || len(lines) != 1 {
			return app.Usagef("want the URL, and nothing else, on standard input")
		}
		add.URL = lines[0]
	}
	u, err := url.Parse(add.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" { // its text may be secret
		return app.Usagef("that is no URL: want one such as https://hooks.example.com/path")
	}
	if o.headers != "" {
		if add.Headers, err = linesOf(a, o.headers); err != nil {
			return err
		}
	}
	if u.Scheme == "http" {
		a.Say("warning: http: what is told crosses the network in the clear")
	}
	add.Name = cmp.Or(add.Name, nameOf(u.Hostname()))
	return added(ctx, a, add, "")
}

func addCommand(ctx context.Context, a *app.App, o addOptions) error {
	on, err := o.events()
	if err != nil {
		return err
	}
	name := cmp.Or(o.name, nameOf(filepath.Base(o.args[0])))
	return added(ctx, a, wire.NotifyAdd{Name: name, On: on, Command: o.args},
		"; the command has to be on every machine that may lead")
}

func added(ctx context.Context, a *app.App, add wire.NotifyAdd, more string) error {
	if err := change(ctx, a, wire.NotifyChangeRequest{Add: &add}); err != nil {
		return err
	}
	_, err := fmt.Fprintf(a.Out, "%s is told of %s%s\n", add.Name,
		strings.ReplaceAll(rendezvous.JoinEvents(add.On), ",", ", "), more)
	if err == nil {
		a.Say(fmt.Sprintf("`sudo sparkrun notify test %s` tries it", add.Name))
	}
	return err
}

// nameOf makes a name of a host's or file's.
func nameOf(text string) string {
	name := strings.Trim(strings.Map(func(r rune) rune {
		if launcher.IsName("a" + string(r)) {
			return r
		}
		return '-'
	}, text), "_.-")
	return name[:min(len(name), 64)]
}

// maxFile bounds a file of headers in bytes.
const maxFile = 64 << 10

// linesOf reads a file, or standard input, and gives the lines that are not empty.
func linesOf(a *app.App, path string) (lines []string, err error) {
	in := a.In
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxFile))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	for line := range bytes.Lines(text) {
		if line := strings.TrimSpace(string(line)); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, nil
}
