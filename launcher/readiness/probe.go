package readiness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/logs"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// How often probes run, and how long one answer may take. A command may be a Python that
// imports many packages on a machine that loads a model meanwhile.
const (
	probeSoon  = 200 * time.Millisecond // between the first ones
	probeLater = time.Second            // after probeYoung
	probeYoung = 10 * time.Second
	netWait    = 2 * time.Second
	execWait   = 2 * time.Minute
	movedEvery = 2 * time.Second // between two events that only report that output grows
	probeLast  = 3               // last lines that are reported
)

// Prober runs one step's probes on this node. Each Run starts anew: what passed an hour ago
// for another leader does not count now.
type Prober struct {
	Assignment launcher.Assignment
	Ask        launcher.AskReady
	LogDir     string // has the ranks' output
	// Placement gives the placement of a local rank, with the ports that are known.
	Placement func(local int) launcher.Placement
	// Exec runs a command beside a local rank, and passes on its output.
	Exec func(ctx context.Context, local int, argv []string, out func(launcher.Stream, []byte) error) (launcher.Exit,
		error)
	// Tell is called with each change.
	Tell func(launcher.Event)
	// Again is signalled to report the present state once more.
	Again <-chan struct{}

	scans map[string]*scanned // by file
}

// Run runs the probes until all have passed, or ctx ends.
func (p *Prober) Run(ctx context.Context) {
	p.scans = map[string]*scanned{}
	st := p.Assignment.Spec.Steps()[p.Ask.Step]
	began, told := time.Now(), time.Time{}
	var last launcher.Event
	repeat := true
	for ctx.Err() == nil {
		text := ""
		for _, probe := range st.ProbesOn(p.Assignment.NodeRank) {
			if text = p.look(ctx, st, probe); text != "" {
				break
			}
		}
		ev := launcher.Event{Kind: launcher.Probed, Step: p.Ask.Step, Text: text, Time: time.Now()}
		ev.Moved, ev.Last = p.written()
		if ctx.Err() != nil {
			return
		}
		if repeat || text == "" || text != last.Text || ev.Moved != last.Moved && time.Since(told) >= movedEvery {
			p.Tell(ev)
			last, told, repeat = ev, time.Now(), false
		}
		if text == "" {
			return
		}
		wait := probeSoon
		if time.Since(began) > probeYoung {
			wait = probeLater
		}
		select {
		case <-time.After(wait):
		case <-p.Again:
			repeat = true
		case <-ctx.Done():
		}
	}
}

// look runs one probe; empty: it has passed.
func (p *Prober) look(ctx context.Context, st launcher.Stage, probe launcher.Probe) (waits string) {
	local := 0
	if st.On(p.Assignment.NodeRank) {
		local = p.Assignment.Spec.FirstOf(p.Ask.Step, p.Assignment.NodeRank)
	}
	placement := p.Placement(local)
	var err error
	switch probe.Kind {
	case launcher.ProbeTCP, launcher.ProbeHTTP:
		err = p.dial(ctx, probe, placement)
	case launcher.ProbeLog:
		err = p.scan(ctx, st, probe, local)
	case launcher.ProbeExec:
		return p.exec(ctx, probe, placement, local)
	default:
		err = errors.New("not known to this version of sparkrun")
	}
	if err != nil {
		return fmt.Sprintf("%s: %v", probe.What, err)
	}
	return ""
}

// dial looks for a listener on the management address, on the network that the nodes use,
// and on loopback, where programs listen that accept only local clients. All are this
// machine: the packet filter lets us through.
func (p *Prober) dial(ctx context.Context, probe launcher.Probe, placement launcher.Placement) error {
	port, err := placement.Resolve(probe.Port)
	if err != nil {
		return err
	}
	var answered error // says more than no answer at another address
	for _, host := range hereAt(p.Assignment, placement) {
		asked, cancel := context.WithTimeout(ctx, netWait)
		if probe.Kind == launcher.ProbeHTTP {
			err = get(asked, "http://"+net.JoinHostPort(host, port)+probe.Path)
		} else {
			var c net.Conn
			if c, err = (&net.Dialer{}).DialContext(asked, "tcp", net.JoinHostPort(host, port)); err == nil {
				c.Close()
			}
		}
		cancel()
		if err == nil {
			return nil
		}
		if !errors.Is(err, errNoAnswer) {
			answered = err
		}
	}
	if probe.Kind == launcher.ProbeTCP {
		return fmt.Errorf("nothing listens on port %s", port)
	}
	return cmp.Or(answered, err)
}

