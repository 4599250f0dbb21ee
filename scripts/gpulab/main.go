// Command gpulab makes hosts of one machine with several NVIDIA GPUs, one GPU each, and
// runs sparkrun on them: agents, a fabric under a Spark's names, real NCCL. It needs root
// and the machine's driver; no Docker, no iproute2, no systemd. ../gpu-lab builds and
// starts it.
//
// It must not change the machine: hosts are namespaces, their network has bridges of its
// own, and all of it is gone when gpulab ends. It sets nothing on a GPU.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
)

type options struct {
	hosts    int
	dir      string // of state, logs and results
	sparkrun string
	sweep    string // workloads/sweep.py: what `launch nccl-test` runs, for mpirun
	source   string // of nccl-tests, to be built by `sparkrun nccl-test build`; empty: none
	nccl     string // of NCCL's sources, to be built with it; empty: the machine's own
	tests    string // folder with all_gather_perf built with MPI=1; empty: none
	python   string
	rounds   int
	max      string
	only     string
	gloo     bool // no GPUs: what can be tried of the rest
}

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "host":
			exitOn(hostMain(os.Args[2:]))
			return
		case "switch":
			exitOn(switchMain(os.Args[2:]))
			return
		}
	}
	var o options
	flag.IntVar(&o.hosts, "hosts", 0, "how many hosts (default: one a GPU, 8 at most)")
	flag.StringVar(&o.dir, "dir", "",
		"keep logs and results in this folder (default: a new one in /tmp, removed unless something failed)")
	flag.StringVar(&o.sparkrun, "sparkrun", "sparkrun", "the program to test")
	flag.StringVar(&o.sweep, "sweep", "", "workloads/sweep.py, to be started by mpirun for comparison")
	flag.StringVar(&o.source, "nccl-tests-src", "",
		"folder with the sources of nccl-tests, to be built by sparkrun nccl-test build")
	flag.StringVar(&o.nccl, "nccl-src", "", "folder with the sources of NCCL, to be built with them")
	flag.StringVar(&o.tests, "nccl-tests", "", "folder of nccl-tests built with MPI=1 already")
	flag.StringVar(&o.python, "python", "python3", "an interpreter with PyTorch")
	flag.IntVar(&o.rounds, "rounds", 5, "runs by sparkrun and by mpirun, in turns, for the comparison")
	flag.StringVar(&o.max, "max", "256M", "the largest message of the tests")
	flag.StringVar(&o.only, "only", "", "only these steps, such as ad: the letters of the table")
	flag.BoolVar(&o.gloo, "gloo", false, "without GPUs: hosts, fabric and launches by gloo, as a rehearsal")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, o)
	stop()
	os.Exit(code)
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpulab:", err)
		os.Exit(1)
	}
}

// step is one line of the table.
type step struct {
	name, result, figures string
	failed                bool
}

func run(ctx context.Context, o options) int {
	l, err := open(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gpulab:", err)
		return 2
	}
	defer l.close()
	var table []step
	failed := false
	for _, s := range l.steps() {
		if ctx.Err() != nil {
			break
		}
		fmt.Fprintf(os.Stderr, "gpulab: %s\n", s.name)
		figures, err := s.do(ctx)
		row := step{name: s.name, result: "ok", figures: figures}
		var no notHereError
		switch {
		case errors.As(err, &no):
			row.result, row.figures = "not here", no.why
		case err != nil:
			row.result, row.failed, failed = "FAILED", true, true
			row.figures = strings.TrimSpace(figures + " " + firstLine(err))
			fmt.Fprintf(os.Stderr, "gpulab: %s: %v\n", s.name, err)
		}
		table = append(table, row)
		if err != nil && s.needed {
			break
		}
	}
	print(table)
	if failed || ctx.Err() != nil {
		l.keep = true
		fmt.Fprintf(os.Stderr, "gpulab: logs are in %s\n", l.o.dir)
		return 1
	}
	return 0
}

// notHereError says that the machine lacks what a step needs: no failure, and no pass.
type notHereError struct{ why string }

func (n notHereError) Error() string { return n.why }

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

func print(table []step) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "STEP\tRESULT\tFIGURES")
	for _, s := range table {
		fmt.Fprintf(w, "%s\t%s\t%s\n", s.name, s.result, s.figures)
	}
	_ = w.Flush() // to standard output
}

// gpus are the machine's device nodes: /dev/nvidia0, ...
func gpus() []string {
	found, _ := filepath.Glob("/dev/nvidia[0-9]*")
	var out []string
	for i := range 64 {
		for _, f := range found {
			if f == "/dev/nvidia"+strconv.Itoa(i) {
				out = append(out, f)
			}
		}
	}
	return out
}
