package network

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/follow"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/workloads"
	"github.com/sparkrun/sparkrun/workloads/nettest"
)

type buildOptions struct {
	source, nccl  string // folders here
	on            string // the machine that builds; empty: this one, or any
	to            []string
	arch, mpiHome string
}

// NewNCCLTestGroupCmd makes `sparkrun nccl-test`.
func NewNCCLTestGroupCmd(a *app.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nccl-test",
		Short: "Build nccl-tests for all machines",
		Long: `Brings NVIDIA's nccl-tests to the machines. The test itself is
sparkrun launch nccl-test, which needs no nccl-tests where there is PyTorch.`,
		Example: `  sparkrun nccl-test build ~/src/nccl-tests
  sparkrun launch nccl-test --via nccl-tests`,
	}
	app.Group(cmd)
	cmd.AddCommand(newNCCLTestBuildCmd(a))
	return cmd
}

func newNCCLTestBuildCmd(a *app.App) *cobra.Command {
	opts := &buildOptions{}
	cmd := &cobra.Command{
		Use:   "build SRC",
		Short: "Build nccl-tests on one machine, and bring it to all",
		Long: `Builds nccl-tests out of SRC, a folder here with its sources, with MPI=1 and for the
machine's own GPU, as a job on one machine; then brings the programs to every machine
that is ready. They lie in ~/.local/share/sparkrun/nccl-tests there, of the user who
types this, where sparkrun launch nccl-test finds them. With --nccl NCCL is built, too,
and used by the test alone: a ring of machines without a switch needs 2.30.7 or later.

The machine that builds needs make, a C++ compiler, CUDA's nvcc (12.9 or later for a
GB10), an MPI with mpi.h, and without --nccl NCCL's headers. What is missing is told,
with what to do, before anything is built. The others need the same MPI's libraries and,
without --nccl, the same NCCL; one that lacks a library is named and gets nothing.

At the end it tells what was built of what; the file BUILT beside the programs has the
same. They replace those of an earlier build in one step.`,
		Example: `  sparkrun nccl-test build ~/src/nccl-tests
  sparkrun nccl-test build ~/src/nccl-tests --nccl ~/src/nccl --on spark2
  sparkrun nccl-test build ~/src/nccl-tests --mpi-home /opt/openmpi-5`,
		Args: func(_ *cobra.Command, args []string) error {
			switch len(args) {
			case 0:
				return app.Usagef("the folder with the sources of nccl-tests is missing")
			case 1:
				return nil
			}
			return app.Usagef("unexpected argument %q: one folder with sources", args[1])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.source = args[0]
			if strings.Trim(opts.arch, "0123456789") != "" {
				return app.Usagef("--arch %q: want a GPU architecture such as 121", opts.arch)
			}
			return buildTests(cmd.Context(), a, *opts)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.nccl, "nccl", "",
		"a `FOLDER` here with NCCL's sources, to be built and used with it (default: the machines' own NCCL)")
	fs.StringVar(&opts.on, "on", "", "build on this machine: `HOST` (default: this one)")
	fs.StringSliceVar(&opts.to, "to", nil, "bring it to these machines: `HOST,HOST` (default: all that are ready)")
	fs.StringVar(&opts.arch, "arch", "",
		"the GPU architecture, such as `121` (default: that of the machine's GPU, else a GB10's)")
	fs.StringVar(&opts.mpiHome, "mpi-home", "",
		"`FOLDER` of the MPI there, with bin/mpicc (default: that of mpicc in PATH)")
	app.CompleteFlag(cmd, "on", a.CompleteHosts)
	app.CompleteFlag(cmd, "to", a.CompleteHosts)
	return cmd
}

// buildTests builds on one machine and installs on all. These are two jobs, and the
// programs come here in between, so that it does not matter where the build or this
// command runs.
func buildTests(ctx context.Context, a *app.App, o buildOptions) error {
	var sources []filesync.Source
	for _, s := range []struct{ what, dir, dst, proof string }{
		{"nccl-tests", o.source, workloads.NCCLTestsSource, "src/common.cu"},
		{"NCCL", o.nccl, workloads.NCCLSource, "makefiles/version.mk"},
	} {
		if s.dir == "" {
			continue
		}
		if _, err := os.Stat(filepath.Join(s.dir, s.proof)); err != nil {
			return fmt.Errorf("%s: no sources of %s: there is no %s", s.dir, s.what, s.proof)
		}
		more, err := sourcesOf(s.dir, s.dst)
		if err != nil {
			return fmt.Errorf("%s: read sources: %w", s.dir, err)
		}
		sources = append(sources, more...)
	}
	hosts, ring, err := buildHosts(ctx, a, o)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "sparkrun-nccl-tests-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, workloads.NCCLTestsTar)
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	inner := *a
	inner.Out, inner.OutTTY = f, false
	job := launch.Options{Workload: "exec", Stage: sources, Output: follow.OutputMode{Kind: "raw"}}
	job.Request.Args, job.Request.Stdin = workloads.NCCLBuildArgs(o.arch, o.mpiHome), "none"
	job.Request.Job = launcher.Spec{Name: "nccl-test-build", MaxOutput: maxBuild, Nodes: 1}
	if o.on != "" {
		job.Request.Job.On = []string{o.on}
	}
	if err := errors.Join(stepOf(launch.Run(ctx, &inner, job)), f.Close()); err != nil {
		return err
	}
	built, sum, err := readBuilt(name)
	if err != nil {
		return fmt.Errorf("read what was built: %w", err)
	}
	if v, perr := envgen.ParseNCCLVersion(built.NCCL); ring && perr == nil && v.Before(ringNCCL) {
		a.Say(fmt.Sprintf("these machines are a ring without a switch, which NCCL %s cannot use: bring %s or "+
			"later with --nccl", v, ringNCCL))
	}
	job = launch.Options{Workload: "exec", Stage: []filesync.Source{{Src: name, Dst: workloads.NCCLTestsTar}}}
	job.Request.Args, job.Request.Stdin = workloads.NCCLInstallArgs(builtTests, sum), "none"
	job.Request.Job = launcher.Spec{Name: "nccl-test-install", On: hosts, Nodes: len(hosts),
		OnFailure: launcher.ContinueOnFailure, Force: true}
	inner.Out = io.Discard // the place of the programs is printed below
	if err := stepOf(launch.Run(ctx, &inner, job)); err != nil {
		return err
	}
	from, err := filepath.Abs(o.source)
	if err != nil {
		from = o.source
	}
	fmt.Fprintf(a.Out, "%sfrom: %s\nin: ~/%s on %s\n",
		built.text, plain.Text(from), builtTests, strings.Join(hosts, ", "))
	return nil
}

// stepOf replaces a launch's exit code, which is its ranks', by 1: the launch has said
// why.
func stepOf(err error) error {
	var exit *app.ExitError
	if errors.As(err, &exit) && exit.Code != launcher.ExitInterrupted {
		return app.Exits(app.ExitFailure, exit.Err)
	}
	return err
}

// maxBuild bounds a build, in bytes: NCCL takes tens of MiB for one architecture, some
// hundred for all.
const maxBuild = 4 << 30

// ringNCCL is the first NCCL that routes by subnet (envgen's ring profile).
var ringNCCL = envgen.NCCLVersion{Major: 2, Minor: 30, Patch: 7}

// sourcesOf are a folder's entries as files of the job, without its history and its own
// builds.
func sourcesOf(dir, dst string) ([]filesync.Source, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []filesync.Source
	for _, e := range entries {
		if e.Name() != ".git" && e.Name() != "build" {
			all = append(all, filesync.Source{Src: filepath.Join(dir, e.Name()), Dst: filepath.Join(dst, e.Name())})
		}
	}
	return all, nil
}

// buildHosts are the machines to install on; ring: they are cabled as a ring.
func buildHosts(ctx context.Context, a *app.App, o buildOptions) (hosts []string, ring bool, err error) {
	b := a.Dial()
	defer b.Close()
	var st wire.Status
	if err := app.Interruptible(ctx, func(ctx context.Context) (err error) {
		st, err = wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
		return err
	}); err != nil {
		return nil, false, err
	}
	view, err := newFabricView(st, nil)
	if err != nil {
		return nil, false, err
	}
	for _, n := range st.Nodes {
		if n.State == "ready" && !n.Witness {
			hosts = append(hosts, n.Host)
		}
	}
	for i, name := range slices.Concat(strings.Fields(o.on), o.to) {
		if !slices.Contains(hosts, name) {
			flag := "--to"
			if i == 0 && o.on != "" {
				flag = "--on"
			}
			return nil, false, fmt.Errorf("%s %s: no machine of that name is ready: sparkrun status shows all",
				flag, name)
		}
	}
	if len(o.to) > 0 {
		hosts = o.to
	}
	if len(hosts) == 0 {
		return nil, false, errors.New("no machine is ready: sparkrun status")
	}
	return hosts, view.scene.Topology.Shape == envgen.ShapeRing && len(hosts) > 2, nil
}

// built is what a build says about itself.
type built struct{ text, NCCL string }

// readBuilt reads that from the beginning of the tar, and names the tar by its content.
func readBuilt(name string) (built, string, error) {
	f, err := os.Open(name)
	if err != nil {
		return built{}, "", err
	}
	defer f.Close()
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return built{}, "", err
	}
	// tar takes a truncated archive for a complete one with fewer files.
	end := make([]byte, 2*512)
	if _, err := f.ReadAt(end, max(0, size-int64(len(end)))); err != nil || len(bytes.Trim(end, "\x00")) > 0 {
		return built{}, "", fmt.Errorf("what came of it, %s, has no end: build again", nettest.Size(size))
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return built{}, "", err
	}
	r := tar.NewReader(f)
	h, err := r.Next()
	if err != nil {
		return built{}, "", err
	}
	if h.Name != workloads.NCCLTestsBuilt {
		return built{}, "", fmt.Errorf("it begins with %q, not with %s", h.Name, workloads.NCCLTestsBuilt)
	}
	var b built
	lines := bufio.NewScanner(io.LimitReader(r, 1<<16))
	for lines.Scan() {
		b.text += plain.Text(lines.Text()) + "\n"
		if v, ok := strings.CutPrefix(lines.Text(), "nccl: "); ok {
			b.NCCL, _, _ = strings.Cut(v, ",")
		}
	}
	return b, hex.EncodeToString(sum.Sum(nil))[:16], lines.Err()
}
