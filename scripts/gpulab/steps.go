package main

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed allreduce.py
var allreduce string

type doing struct {
	name   string
	needed bool // without it the rest means nothing
	do     func(context.Context) (string, error)
}

func (l *lab) steps() []doing {
	all := []doing{
		{"hosts, one GPU each", true, l.eachItsGPU},
		{"agents joined", true, l.cluster},
		{"(a) all-reduce by torchrun, sums checked, over the fabric", false, l.reduce},
		{"(c) launch nccl-test --via torch", false, l.viaTorch},
		{"(d) a rank killed inside a collective", false, l.killed},
		{"(b) nccl-tests built by sparkrun nccl-test build", false, l.build},
		{"(b) launch nccl-test --via nccl-tests", false, l.viaTests},
		{"(b) nccl-tests by sparkrun and by mpirun, in turns", false, l.testsBesideMPI},
		{"(f) the same sweep by sparkrun and by mpirun, in turns", false, l.besideMPI},
		{"(g) nccl-tests by mpirun, judged by sparkrun", false, l.judged},
		{"the machine's RDMA devices kept as a fixture", false, func(context.Context) (string, error) {
			return captureRDMA(filepath.Join(l.o.dir, "rdma"))
		}},
	}
	return slices.DeleteFunc(all, func(d doing) bool {
		return l.o.only != "" && !d.needed && (d.name[0] != '(' || !strings.Contains(l.o.only, d.name[1:2]))
	})
}

// eachItsGPU makes sure that a host's processes see one GPU, and remembers how much of
// each is in use.
func (l *lab) eachItsGPU(ctx context.Context) (string, error) {
	if l.o.gloo {
		return fmt.Sprintf("%d hosts without GPUs", l.o.hosts), nil
	}
	var seen []string
	for _, h := range l.hosts {
		out, err := l.output(ctx, h.number, "nvidia-smi", "--query-gpu=name,uuid", "--format=csv,noheader")
		if err != nil {
			return "", err
		}
		lines := strings.Split(strings.TrimSpace(out), "\n")
		how := "its own alone"
		if h.sees = len(lines); h.sees > 1 {
			// No node of the others, and the driver's library finds them all the same.
			how = "its own by CUDA_VISIBLE_DEVICES"
			if len(lines) != l.o.hosts {
				return "", fmt.Errorf("%s sees %d GPUs: %s", hostName(h.number), len(lines), out)
			}
			lines = lines[h.number-1:]
		}
		if slices.Contains(seen, lines[0]) {
			return "", fmt.Errorf("%s sees the GPU of another host", hostName(h.number))
		}
		seen = append(seen, lines[0])
		l.howGPU = how
	}
	if err := l.wrapPython(); err != nil {
		return "", err
	}
	var err error
	l.baseline, err = gpuMemory(ctx)
	name, _, _ := strings.Cut(seen[0], ",")
	return fmt.Sprintf("%d x %s, each host %s; MiB in use: %s", len(seen), name, l.howGPU, l.baseline), err
}

// wrapPython puts a word about a host's GPU before the interpreter, where it needs one.
func (l *lab) wrapPython() error {
	if !slices.ContainsFunc(l.hosts, func(h *host) bool { return h.sees > 1 }) {
		return nil
	}
	var script strings.Builder
	script.WriteString("#!/bin/sh\ncase $(hostname) in\n")
	for _, h := range l.hosts {
		fmt.Fprintf(&script, "%s) export CUDA_VISIBLE_DEVICES=%d ;;\n", hostName(h.number), h.number-1)
	}
	fmt.Fprintf(&script, "esac\nexec %s \"$@\"\n", l.o.python)
	l.o.python = filepath.Join(l.o.dir, "python")
	return os.WriteFile(l.o.python, []byte(script.String()), 0o755)
}

// gpuMemory is what nvidia-smi calls used, in MiB, of each GPU.
func gpuMemory(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").Output()
	return strings.Join(strings.Fields(string(out)), " "), err
}

// launch is a sparkrun launch on all hosts. There is no RDMA here: NCCL is sent to
// sockets, over the interface that sparkrun names. What the machine's own environment
// says about NCCL counts here, too.
func (l *lab) launch(ctx context.Context, workload string, args ...string) *exec.Cmd {
	argv := []string{l.o.sparkrun, "launch", workload, "--nodes", strconv.Itoa(l.o.hosts), "--workdir", "/", "--env",
		"NCCL_NET=Socket", "--env", "NCCL_DEBUG=INFO"}
	if strings.Contains(l.o.python, "/") || l.o.python != "python3" {
		argv = append(argv, "--python", l.o.python)
	}
	for _, kv := range os.Environ() {
		name, _, _ := strings.Cut(kv, "=")
		for _, prefix := range []string{"NCCL_", "TORCH_SYMM_MEM_", "NVSHMEM_"} {
			if strings.HasPrefix(name, prefix) && name != "NCCL_NET" && name != "NCCL_DEBUG" {
				argv = append(argv, "--env", name)
			}
		}
	}
	return l.on(ctx, 1, append(argv, args...)...)
}

