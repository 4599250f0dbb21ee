package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func (b *bench) launches() {
	b.peers()
	for _, n := range slices.Compact([]int{1, 2, b.hosts}) {
		b.inTurns(plural(n, "host"), "ms", b.rounds,
			b.typed("sparkrun launch exec", fmt.Sprintf("sparkrun launch exec --nodes %d -- true", n)),
			b.typed("srun, a step in an allocation", b.srun(n, "true")),
			b.typed("mpiexec.hydra, over ssh", b.hydra("mpiexec.hydra", "ssh", n, "true")),
			b.typed("mpiexec.hydra, all proxies forked here", b.hydra("mpiexec.hydra", "fork", n, "true")),
			b.typed("mpirun.openmpi, over ssh", b.mpirun(n, "true")),
			b.typed("pdsh, over ssh", "pdsh -S -R ssh -w "+names(n)+" true"),
			b.typed("clush, over ssh", "clush -S -w "+names(n)+" true"),
			way{"fork and exec by shells that wait there", b.everywhere(other(n), func(int) string { return "/bin/true" })})
	}
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// everywhere has shells on these hosts do something at once; nothing is paid for the way there.
func (b *bench) everywhere(hosts []string, command func(rank int) string) func() (float64, error) {
	for _, h := range hosts {
		b.shell(h)
	}
	return func() (float64, error) {
		began := time.Now()
		errs := make([]error, len(hosts))
		var all sync.WaitGroup
		for i, h := range hosts {
			all.Go(func() { _, errs[i] = b.shells[h].run(command(i), false) })
		}
		all.Wait()
		return ms(time.Since(began)), errors.Join(errs...)
	}
}

func (b *bench) mpiPrograms() {
	b.peers()
	program := filepath.Join(mpiPrograms(b.t), "mpich5")
	hydra, err := filepath.Glob("../../.build/mpis/mpich/*bin/mpiexec.hydra")
	check(b.t, err)
	if len(hydra) != 1 {
		b.t.Fatalf("MPICH's mpiexec.hydra: %v", hydra)
	}
	own, err := filepath.Abs(hydra[0])
	check(b.t, err)
	b.inTurns(plural(b.hosts, "host"), "ms", b.rounds,
		b.typed("sparkrun launch mpi", fmt.Sprintf("sparkrun launch mpi --nodes %d -- %s", b.hosts, program)),
		b.typed("srun --mpi=pmi2, a step in an allocation", b.srun(b.hosts, "--mpi=pmi2 "+program)),
		b.typed("its mpiexec.hydra, over ssh", b.hydra(own, "ssh", b.hosts, program)))
}

func (b *bench) commands() {
	b.peers()
	b.inTurns("the version", "ms", b.rounds, b.typed("sparkrun version", "sparkrun version"),
		b.typed("srun --version", "srun --version"), b.typed("true", "/bin/true"))
	b.inTurns("the jobs", "ms", b.rounds, b.typed("sparkrun ps", "sparkrun ps"), b.typed("squeue", "squeue"))
}

func (b *bench) torch() {
	script := filepath.Join(b.dir, "meet.py")
	// A rank that asks for the store before rank 0 listens sleeps a second in torch, whoever started it
	// (c10d's socket.cpp, SocketConnectOp). It waits here for less, so that starts are compared and not luck.
	check(b.t, os.WriteFile(script, []byte(`import os, socket, time
import torch.distributed as d
while os.environ['RANK'] != '0':
    try:
        socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))).close()
        break
    except ConnectionRefusedError:
        time.sleep(0.001)
d.init_process_group('gloo')
d.destroy_process_group()
`), 0o644))
	port := 29500
	byHand := func(name, command string) way {
		run := b.everywhere([]string{"spark2", "spark3"}, func(rank int) string {
			return strings.NewReplacer("@RANK", fmt.Sprint(rank), "@PORT", fmt.Sprint(port)).Replace(command)
		})
		return way{name, func() (float64, error) {
			port++ // the last one's is not free yet
			return run()
		}}
	}
	launch := "sparkrun launch torchrun --on spark2,spark3 --python " + python
	const head, gloo = "192.168.100.12", "env GLOO_SOCKET_IFNAME=enp1s0f0np0 "
	b.inTurns("2 hosts", "ms", max(1, b.rounds/2),
		b.typed("sparkrun launch torchrun", launch+" -- "+script),
		byHand("python, started by hand on both at once",
			gloo+"MASTER_ADDR="+head+" MASTER_PORT=@PORT WORLD_SIZE=2 RANK=@RANK "+python+" "+script),
		b.typed("--agent torchrun, started by sparkrun", launch+" --agent torchrun -- "+script),
		// Redirects as sparkrun gives them: torch 1.13 fails by its defaults under Python 3.11.
		byHand("torchrun, started by hand on both at once", gloo+python+" -m torch.distributed.run "+
			"--redirects=9:1 --tee=9:1 --nnodes 2 --node_rank @RANK --nproc_per_node 1 --master_addr "+head+" --master_port @PORT "+script))
}

func (b *bench) deaths() {
	b.peers()
	died, script := filepath.Join(b.dir, "died"), filepath.Join(b.dir, "die")
	check(b.t, os.WriteFile(script, fmt.Appendf(nil, `#!/bin/bash
r=${RANK-${SLURM_PROCID-${PMI_RANK-$OMPI_COMM_WORLD_RANK}}}
((r != 1)) || { sleep 1; echo $EPOCHREALTIME >%s; kill -9 $$; }
exec sleep 1000
`, died), 0o755))
	dies := func(name, command string) way {
		s := b.shell("spark2")
		return way{name, func() (float64, error) {
			_ = os.Remove(died)
			if _, err := s.run(command, true); err != nil {
				return 0, err
			}
			over := float64(time.Now().UnixMicro()) / 1e6
			text, err := os.ReadFile(died)
			if err != nil {
				return 0, err
			}
			at, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
			return (over - at) * 1000, err
		}}
	}
	b.inTurns("3 hosts", "ms", max(1, b.rounds/2),
		dies("sparkrun launch exec --grace 0s", "sparkrun launch exec --nodes 3 --grace 0s -- "+script),
		dies("srun --kill-on-bad-exit", b.srun(3, "--kill-on-bad-exit=1 "+script)),
		dies("mpiexec.hydra, over ssh", b.hydra("mpiexec.hydra", "ssh", 3, script)),
		dies("mpirun.openmpi, over ssh", b.mpirun(3, script)))
}

func (b *bench) output() {
	b.peers()
	const line = "step 1234 loss 0.12345678 lr 3e-4 tokens/s 12345.6 mem 45.6 GiB"
	const lines = 2 << 20
	const size = lines * (len(line) + 1)
	from, to := filepath.Join(b.dir, "lines"), "/dev/shm/copy"
	b.on("spark1", "sh", "-c", fmt.Sprintf("yes '%s' | head -n %d >%s", line, lines, from)).must(b.t)
	b.on("spark2", "sh", "-c", "sparkrun launch exec --name lines --on spark1 -- cat "+from+" >/dev/null").must(b.t)
	speed := func(name, command string) way {
		w := b.typed(name, fmt.Sprintf("%s >%s && (($(stat -c %%s %[2]s) >= %d))", command, to, size))
		return way{name, func() (float64, error) {
			took, err := w.run()
			return float64(size) / took / 1e3, err
		}}
	}
	rounds, logs, launch := max(1, b.rounds/4), "sparkrun logs --output ", "sparkrun launch exec --output "
	b.inTurns("kept output, read on another host", "MB/s", rounds,
		speed(logs+"prefix", logs+"prefix lines"),
		speed(logs+"raw", logs+"raw lines"),
		speed(logs+"json", logs+"json lines"))
	b.inTurns("a rank that writes, with prefixes", "MB/s", rounds,
		speed(launch+"prefix", launch+"prefix --on spark1 -- cat "+from),
		speed("srun --label", b.srun(1, "-w spark1 --label cat "+from)),
		speed("mpirun.openmpi --tag-output", b.mpirun(1, "--tag-output cat "+from)))
	b.inTurns("a rank that writes, raw", "MB/s", rounds,
		speed(launch+"raw", launch+"raw --on spark1 -- cat "+from),
		speed("srun", b.srun(1, "-w spark1 cat "+from)),
		speed("ssh", "ssh spark1 cat "+from),
		speed("cat | cat on spark2 alone", "cat "+from+" | cat"))
}

// used is the processor time that hosts have used, in milliseconds.
func (b *bench) used(hosts ...string) (total float64, err error) {
	for _, h := range hosts {
		on, err := os.ReadFile("/var/tmp/sparkrun-lab/" + b.name + "/hosts/" + h + "/on")
		if err != nil {
			return 0, err
		}
		words := strings.Fields(string(on)) // the PID of its init, the mount of cgroup v2
		if len(words) < 2 {
			return 0, errors.New("no cgroup v2 here")
		}
		stat, err := os.ReadFile(filepath.Join(words[1], "sparkrun-lab", b.name, h, "cpu.stat"))
		if err != nil {
			return 0, err
		}
		var us float64
		if _, err := fmt.Sscanf(string(stat), "usage_usec %f", &us); err != nil {
			return 0, err
		}
		total += us / 1000
	}
	return total, nil
}

// spent is the processor time of all hosts while something is done, and how long that was.
func (b *bench) spent(do func() error) (cpu, wall float64, err error) {
	before, err := b.used(other(b.hosts)...)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, 0, err
	}
	wall = ms(time.Since(began))
	after, err := b.used(other(b.hosts)...)
	return after - before, wall, err
}