var errNoAnswer = errors.New("no answer yet")

// direct asks this machine without a proxy, and follows no redirect elsewhere.
var direct = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func get(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := direct.Do(req)
	switch {
	case err != nil:
		return errNoAnswer
	case res.StatusCode < 200 || res.StatusCode > 299: // a redirect is no answer of the server's own
		err = fmt.Errorf("it answers %s", status(res))
	}
	res.Body.Close()
	return err
}

// status describes an answer in our own words: its text may be a megabyte long, or control
// a terminal.
func status(res *http.Response) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", res.StatusCode, http.StatusText(res.StatusCode)))
}

// execOutput bounds how much of a probe's output is read, and so the cost of a pattern.
const execOutput = 64 << 10

// exec runs a probe's command beside the rank.
func (p *Prober) exec(ctx context.Context, probe launcher.Probe, placement launcher.Placement,
	local int) (waits string) {
	ctx, cancel := context.WithTimeout(ctx, execWait)
	defer cancel()
	argv, err := placement.Argv(launcher.Stage{Argv: probe.Argv})
	if err != nil {
		return fmt.Sprintf("%s: %v", probe.What, err)
	}
	var out, all strings.Builder
	exit, err := p.Exec(ctx, local, argv, func(of launcher.Stream, b []byte) error {
		b = b[:min(len(b), execOutput-all.Len())]
		all.Write(b)
		if of == launcher.Stdout {
			out.Write(b)
		}
		return nil
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Sprintf("%s: `%s` did not answer within %s", probe.What, argv[0], execWait)
	case err != nil:
		return fmt.Sprintf("%s: %v", probe.What, err)
	case probe.Match != "" && len(probe.Want) > 0:
		return count(probe, placement, out.String())
	case exit.Failed():
		return fmt.Sprintf("%s: %s: %s", probe.What, exit, lastLine(all.String()))
	case probe.Match != "" && !regexp.MustCompile(probe.Match).MatchString(out.String()):
		return probe.What
	}
	return ""
}

// count reports how much of what is wanted a command's output shows.
func count(probe launcher.Probe, placement launcher.Placement, out string) (waits string) {
	text, err := placement.Resolve(probe.Want)
	want, nerr := strconv.ParseFloat(text, 64)
	if err = errors.Join(err, nerr); err != nil {
		return fmt.Sprintf("%s: %v", probe.What, err)
	}
	sum := 0.0
	for _, m := range regexp.MustCompile(probe.Match).FindAllStringSubmatch(out, -1) { // valid: see Probe.validate
		n := 1.0
		if len(m) > 1 {
			n, _ = strconv.ParseFloat(m[1], 64)
		}
		sum += n
	}
	if sum >= want {
		return ""
	}
	return fmt.Sprintf("%g of %g %s", sum, want, probe.What)
}

func lastLine(text string) string {
	lines := strings.FieldsFunc(strings.TrimSpace(text), func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) == 0 {
		return ""
	}
	return plain.Cut(plain.Strip(lines[len(lines)-1]), launcher.MaxLineBytes)
}

// files are the files of the step's output here, each stream in its parts.
func (p *Prober) files() (all []string) {
	step := p.Assignment.Spec.Steps()[p.Ask.Step]
	if !step.On(p.Assignment.NodeRank) {
		return nil
	}
	first := p.Assignment.FirstRank + p.Assignment.Spec.FirstOf(p.Ask.Step, p.Assignment.NodeRank)
	dir := p.LogDir
	parts := logs.Parts(dir)
	for rank := first; rank < first+step.RanksPerNode; rank++ {
		for _, stream := range []launcher.Stream{launcher.Stdout, launcher.Stderr} {
			path := filepath.Join(dir, fmt.Sprintf("rank-%d.%s", rank, stream))
			all = append(all, path)
			for _, base := range parts[path] {
				all = append(all, shim.PartName(path, base))
			}
		}
	}
	return all
}