// fabricBytes are what all hosts have sent over the fabric, and over management.
func (l *lab) fabricBytes() (fabric, mgmt int64, err error) {
	for _, h := range l.hosts {
		for _, n := range nics {
			b, err := sent(h.pid(), n.name)
			if err != nil {
				return 0, 0, err
			}
			if n.subnet == 0 {
				mgmt += b
			} else {
				fabric += b
			}
		}
	}
	return fabric, mgmt, nil
}

func (l *lab) script() (string, error) {
	file := filepath.Join(l.o.dir, "allreduce.py")
	return file, os.WriteFile(file, []byte(allreduce), 0o644)
}

func (l *lab) reduce(ctx context.Context) (string, error) {
	script, err := l.script()
	if err != nil {
		return "", err
	}
	fabric, mgmt, err := l.fabricBytes()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	cmd := l.launch(ctx, "torchrun", "--", script)
	out, err := cmd.CombinedOutput()
	text := string(out)
	l.save("a-allreduce.log", text)
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, tail(text))
	}
	right := 0
	for i := range l.o.hosts {
		if strings.Contains(text, fmt.Sprintf("GPULAB rank=%d ", i)) {
			right++
		}
	}
	if right != l.o.hosts || strings.Count(text, " wrong=0 ") < l.o.hosts {
		return "", fmt.Errorf("sums of %d ranks of %d: %s", right, l.o.hosts, tail(text))
	}
	fabric2, mgmt2, err := l.fabricBytes()
	if err != nil {
		return "", err
	}
	figures := fmt.Sprintf("%d ranks right; sent: fabric %d MiB, management %d MiB", right, (fabric2-fabric)>>20,
		(mgmt2-mgmt)>>20)
	if fabric2-fabric < 10*(mgmt2-mgmt) {
		return figures, errors.New("it did not go over the fabric")
	}
	if l.o.gloo {
		return figures, nil
	}
	for i := range l.o.hosts {
		using := fmt.Sprintf("NET/Socket : Using [0]%s:%s<0>", primary, nics[1].addr(i+1))
		if !strings.Contains(text, using) {
			return figures, fmt.Errorf("NCCL's log has no %q", using)
		}
	}
	via := strings.Count(text, "via NET/Socket/0")
	if via == 0 {
		return figures, errors.New("NCCL's log has no connection via NET/Socket/0")
	}
	return fmt.Sprintf("%s; NCCL: Using [0]%s, %d connections via NET/Socket/0", figures, primary, via), nil
}

// verdict is what of `launch nccl-test --json` is looked at.
type verdict struct {
	Verdict struct {
		Grade string  `json:"grade"`
		Bus   float64 `json:"bus_gbps"`
		Text  string  `json:"text"`
		Cause *struct {
			Code string `json:"code"`
		} `json:"cause"`
	} `json:"verdict"`
}

func (l *lab) sizes() []string { return []string{"--min", "1M", "--max", l.o.max, "--factor", "4"} }

func (l *lab) viaTorch(ctx context.Context) (string, error) { return l.operations(ctx, "torch", "c-") }

