// Package load puts a short load on this machine and says what it reached: its first GPU by torch or by the CUDA
// driver, where python3 is, else the processors and their memory.
//
// It decides what the load is, and bounds it: in time, in memory (under 2 GiB). It runs in a process of its own, Main,
// with the rights of whoever started that, once its standard input has ended.
//
// It must not judge what was reached, nor look whether the machine is free.
package load

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Command is the first argument by which the program becomes Main.
const Command = "load-here"

const (
	// Least and Most bound a load: a clock needs seconds to settle, and a machine is wanted for other things.
	Least = 5 * time.Second
	Most  = 2 * time.Minute
	// Setup is how much longer it may take: torch is loaded from disk, kernels are compiled.
	Setup = 90 * time.Second
	// Memory is what should be available before, in bytes.
	Memory = 4 << 30
)

// Reached is what a load came to.
type Reached struct {
	Via string `json:"via"`           // torch 2.9.0+cu130, CUDA driver 13.0, processors
	GPU string `json:"gpu,omitempty"` // its name; empty: none was loaded
	// Flops are operations a second with numbers of that kind: bf16 products of matrices, fp32 or fp64 in registers.
	Flops float64 `json:"flops"`
	Kind  string  `json:"kind"`
	// Read is what was read of memory, in bytes a second.
	Read float64 `json:"read_bps"`
	// Trouble says why it went no better way.
	Trouble string `json:"trouble,omitempty"`
}

//go:embed load.py
var script string

// Main is the process: for how long is its argument, in seconds. It prints Reached as JSON.
func Main(args []string) int {
	seconds := 0.0
	if len(args) == 1 {
		seconds, _ = strconv.ParseFloat(args[0], 64)
	}
	d := time.Duration(seconds * float64(time.Second))
	if d <= 0 || d > Most {
		fmt.Fprintf(os.Stderr, "%s: want seconds, at most %.0f\n", Command, Most.Seconds())
		return 2
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until it ends, who started this makes it a guest
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, d+Setup)
	defer cancel()
	got := onGPU(ctx, d)
	if got.Flops == 0 && ctx.Err() == nil {
		trouble := got.Trouble
		got = onProcessors(ctx, d)
		got.Trouble = trouble
	}
	if ctx.Err() != nil {
		return 1
	}
	if err := json.NewEncoder(os.Stdout).Encode(got); err != nil {
		return 1
	}
	return 0
}

// onGPU has python3 do it; Flops is 0 where it could not.
func onGPU(ctx context.Context, d time.Duration) Reached {
	cmd := exec.CommandContext(ctx, "python3", "-", strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
	cmd.Stdin = strings.NewReader(script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	// Libraries may print before it.
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	var said Reached
	switch jsonErr := json.Unmarshal([]byte(lines[len(lines)-1]), &said); {
	case err != nil:
		return Reached{Trouble: "python3: " + err.Error()}
	case jsonErr != nil:
		return Reached{Trouble: "python3 prints something else"}
	}
	return said
}
