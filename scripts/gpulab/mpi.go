package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mpirun prepares Open MPI's own mpirun, with an agent that only enters the hosts'
// namespaces: what sparkrun is held against. It runs beside the switch.
func (l *lab) mpirun(ctx context.Context, argv ...string) (*exec.Cmd, error) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		return nil, notHereError{"no mpirun"}
	}
	agent := filepath.Join(l.o.dir, "enter")
	var script strings.Builder
	script.WriteString("#!/bin/sh\nwhile :; do case $1 in -*) shift ;; *) break ;; esac; done\ncase $1 in\n")
	var names []string
	for _, h := range l.hosts {
		names = append(names, hostName(h.number))
		gpu := ""
		if h.sees > 1 {
			gpu = fmt.Sprintf("; export CUDA_VISIBLE_DEVICES=%d", h.number-1)
		}
		fmt.Fprintf(&script, "%s) pid=%d%s ;;\n", hostName(h.number), h.pid(), gpu)
	}
	// mpirun's arguments hold literal quotes: a shell must read them.
	script.WriteString("*) echo \"no host $1\" >&2; exit 1 ;;\nesac\nshift\nexec nsenter --target $pid --net --mount " +
		"--uts --ipc --pid -- sh -c \"$*\"\n")
	if err := os.WriteFile(agent, []byte(script.String()), 0o755); err != nil {
		return nil, err
	}
	args := []string{
		"mpirun", "--allow-run-as-root", "-np", strconv.Itoa(len(names)), "-H", strings.Join(names, ","),
		"--oversubscribe", "--map-by", "node", "--bind-to", "none", "--display-allocation",
		"--mca", "plm", "rsh", "--mca", "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", "172.30.0.0/24",
		"--mca", "btl", "self,tcp", "--mca", "pml", "ob1", "--mca", "btl_tcp_if_include", "172.30.0.0/24",
		"--mca", "orte_tmpdir_base", "/run",
		"-x", "NCCL_NET=Socket", "-x", "NCCL_SOCKET_IFNAME=" + primary, "-x", "GLOO_SOCKET_IFNAME=" + primary,
		"-x", "PATH", "-x", "LD_LIBRARY_PATH",
	}
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "NCCL_") && name != "NCCL_NET" &&
			name != "NCCL_SOCKET_IFNAME" || strings.HasPrefix(name, "TORCH_SYMM_MEM_") {
			args = append(args, "-x", name)
		}
	}
	cmd := l.on(ctx, 0, append(args, argv...)...)
	// An image may tell Open MPI to stay on its own machine (OMPI_MCA_plm=isolated).
	cmd.Env = slices.DeleteFunc(os.Environ(),
		func(kv string) bool { return strings.HasPrefix(kv, "OMPI_") || strings.HasPrefix(kv, "PMIX_") })
	return cmd, nil
}

// besideMPI starts one program, the sweep, by sparkrun and by mpirun in turns.
func (l *lab) besideMPI(ctx context.Context) (string, error) {
	if l.o.sweep == "" {
		return "", notHereError{"--sweep names no program"}
	}
	text, err := os.ReadFile(l.o.sweep)
	if err != nil {
		return "", err
	}
	most, err := bytesOf(l.o.max)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return l.inTurns(ctx, "torch", func(i int) (*exec.Cmd, error) {
		start := `RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK MASTER_ADDR=$1 MASTER_PORT=$2 exec "$3" -u -c "$4" all_reduce $5 $5 2 20 2`
		return l.mpirun(ctx, "sh", "-c", start, "-", nics[1].addr(1), strconv.Itoa(29600+i), l.o.python, string(text),
			strconv.FormatInt(most, 10))
	})
}

