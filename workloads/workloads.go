// Package workloads decides what a request becomes: the command, environment
// and files of a launcher.Spec. One file a workload, and workloads/engine has the
// servers of models; all of it is pure, so that a dry run and a launch cannot differ.
//
// It must not look at the machine it runs on: what it needs to know of the
// caller (variables, working directory) is in the Request, and what only a node
// can know (an address, a port, a rank) stays a Ref.
package workloads

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/launcher"
)

// Request is what a user asked for.
type Request struct {
	// Job says who, where and for how long. Its Workload and Stages are filled
	// in here, the rest passes through.
	Job launcher.Spec
	// RanksPerNode is the number of processes on each node; 0 means 1.
	RanksPerNode int
	// Workdir is absolute and the same on every node.
	Workdir string
	// Args is what follows the flags: a command, or a script and its arguments.
	Args []string
	// Environ is the caller's environment as os.Environ gives it. Only what
	// callersVars names is taken of it, and what Env asks for by name.
	Environ []string
	// Away: the caller's machine is no member of the cluster, so that its paths mean
	// nothing to the ranks.
	Away bool
	// Home is the caller's home on the nodes; empty: not known.
	Home string
	// Env is the user's wish: NAME=VALUE, or NAME for the caller's value. It
	// wins over everything else.
	Env []string
	// Stdin and RankOptions are of every workload's ranks.
	Stdin launcher.Stdin
	launcher.RankOptions
	// TTY is the size of the terminal that the rank of Stdin gets; nil: none.
	TTY *launcher.Window
	// Before and After are shell commands that run once, as one rank on rank 0's node:
	// before the first attempt of the job, and when it has completed.
	Before, After string
	// NoGPUs: the job takes none, whatever its workload does else.
	NoGPUs bool
	// Container has the ranks run in one each; its Argv is filled in here. nil: on the host.
	Container *launcher.Container
	// Setup is a script of bash that runs in each rank's container before its command, with
	// its variables and where it will run; the command is not begun where it fails.
	Setup string
	// Torchrun and NCCLTest are read by those workloads alone; of Torchrun the test
	// takes Python.
	Torchrun Torchrun
	NCCLTest NCCLTest
	// Ray likewise.
	Ray Ray
	// MPI is read by mpi and nccl-test; its Mpirun by engines that are MPI programs, too.
	MPI MPI
	// Serve is read by the engines (workloads/engine).
	Serve Serve
	// IBTest likewise.
	IBTest IBTest
}

// Workload makes Specs of one kind.
type Workload struct {
	Name string
	// Spec gives a valid spec with its defaults filled in. Its errors wrap
	// launcher.ErrInvalid.
	Spec func(Request) (launcher.Spec, error)
}

// All lists the workloads of this package by name.
func All() []Workload {
	return []Workload{
		{Name: "exec", Spec: execSpec},
		{Name: "ib-test", Spec: ibTestSpec},
		{Name: "mpi", Spec: mpiSpec},
		{Name: "nccl-test", Spec: ncclTestSpec},
		{Name: "ray", Spec: raySpec},
		{Name: "torchrun", Spec: torchrunSpec},
	}
}

// ErrUnknown is wrapped by Find's error.
var ErrUnknown = errors.New("unknown workload")

// Find gives one of all workloads by name. The error of a name that is none suggests one.
func Find(all []Workload, name string) (Workload, error) {
	var known []string
	for _, w := range all {
		if w.Name == name {
			return w, nil
		}
		known = append(known, w.Name)
	}
	hint := ""
	if near := nearest(name, known); near != "" {
		hint = fmt.Sprintf("did you mean %s? ", near)
	}
	return Workload{}, fmt.Errorf("%w %q: %sknown: %s", ErrUnknown, name, hint, strings.Join(known, ", "))
}

// finish makes the spec of a workload that has one stage.
func finish(r Request, workload string, st launcher.Stage) (launcher.Spec, error) {
	st.Main = true
	return Finish(r, workload, []launcher.Stage{st})
}

