package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// build has sparkrun build nccl-tests on the first host and bring it to all. The hosts
// share one home, as over NFS.
func (l *lab) build(ctx context.Context) (string, error) {
	if l.o.source == "" {
		return "", notHereError{"--nccl-tests-src names no folder"}
	}
	source, err := filepath.Abs(l.o.source)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 8*time.Minute)
	defer cancel()
	began := time.Now()
	args := []string{l.o.sparkrun, "nccl-test", "build", source}
	if l.o.nccl != "" {
		nccl, err := filepath.Abs(l.o.nccl)
		if err != nil {
			return "", err
		}
		args = append(args, "--nccl", nccl)
	}
	cmd := l.on(ctx, 1, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	l.save("b-build.txt", errs.String()+string(out))
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, tail(errs.String()))
	}
	home, err := l.output(ctx, 1, "sh", "-c", "echo $HOME")
	if err != nil {
		return "", err
	}
	l.o.tests = filepath.Join(strings.TrimSpace(home), ".local/share/sparkrun/nccl-tests")
	words := strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), "; ")
	return words + ", in " + time.Since(began).Round(time.Second).String(), nil
}

// viaTests runs every operation by nccl-tests, started by sparkrun.
func (l *lab) viaTests(ctx context.Context) (string, error) {
	if err := l.testsHere(); err != nil {
		return "", err
	}
	return l.operations(ctx, "nccl-tests", "b-")
}

func (l *lab) testsHere() error {
	switch {
	case l.o.tests == "":
		return notHereError{"no nccl-tests"}
	case l.hosts[0].sees > 1: // a program that is told its GPU is none whose MPI can be read
		return notHereError{"the hosts see each other's GPUs"}
	}
	return nil
}

// testsBesideMPI starts nccl-tests' own all_reduce by sparkrun and by mpirun in turns.
func (l *lab) testsBesideMPI(ctx context.Context) (string, error) {
	if err := l.testsHere(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return l.inTurns(ctx, "nccl-tests", func(int) (*exec.Cmd, error) {
		return l.testsByMPI(ctx, "all_reduce", "-b", l.o.max, "-e", l.o.max, "-f", "2", "-g", "1", "-c", "1", "-n",
			"20", "-w", "2")
	})
}

// testsByMPI prepares a program of nccl-tests under mpirun, with the NCCL that was built with it, if one was.
func (l *lab) testsByMPI(ctx context.Context, op string, args ...string) (*exec.Cmd, error) {
	cmd, err := l.mpirun(ctx, append([]string{"-x", "NCCL_DEBUG=INFO", filepath.Join(l.o.tests, op+"_perf")}, args...)...)
	if err == nil { // of two values the later one counts
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Join(l.o.tests, "lib")+":"+os.Getenv("LD_LIBRARY_PATH"))
	}
	return cmd, err
}
