package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// dryPatience is how long a dry run waits for an election, as a launch does.
const dryPatience = 10 * time.Second

// Answer is what the machines said about a launch, and about which one.
type Answer struct {
	wire.ExplainResponse
	spec  launcher.Spec
	model string
}

// of tells whether the answer also holds for another spec: the same machines, memory and
// model.
func (t *Answer) of(spec launcher.Spec, model string) bool {
	s := t.spec
	return t.model == model && s.User == spec.User && s.Nodes == spec.Nodes && s.MinNodes == spec.MinNodes &&
		s.Spare == spec.Spare && slices.Equal(s.On, spec.On) && slices.Equal(s.Exclude, spec.Exclude) &&
		s.GPUs == spec.GPUs && s.Wait == spec.Wait && s.Share == spec.Share &&
		(s.Memory == nil) == (spec.Memory == nil) && (s.Memory == nil || *s.Memory == *spec.Memory)
}

// Ask asks the machines that a launch would get, before the launch, unless they have
// answered already. It reserves nothing.
func Ask(ctx context.Context, a *app.App, o Options) (*Answer, error) {
	o.Request.Job.Force = true
	spec, err := Spec(a, o)
	if err != nil {
		return nil, err
	}
	if o.Told != nil && o.Told.of(spec, o.Model) {
		return o.Told, nil
	}
	b, end, err := Open(a, o.Standalone)
	if err != nil {
		return nil, err
	}
	defer end()
	res, err := explain(ctx, b, spec, o.Model)
	if err != nil {
		return nil, err
	}
	return &Answer{res, spec, o.Model}, nil
}

// explain asks what a launch would do, and for a model on its machines; an empty model
// means none.
func explain(ctx context.Context, b *wire.Client, spec launcher.Spec, model string) (wire.ExplainResponse, error) {
	r := wire.LaunchRequest{Spec: spec, Model: model}
	res, err := wire.Explain.Call(ctx, b, r)
	end, again := time.Now().Add(dryPatience), app.Pause{}
	for errors.Is(err, wire.ErrRetry) && time.Now().Before(end) && again.Wait(ctx) == nil {
		res, err = wire.Explain.Call(ctx, b, r)
	}
	return res, err
}

// dryRun shows what a launch would do. It fails where a machine would refuse, as the
// launch would.
func dryRun(ctx context.Context, a *app.App, b *wire.Client, spec launcher.Spec, o Options) error {
	res, err := explain(ctx, b, spec, o.Model)
	if err != nil {
		return err
	}
	for i := range res.Nodes {
		if m := res.Nodes[i].Model; m != nil {
			m.Config = nil // it has been read, and people need not see it
		}
	}
	if o.JSON {
		err = a.Object(res)
	} else {
		err = writePlan(a.Out, spec, res)
	}
	if err != nil {
		return err
	}
	if o.Fit != nil {
		if err := o.Fit(res, true); err != nil {
			return fmt.Errorf("the launch would be refused: %w", err)
		}
	}
	if err := rendezvous.Unfit(res.Findings); err != nil {
		return fmt.Errorf("the launch would be refused: %w", err)
	}
	for _, n := range res.Nodes {
		if n.Error != "" {
			return fmt.Errorf("%s would refuse: %s", n.Host, n.Error)
		}
	}
	if unlike := unlikeImages(spec, res.Nodes); unlike != "" {
		return fmt.Errorf("the launch would be refused: %s", unlike)
	}
	return nil
}

// fits refuses a job that does not fit the machines that it would get; they are asked
// unless they have answered already. A queued job may get other machines, or more memory.
func (o Options) fits(ctx context.Context, b *wire.Client, spec launcher.Spec) error {
	if o.Fit == nil || spec.Wait {
		return nil
	}
	if o.Told != nil && o.Told.of(spec, o.Model) {
		return o.Fit(o.Told.ExplainResponse, false)
	}
	res, err := explain(ctx, b, spec, o.Model)
	if err != nil {
		return err
	}
	return o.Fit(res, false)
}

