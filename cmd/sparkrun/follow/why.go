package follow

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/engine"
)

// whyLines bounds how many lines of a trace are shown: about a screen.
const whyLines = 24

// Why explains a failure in less than a screen: the trace of the rank that failed first,
// or without a trace the last lines that it wrote; then the ranks that failed by
// themselves. In an Open MPI job the ranks are mpirun and its daemons, whose normal end
// says nothing.
func Why(o rendezvous.Outcome, spec launcher.Spec) []string {
	var out []string
	if r := o.Root; r != nil {
		switch {
		case r.Exit.Trace != "":
			out = append(out, "trace of "+spec.Process(r.Rank)+":")
			out = append(out, indented(r.Exit.Trace)...)
		case r.Exit.Last != "":
			out = append(out, "the last lines of "+spec.Process(r.Rank)+":")
			out = append(out, indented(r.Exit.Last)...)
		}
		if x := r.Exit; x.Signal == int(syscall.SIGKILL) && !x.ByUs && x.Cause == "" && x.Words == "" {
			out = append(out, fmt.Sprintf("sparkrun did not send SIGKILL: it is mostly the kernel's, out of memory: on %s "+
				"`sudo dmesg | grep -i 'killed process'` names what it has killed", r.Host))
		}
	}
	if text := flagFor(o.Cause, spec.Workload); text != "" {
		out = append(out, text)
	}
	var done []int
	for _, e := range o.Exits {
		if !e.Exit.Failed() {
			done = append(done, e.Rank)
			continue
		}
		if o.Root != nil && e.Rank == o.Root.Rank || e.Exit.ByUs {
			continue
		}
		out = append(out, fmt.Sprintf("then %s on %s: %s%s", spec.Process(e.Rank), e.Host, e.Exit, later(o.Root, e)))
	}
	if m := spec.MainStage(); len(done) > 0 && (m == nil || m.MPI == nil || m.MPI.Family != launcher.OpenMPI) {
		out = append(out, RankNames(spec, done)+" had ended with 0 before")
	}
	return out
}

// RankNames lists ranks in rising order; a range is shown by its ends.
func RankNames(spec launcher.Spec, ranks []int) string {
	what := "rank"
	if m := spec.MainStage(); m != nil && m.Agents { // as Spec.Process
		what = "torchrun's agent"
	}
	var parts []string
	for i := 0; i < len(ranks); {
		last := i
		for last+1 < len(ranks) && ranks[last+1] == ranks[last]+1 {
			last++
		}
		part := strconv.Itoa(ranks[i])
		if last > i {
			part += "-" + strconv.Itoa(ranks[last])
		}
		parts, i = append(parts, part), last+1
	}
	if len(ranks) == 1 {
		return what + " " + parts[0]
	}
	return what + "s " + strings.Join(parts, ",")
}

// later says how much later than the cause another rank failed.
func later(root *launcher.RankExit, e launcher.RankExit) string {
	if root == nil || !e.Time.After(root.Time) {
		return ""
	}
	return fmt.Sprintf(" (%.2f s later)", e.Time.Sub(root.Time).Seconds())
}

func indented(text string) []string {
	lines := strings.Split(text, "\n")
	if len(lines) > whyLines {
		lines = append([]string{"…"}, lines[len(lines)-whyLines:]...)
	}
	for i := range lines {
		lines[i] = "  " + lines[i]
	}
	return lines
}

// flagFor names the launch flag that would overcome a machine's refusal; the refusal
// itself knows no flags. Empty: there is none.
func flagFor(cause, workload string) string {
	e, serves := engine.Named(workload)
	switch {
	case !serves:
	case strings.Contains(cause, "port "+workloads.ServePort+":"):
		return "--port N is another port for the server"
	case strings.Contains(cause, "not found in PATH"):
		hint := "--" + e.Program.Name + " PATH names the program by its full path"
		if e.Image != "" {
			hint += "; without --runtime host it is the image's"
		}
		return hint
	}
	return ""
}