// operations runs launch nccl-test for each operation; each has to be right, and judged.
func (l *lab) operations(ctx context.Context, via, log string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	var figures []string
	for _, op := range []string{"all_gather", "all_reduce", "reduce_scatter", "alltoall", "sendrecv", "broadcast"} {
		if l.o.gloo && (op == "reduce_scatter" || op == "alltoall") {
			continue // gloo has none
		}
		cmd := l.launch(ctx, "nccl-test", append(l.sizes(), "--via", via, "--json", op)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		l.save(log+op+".json", out.String())
		if err != nil {
			return strings.Join(figures, ", "), fmt.Errorf("%s: %w: %s", op, err, tail(errs.String()+out.String()))
		}
		var v verdict
		if err := json.Unmarshal(out.Bytes(), &v); err != nil {
			return "", err
		}
		want := "low" // for by its sysfs root this is a pair at 200 Gb/s
		if l.o.gloo {
			want = "unjudged"
		}
		cause := ""
		if v.Verdict.Cause != nil {
			cause = v.Verdict.Cause.Code
		}
		if v.Verdict.Grade != want || !l.o.gloo && cause != "sockets" {
			return "", fmt.Errorf("%s: want %s, by sockets: %s (%s): %s", op, want, v.Verdict.Grade, cause, v.Verdict.Text)
		}
		figures = append(figures, fmt.Sprintf("%s %.2f GB/s", op, v.Verdict.Bus))
	}
	return strings.Join(figures, ", "), nil
}

// killed ends rank 1 by SIGKILL while all are in a collective, and looks what is left.
func (l *lab) killed(ctx context.Context) (string, error) {
	script, err := l.script()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	const name = "forever"
	defer func() { // where the step fails before the kill
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		_, _ = l.output(stop, 1, l.o.sparkrun, "stop", "--kill", name)
	}()
	cmd := l.launch(ctx, "torchrun", "--name", name, "--", script, "--forever")
	var mu sync.Mutex
	var out bytes.Buffer
	w := writer(func(b []byte) (int, error) { mu.Lock(); defer mu.Unlock(); return out.Write(b) })
	text := func() string { mu.Lock(); defer mu.Unlock(); return out.String() }
	cmd.Stdout, cmd.Stderr = w, w
	if err := cmd.Start(); err != nil {
		return "", err
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	for !strings.Contains(text(), "GPULAB rank=1 ") {
		select {
		case err := <-exited:
			return "", fmt.Errorf("it ended by itself: %w: %s", err, tail(text()))
		case <-ctx.Done():
			return "", fmt.Errorf("rank 1 did not begin: %s", tail(text()))
		case <-time.After(20 * time.Millisecond):
		}
	}
	victims := l.ranks("1")
	if len(victims) != 1 {
		return "", fmt.Errorf("%d processes of rank 1", len(victims))
	}
	began := time.Now()
	if err := syscall.Kill(victims[0], syscall.SIGKILL); err != nil {
		return "", err
	}
	err = <-exited
	took := time.Since(began)
	l.save("d-killed.log", text())
	var exit *exec.ExitError
	if err == nil {
		return "", fmt.Errorf("launch exited with 0: %s", tail(text()))
	}
	if !errors.As(err, &exit) || exit.ExitCode() != 128+9 {
		return "", fmt.Errorf("launch: want exit 137, got %w: %s", err, tail(text()))
	}
	if left := l.ranks(""); len(left) > 0 {
		return "", fmt.Errorf("processes of ranks are left: %v", left)
	}
	if open := holders(); len(open) > 0 && !l.o.gloo {
		return "", fmt.Errorf("/dev/nvidia* is still open: %s", strings.Join(open, ", "))
	}
	figures := fmt.Sprintf("exit 137 and the other ranks gone %.2f s after the kill", took.Seconds())
	if l.o.gloo {
		return figures, nil
	}
	used, err := gpuMemory(ctx)
	if err != nil {
		return "", err
	}
	if used != l.baseline {
		return figures, fmt.Errorf("GPU memory in use: %s MiB, before: %s", used, l.baseline)
	}
	return figures + fmt.Sprintf("; no /dev/nvidia* open; MiB in use: %s, as before", used), nil
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// ranks are the processes of ranks on the hosts, by the machine's own process table;
// number names one rank, empty all. What runs in other PID namespaces is another's.
func (l *lab) ranks(number string) []int {
	var found []int
	here := map[string]bool{}
	for _, h := range l.hosts {
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", h.pid())); err == nil {
			here[ns] = true
		}
	}
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, d := range dirs {
		if ns, err := os.Readlink(d + "/ns/pid"); err != nil || !here[ns] {
			continue
		}
		env, err := os.ReadFile(d + "/environ")
		if err != nil || !strings.Contains("\x00"+string(env), "\x00SPARKRUN_GANG=") {
			continue
		}
		if number != "" && !strings.Contains("\x00"+string(env), "\x00RANK="+number+"\x00") {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(d)); err == nil {
			found = append(found, pid)
		}
	}
	return found
}

// holders are the processes that have a GPU open.
func holders() []string {
	var found []string
	dirs, _ := filepath.Glob("/proc/[0-9]*/fd")
	for _, d := range dirs {
		fds, _ := os.ReadDir(d)
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(d, fd.Name())); err == nil && strings.HasPrefix(to, "/dev/nvidia") {
				comm, _ := os.ReadFile(filepath.Join(filepath.Dir(d), "comm"))
				found = append(found, filepath.Base(filepath.Dir(d))+" "+strings.TrimSpace(string(comm))+" "+to)
				break
			}
		}
	}
	return found
}

func (l *lab) save(name, text string) {
	_ = os.WriteFile(filepath.Join(l.o.dir, name), []byte(text), 0o644)
}