// unlikeImages is the leader's error about machines that have different images; empty:
// they have the same.
func unlikeImages(spec launcher.Spec, nodes []wire.NodePlan) string {
	c := spec.MainStage().Container
	if c == nil {
		return ""
	}
	var hosts []string
	var seen []*launcher.ImageSeen
	for _, n := range nodes {
		if len(n.Ranks) == 0 {
			return ""
		}
		hosts, seen = append(hosts, n.Host), append(seen, n.Ranks[0].Image)
	}
	return launcher.UnlikeImages(c.Image, hosts, seen)
}

func writePlan(w io.Writer, spec launcher.Spec, res wire.ExplainResponse) error {
	under, byMpirun := mpirunOf(res)
	ranks := app.Count(res.Plan.World, "rank")
	if byMpirun {
		ranks = app.Count(res.Plan.World*under.PerNode, "MPI rank")
	}
	fmt.Fprintf(w, "%s, %s; head address %s (%s)\n", app.Count(len(res.Nodes), "machine"), ranks, res.Plan.Head,
		res.Plan.Why)
	if text := startsMPI(spec, res, under); text != "" {
		fmt.Fprintln(w, text)
	}
	for _, f := range res.Findings {
		fmt.Fprintf(w, "%s: %s\n", f.Severity, rendezvous.Describe(f))
	}
	for i, n := range res.Nodes {
		first, ranks := 0, len(n.Ranks)
		if i < len(res.Plan.Nodes) {
			first, ranks = res.Plan.Nodes[i].FirstRank, res.Plan.Nodes[i].Ranks
		}
		if byMpirun {
			fmt.Fprintf(w, "\n%s: MPI %s, by %s\n", n.Host, app.RankSpan(first*under.PerNode, ranks*under.PerNode),
				spec.Process(first))
		} else {
			fmt.Fprintf(w, "\n%s: %s\n", n.Host, app.RankSpan(first, ranks))
		}
		if n.Error != "" {
			fmt.Fprintf(w, "  would refuse: %s\n", n.Error)
		}
		if len(n.Ranks) == 0 {
			continue
		}
		if c := spec.MainStage().Container; c != nil && n.Ranks[0].Pulls {
			fmt.Fprintf(w, "  image %s is not here: it will be pulled\n", c.Image)
		}
		if !spec.Stepped() {
			if err := writeStage(w, *spec.MainStage(), n.Ranks, spec); err != nil {
				return err
			}
			continue
		}
		for k, st := range spec.Steps() {
			var ranks []launcher.RankPlan
			for local, r := range n.Ranks {
				if of, _ := spec.StepOf(i, local); of == k {
					ranks = append(ranks, r)
				}
			}
			if len(ranks) == 0 {
				continue
			}
			fmt.Fprintf(w, "  stage %s, %s\n", st.Name, app.RankSpan(ranks[0].Rank, len(ranks)))
			if err := writeStage(w, st, ranks, spec); err != nil {
				return err
			}
		}
	}
	return nil
}

// mpirunOf is how the ranks of an Open MPI job are started; false: it is another kind of
// job.
func mpirunOf(res wire.ExplainResponse) (mpi.Options, bool) {
	for _, n := range res.Nodes {
		for _, r := range n.Ranks {
			return mpi.OptionsOf(r.Argv)
		}
	}
	return mpi.Options{}, false
}

// startsMPI says which MPI a program was built for, and who starts its ranks; empty: no
// MPI program.
func startsMPI(spec launcher.Spec, res wire.ExplainResponse, under mpi.Options) string {
	st := spec.MainStage()
	if st == nil || st.MPI == nil || spec.Workload == ibTestName || len(res.Nodes) == 0 {
		return ""
	}
	if head := res.Nodes[0].Host; under.Task > 0 {
		return fmt.Sprintf("%s on %s starts %s on each machine, and that the server on %s",
			cmp.Or(under.Mpirun, "Open MPI's mpirun"), head, st.MPI.Program, head)
	}
	by := "by what it is linked to"
	if st.MPI.Forced {
		by = "by --mpi"
	}
	switch st.MPI.Family {
	case launcher.OpenMPI:
		return fmt.Sprintf("%s is for Open MPI, %s: %s on %s starts it, %d on each machine", st.MPI.Program, by,
			cmp.Or(under.Mpirun, "its mpirun"), res.Nodes[0].Host, max(1, under.PerNode))
	case launcher.MPICH:
		return fmt.Sprintf("%s is for MPICH's family, %s: sparkrun starts its ranks", st.MPI.Program, by)
	}
	return ""
}