// inTurns starts one program by sparkrun and, as theirs prepares it, by mpirun; who begins a round
// changes with it. Judged is the median of the rounds' ratios: what a shared machine gives over the
// minutes that this takes drifts by more than the 5 % asked for, and a round's two runs drift together.
func (l *lab) inTurns(ctx context.Context, via string, theirs func(round int) (*exec.Cmd, error)) (string, error) {
	var ours, other, ratios []float64
	for i := range l.o.rounds {
		var a, b float64
		var errA, errB error
		here := func() { a, errA = l.busbwHere(ctx, via) }
		there := func() { b, errB = l.busbwThere(fmt.Sprintf("b-mpirun-%s-%d.txt", via, i+1), i, theirs) }
		if i%2 == 1 {
			here, there = there, here
		}
		here()
		there()
		if err := errors.Join(errA, errB); err != nil {
			return "", fmt.Errorf("round %d: %w", i+1, err)
		}
		ours, other, ratios = append(ours, a), append(other, b), append(ratios, a/b)
	}
	a, b, ratio := median(ours), median(other), median(ratios)
	figures := fmt.Sprintf("all_reduce %s, %d rounds: sparkrun beside mpirun %+.1f %% (median of the rounds); medians "+
		"%.3f and %.3f GB/s (%+.1f %%); %s against %s",
		l.o.max, l.o.rounds, 100*(ratio-1), a, b, 100*(a/b-1), list(ours), list(other))
	if math.Abs(ratio-1) > 0.05 && !l.o.gloo {
		return figures, fmt.Errorf("more than 5 %% apart")
	}
	return figures, nil
}

// busbwHere is the bus bandwidth in GB/s of one all-reduce that sparkrun starts.
func (l *lab) busbwHere(ctx context.Context, via string) (float64, error) {
	cmd := l.launch(ctx, "nccl-test", "--via", via, "--min", l.o.max, "--max", l.o.max, "--json", "all_reduce")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("sparkrun: %w: %s", err, tail(errs.String()))
	}
	var v verdict
	if err := json.Unmarshal(out, &v); err != nil {
		return 0, err
	}
	return v.Verdict.Bus, nil
}

// busbwThere is that of one which mpirun starts, whose output it keeps under a name.
func (l *lab) busbwThere(name string, round int, theirs func(round int) (*exec.Cmd, error)) (float64, error) {
	cmd, err := theirs(round)
	if err != nil {
		return 0, err
	}
	both, err := cmd.CombinedOutput()
	l.save(name, string(both))
	if err != nil {
		return 0, fmt.Errorf("mpirun: %w: %s", err, tail(string(both)))
	}
	avg := average.FindSubmatch(both)
	if avg == nil {
		return 0, fmt.Errorf("mpirun: no average: %s", tail(string(both)))
	}
	return strconv.ParseFloat(string(avg[1]), 64)
}

var average = regexp.MustCompile(`# Avg bus bandwidth    : (\S+)`)

// judged has sparkrun read what nccl-tests itself prints here.
func (l *lab) judged(ctx context.Context) (string, error) {
	if l.o.tests == "" {
		return "", notHereError{"no nccl-tests"}
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	var figures []string
	for _, op := range []string{"all_gather", "all_reduce"} {
		cmd, err := l.testsByMPI(ctx, op, "-b", "1M", "-e", l.o.max, "-f", "4", "-g", "1")
		if err != nil {
			return "", err
		}
		out, err := cmd.CombinedOutput()
		l.save("nccl-tests-"+op+".txt", string(out))
		if err != nil {
			return "", fmt.Errorf("%s_perf: %w: %s", op, err, tail(string(out)))
		}
		read := l.on(ctx, 1, l.o.sparkrun, "launch", "nccl-test", "--read", "-", "--json")
		read.Stdin = bytes.NewReader(out)
		var errs bytes.Buffer
		read.Stderr = &errs
		got, err := read.Output()
		if err != nil {
			return "", fmt.Errorf("read %s: %w: %s", op, err, errs.String())
		}
		var v verdict
		if err := json.Unmarshal(got, &v); err != nil {
			return "", err
		}
		if v.Verdict.Grade != "low" || v.Verdict.Cause == nil || v.Verdict.Cause.Code != "sockets" {
			return "", fmt.Errorf("%s: %s: %s", op, v.Verdict.Grade, v.Verdict.Text)
		}
		figures = append(figures, fmt.Sprintf("%s %.2f GB/s, low by sockets", op, v.Verdict.Bus))
	}
	return strings.Join(figures, ", "), nil
}

func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	return s[len(s)/2]
}

func list(all []float64) string {
	var words []string
	for _, v := range all {
		words = append(words, fmt.Sprintf("%.2f", v))
	}
	return strings.Join(words, " ")
}

// bytesOf reads 256M or 1G.
func bytesOf(text string) (int64, error) {
	shift := strings.IndexByte("KMG", text[max(0, len(text)-1):][0])
	n, err := strconv.ParseInt(strings.TrimRight(text, "KMG"), 10, 64)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("--max %s: want a size such as 256M", text)
	}
	return n << (10 * (shift + 1)), nil
}
