package workloads

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// NCCLTest are the options of a test of the links.
type NCCLTest struct {
	// Op is one of NCCLOps; empty means the first.
	Op string
	// Min and Max are message sizes in bytes, each Factor (2 or more) times the one
	// before. 0 means 8 MiB, 4 GiB and 2. A node with little memory lowers Max.
	Min, Max int64
	Factor   int
	// Iters are the timed runs of each size, Warmup those before; 0 means 20 and 2.
	Iters, Warmup int
	// Program is nccl-tests' own for Op, such as /opt/nccl-tests/build/all_gather_perf, on
	// every node; it runs as an MPI program, and nothing lowers Max for it. Empty: the
	// sweep, by torch.
	Program string
	// Libraries is a folder before the caller's LD_LIBRARY_PATH: of an NCCL that was built
	// with Program; empty: none.
	Libraries string
}

// NCCLOps are the operations that a test knows, the usual one first.
func NCCLOps() []string {
	return []string{"all_gather", "all_reduce", "reduce_scatter", "alltoall", "sendrecv", "broadcast"}
}

// Defaults of an NCCLTest. The link's rate shows in large messages; the largest takes
// two buffers of 4 GiB on each node, where nccl-tests would take three.
const (
	ncclMin    = 8 << 20
	ncclMax    = 4 << 30
	ncclLeast  = 4 << 10  // below it a float for each rank may be missing
	ncclMost   = 64 << 30 // half a Spark's memory
	ncclFactor = 2
	ncclIters  = 20
	ncclWarmup = 2
)

// sweep is the program that --via torch runs: it travels in the ranks' command line,
// so that nothing needs to be on the nodes but PyTorch.
//
//go:embed sweep.py
var sweep string

// WithDefaults fills in what is 0.
func (t NCCLTest) WithDefaults() NCCLTest {
	if t.Op == "" {
		t.Op = NCCLOps()[0]
	}
	or := func(n *int, otherwise int) {
		if *n == 0 {
			*n = otherwise
		}
	}
	or(&t.Factor, ncclFactor)
	or(&t.Iters, ncclIters)
	or(&t.Warmup, ncclWarmup)
	if t.Max == 0 {
		t.Max = max(ncclMax, t.Min)
	}
	if t.Min == 0 {
		t.Min = min(ncclMin, t.Max)
	}
	return t
}

func (t NCCLTest) validate() error {
	bad := func(what string) error { return fmt.Errorf("nccl-test: %w: %s", launcher.ErrInvalid, what) }
	switch {
	case !slices.Contains(NCCLOps(), t.Op):
		hint := ""
		if near := nearest(t.Op, NCCLOps()); near != "" {
			hint = fmt.Sprintf(": did you mean %s?", near)
		}
		return bad(fmt.Sprintf("no operation %q%s; known: %s", t.Op, hint, strings.Join(NCCLOps(), ", ")))
	case t.Min < ncclLeast || t.Max > ncclMost:
		return bad(fmt.Sprintf("sizes %s to %s: want 4K to 64G", typed(t.Min), typed(t.Max)))
	case t.Min > t.Max:
		return bad(fmt.Sprintf("--min %s is above --max %s", typed(t.Min), typed(t.Max)))
	case t.Factor < 2 || t.Iters < 1 || t.Warmup < 1:
		return bad("want --factor 2 or more, and 1 iteration or more")
	}
	return nil
}

// typed writes a size as people type it: 4G, 1536M, 100 (bytes).
func typed(n int64) string {
	unit := 0
	for n != 0 && n%1024 == 0 && unit < 4 {
		n, unit = n/1024, unit+1
	}
	return strconv.FormatInt(n, 10) + [...]string{"", "K", "M", "G", "T"}[unit]
}

// NCCLBuffers are those of the largest message that each rank of nccl-tests allocates,
// the one for checking included (src/common.cu, AllocateBuffs). The sweep takes two.
const NCCLBuffers = 3

// ncclTestSpec runs nccl-tests, or the sweep as torch workers.
func ncclTestSpec(r Request) (launcher.Spec, error) {
	t := r.NCCLTest.WithDefaults()
	if err := t.validate(); err != nil {
		return launcher.Spec{}, err
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	// NCCL's own lines say over what it went: by INIT, which INFO prints.
	own := []launcher.Var{r.callersOr("NCCL_DEBUG", "INFO", "nccl-test")}
	if t.Program != "" {
		return ncclTests(r, t, number, own)
	}
	r.Args = []string{
		sweep, t.Op, number(t.Min), number(t.Max), strconv.Itoa(t.Factor), strconv.Itoa(t.Iters), strconv.Itoa(t.Warmup),
	}
	r.Torchrun = Torchrun{Python: r.Torchrun.Python, Text: true}
	return torchSpec(r, "nccl-test", own...)
}

// ncclTests runs nccl-tests' program: one GPU a rank, each size checked once, which is
// what makes its figures worth something. Flags are those that every version has.
func ncclTests(r Request, t NCCLTest, number func(int64) string, own []launcher.Var) (launcher.Spec, error) {
	r.Args = []string{
		t.Program, "-b", number(t.Min), "-e", number(t.Max), "-f", strconv.Itoa(t.Factor), "-g", "1", "-c", "1", "-n",
		strconv.Itoa(t.Iters), "-w", strconv.Itoa(t.Warmup),
	}
	if t.Libraries != "" {
		path := t.Libraries
		if old, _ := Lookup(r.Environ, "LD_LIBRARY_PATH"); old != "" && !r.Away && r.Container == nil {
			path += ":" + old
		}
		own = append(own, launcher.Var{Name: "LD_LIBRARY_PATH", Value: launcher.Lit(path), Source: "nccl-test build"})
	}
	if r.Job.GPUs == launcher.NoGPUs && !r.NoGPUs {
		r.Job.GPUs = launcher.AnyGPUs
	}
	return mpiProgram(r, "nccl-test", own...)
}