// Finish makes the spec of a workload whose stages come up one after the other.
func Finish(r Request, workload string, steps []launcher.Stage) (launcher.Spec, error) {
	if r.Setup != "" && r.Container == nil {
		return launcher.Spec{}, fmt.Errorf("mods: %w: they change what is in an image, and no image is used",
			launcher.ErrInvalid)
	}
	spec := r.Job
	spec.Workload = workload
	for i := range steps {
		st := &steps[i]
		st.GPU = spec.GPUs != launcher.NoGPUs
		st.RankOptions = r.RankOptions
		if st.Main {
			st.Stdin, st.TTY = r.Stdin, r.TTY
		}
		if st.Container = r.contain(r.afterSetup(st.Argv)); st.Container != nil {
			st.Argv = nil
		}
	}
	spec.Stages = steps
	st := *spec.MainStage()
	for _, once := range []struct{ name, command string }{
		{launcher.StageBefore, r.Before}, {launcher.StageAfter, r.After},
	} {
		if once.command != "" {
			own := launcher.Stage{Name: once.name, RanksPerNode: 1, Argv: launcher.Lits("sh", "-c", once.command),
				Env: withoutPorts(st.Env), Workdir: st.Workdir}
			if own.Container = r.contain(own.Argv); own.Container != nil {
				own.Argv = nil
			}
			spec.Stages = append(spec.Stages, own)
		}
	}
	for _, st := range steps {
		if err := wellFormed(st); err != nil {
			return launcher.Spec{}, err
		}
	}
	if err := spec.Validate(); err != nil {
		return launcher.Spec{}, err
	}
	return spec.WithDefaults(), nil
}

// contain is the container of a stage's ranks: all ranks of a job use one image.
func (r Request) contain(argv []launcher.Value) *launcher.Container {
	if r.Container == nil {
		return nil
	}
	c := *r.Container
	c.Argv = argv
	return &c
}

// afterSetup is a command that runs once Setup has, in the same process.
func (r Request) afterSetup(argv []launcher.Value) []launcher.Value {
	if r.Setup == "" {
		return argv
	}
	return append(launcher.Lits("bash", "-ec", r.Setup+"\nexec \"$@\"", "setup"), argv...)
}

// withoutPorts leaves out variables that refer to a port, which only a generation with
// stages has.
func withoutPorts(env []launcher.Var) []launcher.Var {
	return slices.DeleteFunc(slices.Clone(env), func(v launcher.Var) bool {
		return slices.ContainsFunc(v.Value, func(p launcher.Part) bool { return p.Ref.IsNamedPort() })
	})
}

// wellFormed refuses text that is no UTF-8: the record and the wire would change
// it on the way.
func wellFormed(st launcher.Stage) error {
	for _, v := range st.Command() {
		if !utf8.ValidString(v.String()) {
			return fmt.Errorf("argument %q: %w: it is not UTF-8", v, launcher.ErrInvalid)
		}
	}
	for _, e := range st.Env {
		if !utf8.ValidString(e.Value.String()) {
			return fmt.Errorf("variable %s (%s): %w: its value is not UTF-8", e.Name, e.Source, launcher.ErrInvalid)
		}
	}
	if !utf8.ValidString(st.Workdir) {
		return fmt.Errorf("--workdir %q: %w: it is not UTF-8", st.Workdir, launcher.ErrInvalid)
	}
	return nil
}

func (r Request) ranksPerNode() int {
	if r.RanksPerNode == 0 {
		return 1
	}
	return r.RanksPerNode
}

// nearest picks the candidate that a typo of up to two letters, or a name cut
// short, was meant for; empty when none or the text itself is too short to tell.
func nearest(text string, candidates []string) string {
	best, bestAt := "", 3
	for _, c := range candidates {
		if len(text) >= 3 && strings.HasPrefix(c, strings.ToLower(text)) {
			return c
		}
		if d := Distance(strings.ToLower(text), c); d < bestAt && d < len(c)-1 {
			best, bestAt = c, d
		}
	}
	return best
}

// Distance counts the letters to insert, drop or change to make b of a (Levenshtein), in bytes: a name that was meant
// is near the one that was typed.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// Lookup finds a variable in an environment; the last one of a name counts.
func Lookup(environ []string, name string) (string, bool) {
	for _, kv := range slices.Backward(environ) {
		if k, v, ok := strings.Cut(kv, "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// InVenv is a program of the virtual environment that the caller has active; of its bare name
// where none is, or where the caller's paths mean nothing to the ranks.
func (r Request) InVenv(name string) string {
	if venv, _ := Lookup(r.Environ, "VIRTUAL_ENV"); venv != "" && !r.Away && r.Container == nil {
		return path.Join(venv, "bin", name)
	}
	return name
}