func (b *bench) cost() {
	b.peers()
	const times = 10
	launch := fmt.Sprintf("sparkrun launch exec --nodes %d -- true", b.hosts)
	takes := func(name, command string) way {
		w := b.typed(name, command)
		return way{name, func() (float64, error) {
			idle, idled, err := b.spent(func() error { time.Sleep(2 * time.Second); return nil })
			if err != nil {
				return 0, err
			}
			cpu, wall, err := b.spent(func() error {
				for range times {
					if _, err := w.run(); err != nil {
						return err
					}
				}
				time.Sleep(500 * time.Millisecond) // what is done after the command's end
				return nil
			})
			return (cpu - idle*wall/idled) / times / float64(b.hosts), err
		}}
	}
	rounds := max(1, b.rounds/4)
	b.inTurns("processor time, less what is used anyhow", "ms a host", rounds,
		takes("sparkrun launch exec", launch),
		takes("srun, a step in an allocation", b.srun(b.hosts, "true")),
		takes("mpiexec.hydra, over ssh", b.hydra("mpiexec.hydra", "ssh", b.hosts, "true")))

	leader := b.leader("spark2")
	group := []figure{{Name: "on the leader's host"}, {Name: "on each other host"}}
	for range rounds {
		for _, h := range other(b.hosts) {
			n, err := b.syncs(h, launch)
			of := &group[min(1, len(strings.TrimPrefix(h, leader)))]
			if of.Samples = append(of.Samples, n); err != nil {
				of.Lacking = err.Error()
			}
		}
	}
	for _, f := range group {
		f.Group, f.Unit = "fsyncs of one launch that wait for the one before", "calls"
		b.tell(f)
	}
}