// writeStage prints what the ranks of one stage would run on one machine.
func writeStage(w io.Writer, st launcher.Stage, ranks []launcher.RankPlan, spec launcher.Spec) error {
	if first := ranks[0]; len(first.Docker) > 0 {
		fmt.Fprintf(w, "  $ docker run %s\n", dockerLines(first.Docker))
	}
	if dir := workdirOf(ranks[0], spec); dir != "" { // empty for a container whose image is not known yet
		fmt.Fprintf(w, "  in %s\n", dir)
	}
	argv := make([]string, len(ranks[0].Argv))
	for i, word := range ranks[0].Argv {
		argv[i] = shortScript(word)
	}
	fmt.Fprintf(w, "  $ %s\n", app.QuoteAll(argv))
	return writeEnv(w, ranks, st)
}

// scriptLines is the number of lines above which a script in a command line is shortened, so that the plan is seen
// beside it.
const scriptLines = 20

// shortScript gives the first line of a word that is a long script, and its size.
func shortScript(word string) string {
	n := strings.Count(strings.TrimSuffix(word, "\n"), "\n") + 1
	if n <= scriptLines {
		return word
	}
	first, _, _ := strings.Cut(word, "\n")
	return fmt.Sprintf("%s … (%d lines, %d KiB; --json has them)", first, n, (len(word)+1023)>>10)
}

// dockerLines puts each option of a docker command on a line of its own.
func dockerLines(words []string) string {
	var b strings.Builder
	for i, w := range words {
		switch {
		case i == 0:
		case strings.HasPrefix(w, "--"), !strings.HasPrefix(words[i-1], "--") && strings.HasPrefix(w, "sha256:"):
			b.WriteString(" \\\n      ")
		default:
			b.WriteString(" ")
		}
		b.WriteString(app.Quote(w))
	}
	return b.String()
}

// workdirOf is where a rank will run: for a job that brings files along, in their folder,
// which each node has in its own state folder.
func workdirOf(r launcher.RankPlan, spec launcher.Spec) string {
	if r.Dir != "" {
		return r.Dir
	}
	if spec.Staged != nil && spec.Staged.Workdir {
		for _, v := range r.Env {
			if v.Name == launcher.StageEnv {
				return v.Value
			}
		}
	}
	return spec.MainStage().Workdir
}

// Widest bounds the column of values, so that one long path does not push all sources off
// the screen.
const Widest = 48

func writeEnv(w io.Writer, ranks []launcher.RankPlan, st launcher.Stage) error {
	width := 0
	var settings []string
	env := ranks[0].Env
	if _, is := mpi.OptionsOf(ranks[0].Argv); is { // of mpirun and its daemons; the MPI ranks do not have them
		env = slices.DeleteFunc(slices.Clone(env), func(v launcher.Setting) bool { return strings.HasPrefix(v.Name, "PMI_") })
	}
	for _, v := range env {
		text := v.Name + "=" + valueOn(ranks, v.Name, st)
		settings = append(settings, text)
		if n := utf8.RuneCountInString(text); n <= Widest {
			width = max(width, n)
		}
	}
	for i, v := range env {
		if _, err := fmt.Fprintf(w, "    %-*s  # %s\n", width, settings[i], v.Source); err != nil {
			return err
		}
	}
	return nil
}

// valueOn gives a variable's value on a node: one for all its ranks, or one for each.
func valueOn(ranks []launcher.RankPlan, name string, st launcher.Stage) string {
	if isPort(st, name) {
		return "<free port>"
	}
	var values []string
	same := true
	for _, r := range ranks {
		for _, v := range r.Env {
			if v.Name == name {
				values = append(values, app.Quote(v.Value))
				same = same && values[0] == values[len(values)-1]
			}
		}
	}
	if same {
		return values[0]
	}
	return strings.Join(values, " | ")
}

// isPort tells whether a variable's value is a port, which only prepare finds: a dry run
// cannot know it.
func isPort(st launcher.Stage, name string) bool {
	is := false
	for _, v := range st.Env {
		if v.Name == name {
			is = len(v.Value) == 1 && v.Value[0].Ref == launcher.Port
		}
	}
	return is
}
