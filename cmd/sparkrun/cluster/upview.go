package cluster

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/bootstrap"
)

// upView shows the progress of hosts: on a terminal one line each, updated in place;
// elsewhere a line for each step.
type upView struct {
	app   *app.App
	live  bool
	quiet bool

	mu    sync.Mutex
	hosts []string
	lines map[string]string
	drawn int // lines of ours above the cursor
}

func newUpView(a *app.App, hosts []string, quiet bool) *upView {
	return &upView{app: a, live: a.ErrTTY && !quiet, quiet: quiet, hosts: hosts, lines: map[string]string{}}
}

func (v *upView) take(e bootstrap.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	line := e.Host + "  " + e.Text
	switch e.State {
	case bootstrap.Skipped: // the text says what the step found, and does not name the step
		line = fmt.Sprintf("%s  %s: %s", e.Host, e.Step, e.Text)
	case bootstrap.Failed:
		line = fmt.Sprintf("%s  FAILED at %s: %s", e.Host, e.Step, e.Text)
	case bootstrap.Planned:
		line = fmt.Sprintf("%s  would %s", e.Host, e.Text)
	case bootstrap.Begins:
		if !v.live {
			return
		}
		line += " ..."
	}
	switch {
	case v.quiet:
	case v.live && e.State != bootstrap.Planned:
		v.lines[e.Host] = line
		v.draw()
	default:
		v.erase()
		fmt.Fprintln(v.app.Err, line)
		v.draw()
	}
}

// asking asks a question below the lines that are shown.
func (v *upView) asking(ask func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	ask()
	v.draw()
}

func (v *upView) draw() {
	if !v.live {
		return
	}
	v.erase()
	var b strings.Builder
	for _, h := range v.hosts {
		if line, ok := v.lines[h]; ok {
			b.WriteString(cutTo(line, v.app.Columns()-1) + "\n")
			v.drawn++
		}
	}
	fmt.Fprint(v.app.Err, b.String())
}

func (v *upView) erase() {
	if v.drawn > 0 {
		fmt.Fprintf(v.app.Err, "\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

func cutTo(text string, width int) string {
	if utf8.RuneCountInString(text) <= width || width < 4 {
		return text
	}
	return string([]rune(text)[:width-3]) + "..."
}

// end sums up; done is the word for a host that did not fail. Every failure is printed
// with its whole reason, since a live line is cut off.
func (v *upView) end(results []bootstrap.Result, dryRun bool, done string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.live = false
	failed, cluster := 0, ""
	for _, r := range results {
		if r.Error != "" {
			failed++
		}
		if r.Error == "" && r.Cluster != "" {
			cluster = r.Cluster
		}
	}
	if v.quiet {
		if err := v.app.Object(map[string]any{"cluster": cluster, "dry_run": dryRun, "hosts": results}); err != nil {
			return err
		}
	} else if err := v.summary(results, dryRun, done); err != nil {
		return err
	}
	if failed > 0 {
		return app.Exits(app.ExitFailure,
			fmt.Errorf("%d of %d hosts failed; the same command again goes on where it stopped", failed, len(results)))
	}
	return nil
}

func (v *upView) summary(results []bootstrap.Result, dryRun bool, done string) error {
	rows := [][]string{{"TARGET", "HOST", "CLUSTER", "RELEASE", "STATE"}}
	parts := slices.ContainsFunc(results, func(r bootstrap.Result) bool { return r.Part != "" }) // down sets none
	for _, r := range results {
		state := done
		switch {
		case r.Error != "":
			state = "failed: " + r.Error
		case dryRun:
			state = "not changed"
		}
		rows = append(rows, []string{r.Target, cmp.Or(r.Host, "-"), partOf(r, dryRun), cmp.Or(r.Release, "-"), state})
	}
	if !parts {
		for i, row := range rows {
			rows[i] = slices.Delete(row, 2, 4)
		}
	}
	return v.app.Table(rows)
}

// partOf is a host's part in the cluster, before or now.
func partOf(r bootstrap.Result, dryRun bool) string {
	switch r.Part {
	case bootstrap.Member:
		return "member"
	case bootstrap.Another:
		return "of another"
	case bootstrap.Joins, bootstrap.Founds:
		word := map[bootstrap.Part]string{bootstrap.Joins: "join", bootstrap.Founds: "found"}[r.Part]
		switch {
		case r.Ready:
			return word + "ed"
		case dryRun && r.Error == "":
			return "would " + word
		}
		return "no member"
	}
	return "-"
}