// synced is a line of strace's: a whole call by its begin, or the end of one that was told in two parts.
var synced = regexp.MustCompile(`^\d+ +(\d+\.\d+) (<\.\.\. )?f(?:data)?sync[ (].* <(\d+\.\d+)>$`)

// syncs counts the fsyncs that a host's agent and shim make for a launch, those side by side as one.
func (b *bench) syncs(host, launch string) (inRow float64, err error) {
	file := filepath.Join(b.dir, "strace")
	agent := fmt.Sprint(b.find(host, "sparkrun agent", "")[0])
	strace := exec.Command("strace", "-f", "-ttt", "-T", "-e", "trace=fsync,fdatasync", "-o", file, "-p", agent)
	if err := strace.Start(); err != nil {
		return 0, err
	}
	eventually(b.t, time.Minute, "strace follows the agent", func() bool {
		threads, _ := filepath.Glob("/proc/" + agent + "/task/*/status")
		return !slices.ContainsFunc(threads, func(path string) bool {
			text, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(text), "TracerPid:\t0\n")
		})
	})
	_, err = b.shell("spark2").run(launch, false)
	_ = strace.Process.Signal(syscall.SIGINT)
	// It may wait for ever for a thread that ended meanwhile; its lines are written by then.
	late := time.AfterFunc(5*time.Second, func() { _ = strace.Process.Kill() })
	_ = strace.Wait() // by our signal
	late.Stop()
	text, readErr := os.ReadFile(file)
	if err = errors.Join(err, readErr); err != nil {
		return 0, err
	}
	var calls [][2]float64 // begin, end
	for line := range strings.Lines(string(text)) {
		m := synced.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		at, _ := strconv.ParseFloat(m[1], 64)
		took, _ := strconv.ParseFloat(m[3], 64)
		if m[2] != "" {
			at -= took
		}
		calls = append(calls, [2]float64{at, at + took})
	}
	slices.SortFunc(calls, func(a, b [2]float64) int { return cmp.Compare(a[1], b[1]) })
	over := 0.0
	for _, c := range calls {
		if c[0] >= over {
			over = c[1]
			inRow++
		}
	}
	return inRow, nil
}

func (b *bench) idle() {
	b.peers()
	leader := b.leader("spark2")
	roles := []struct {
		name, program string
		hosts         []string
	}{
		{"sparkrun agent of the leader", "sparkrun agent", []string{leader}},
		{"sparkrun agent of each other host", "sparkrun agent", other(b.hosts, leader)},
		{"slurmctld", "slurmctld -f", []string{"spark1"}},
		{"slurmd", "slurmd -f", other(b.hosts)},
	}
	time.Sleep(10 * time.Second) // what came before has been forgotten
	kinds := []figure{{Group: "processor", Unit: "% of a core"}, {Group: "context switches", Unit: "switches/s"},
		{Group: "resident memory", Unit: "MB"}}
	pids := make([][]int, len(roles))
	for i, role := range roles {
		for _, h := range role.hosts {
			pids[i] = append(pids[i], b.find(h, role.program, "")...)
		}
	}
	var seen []map[int]use // at the end of each of some windows
	const window = 5 * time.Second
	for i := range max(1, b.rounds/4) + 1 {
		if i > 0 {
			time.Sleep(window)
		}
		seen = append(seen, map[int]use{})
		for _, pid := range slices.Concat(pids...) {
			seen[i][pid] = usedBy(pid)
		}
	}
	for k, r := range kinds {
		for i, role := range roles {
			r.Name, r.Samples, r.Lacking = role.name, nil, ""
			for w := 1; w < len(seen); w++ {
				for _, pid := range pids[i] {
					was, now := seen[w-1][pid], seen[w][pid]
					r.Samples = append(r.Samples, []float64{(now.cpu - was.cpu) * 100 / window.Seconds(),
						(now.switches - was.switches) / window.Seconds(), now.memory}[k])
				}
			}
			if len(pids[i]) == 0 {
				r.Lacking = "does not run"
			}
			b.tell(r)
		}
	}
}

// use is what a process has used: seconds of processor, switches of its threads; and holds, in MB.
type use struct{ cpu, switches, memory float64 }

func usedBy(pid int) (u use) {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range threads {
		var ns float64
		text, _ := os.ReadFile(dir + "/schedstat")
		_, _ = fmt.Sscan(string(text), &ns)
		u.cpu += ns / 1e9
		text, _ = os.ReadFile(dir + "/status")
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			var n float64
			_, _ = fmt.Sscan(value, &n)
			switch name {
			case "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches":
				u.switches += n
			case "VmRSS":
				u.memory = n * 1024 / 1e6
			}
		}
	}
	return u
}

func (b *bench) losses() {
	lost := map[string]string{"node": "a node is lost", "leader": "the node of the leader is lost"}
	for _, loss := range losses {
		if lost[loss.name] == "" {
			continue
		}
		took := loss.measured(b.t.(*testing.T), max(1, b.rounds/4))
		for _, name := range loss.figures {
			r := figure{Group: lost[loss.name], Unit: "ms", Name: name}
			for _, d := range took[name] {
				r.Samples = append(r.Samples, ms(d))
			}
			b.tell(r)
		}
	}
}

// inProcess runs a benchmark of a package, and tells one metric of each of its parts.
func (b *bench) inProcess(pkg, name, benchtime, group, unit string, parts ...[2]string) {
	out, err := exec.Command("go", "test", "-run", "^$", "-bench", "^Benchmark"+name+"$", "-benchtime", benchtime,
		"-count", fmt.Sprint(max(1, b.rounds/4)), "../../"+pkg).CombinedOutput()
	if err != nil {
		b.t.Fatalf("Benchmark%s: %v\n%s", name, err, out)
	}
	for _, part := range parts {
		r := figure{Group: group, Name: part[1], Unit: unit}
		is := regexp.MustCompile(`(?m)^Benchmark` + name + part[0] + `(?:-\d+)?\s.*?([\d.]+) ` + unit + `\b`)
		for _, m := range is.FindAllStringSubmatch(string(out), -1) {
			f, _ := strconv.ParseFloat(m[1], 64)
			r.Samples = append(r.Samples, f)
		}
		b.tell(r)
	}
}

func (b *bench) submits() {
	b.inProcess("cmd/node", "Submits", "500x", "jobs taken", "submits/s",
		[2]string{"/run", "of one rank each, to their ends"}, [2]string{"/queued", "that wait in line"})
}

func (b *bench) place() {
	b.inProcess("cmd/node/survey", "Place", "5x", "all ranks", "ms", [2]string{"", "plan and environment"})
}
