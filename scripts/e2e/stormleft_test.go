package e2e

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// What a storm must leave nothing of, and what it keeps where something went wrong.

// holding is what a host has when no job runs.
type holding struct {
	footprint
	things     []string // mounts, files, processes, links, cgroups, shared memory: one as often as it is there
	goroutines int      // of its agent
}

// holding looks at a host. Goroutines are counted apart. What a crash left half written stays until something is written in
// its folder, ten minutes later or more (package durable).
func (s *storm) holding(host string) holding {
	s.t.Helper()
	const script = `cut -d' ' -f5 /proc/self/mountinfo | sed 's/^/mount /'
ps -eo pid=,ppid=,args= | awk -v me=$$ '$1 != me && $2 != me { $1 = $2 = ""; print "process" $0 }'
ls /sys/class/net | sed 's/^/link /'
awk 'FNR > 1 { print "System V", FILENAME, $1 }' /proc/sysvipc/*
[ ! -S /run/docker.sock ] || docker ps --all --format 'container {{.Names}}'
find /run /dev/shm /tmp -mindepth 1 ! -path '/tmp/not-on-*' ! -path '/run/lock/*' ! -path '/run/docker*' ! -path '/run/containerd*' ! -name '.*.new-*' | sed 's/^/file /'
cd /var/lib/sparkrun && find . -mindepth 1 ! -path './logs/*' ! -path './raft/*' ! -path './raft.old/*' ! -path './trust/*' ! -name '.*.new-*' | sed 's/^/state /'
find /run/sparkrun . -name '.*.new-*' -mmin +10 | while read f; do
	written=$(find "${f%/*}" -maxdepth 1 -type f ! -name '.*' -printf '%Ts\n' | sort -n | tail -n 1) left=$(stat -c %Y "$f" || date +%s)
	[ $((written - left)) -le 660 ] || echo "half written $f"
done 2>/dev/null`
	things := strings.Split(strings.TrimSpace(s.on(host, "sh", "-c", script).must(s.t).out), "\n")
	for _, hierarchy := range []string{"", "*/"} {
		own, err := filepath.Glob("/sys/fs/cgroup/" + hierarchy + "sparkrun-lab/" + s.name + "/" + host)
		check(s.t, err)
		for _, dir := range own {
			_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() {
					things = append(things, "cgroup "+path)
				}
				return nil // one that goes meanwhile
			})
		}
	}
	return holding{footprint: s.footprint(host), things: things}
}

// beyond is what there is now, and neither was there at first nor is documented to stay.
func (was holding) beyond(now holding, nodes int) []string {
	over := was.over(now.footprint, 2*4*nodes, nodes)
	had := map[string]int{}
	for _, thing := range was.things {
		had[thing]++
	}
	for _, thing := range now.things {
		if had[thing]--; had[thing] < 0 && !stays.MatchString(thing) {
			over = append(over, thing)
		}
	}
	return over
}

// stays is what a node keeps of its life: `sparkrun help operations`, and "On disk" in cmd/node/DESIGN.md. Of an engine, what
// it mounts for itself, and the group that the lab has it make containers' groups in. Of MPICH and its UCX, what they take away once all ranks have it: where ranks are killed before, it
// stays under MPICH's own mpiexec too.
var stays = regexp.MustCompile(`^mount /run/docker/|^cgroup .*/sparkrun-lab-[^/]*$|^file /dev/shm/(mpich_shm_|ucx_shm_posix_)|^state \./(containers$|audit\.log|raft\.old|failover\.json|addresses\.json|netplan|logs|compiled|models|stage|orders)`)

// dumps has the agents of all hosts tell their goroutines and end, counts them, and starts them again.
func (s *storm) dumps() map[string]int {
	s.t.Helper()
	counts, logs := map[string]int{}, map[string]int64{}
	log := func(host string) string {
		return filepath.Join("/var/tmp/sparkrun-lab", s.name, "hosts", host, "agent.log")
	}
	var pids []int
	for _, h := range other(s.nodes) {
		logs[h] = size(log(h))
		for _, pid := range s.agents(h) {
			pids = append(pids, pid)
			if err := syscall.Kill(pid, syscall.SIGABRT); err != nil {
				s.t.Errorf("ask the agent of %s for its goroutines: %v", h, err)
			}
		}
	}
	reaped(s.t, pids...)
	for _, h := range other(s.nodes) {
		text, err := os.ReadFile(log(h))
		check(s.t, err)
		counts[h] = strings.Count(string(text[logs[h]:]), "\ngoroutine ")
		s.do("start", h, "--agent")
	}
	return counts
}

// nothingLeft compares all hosts with what they held at first. Memory alone has as long as in TestAgentsStaySmall: Go's
// runtime collects an idle agent's each two minutes. What is there for a moment, as a socket that is just opened, is none.
func (s *storm) nothingLeft(first map[string]holding) {
	s.t.Helper()
	over := map[string][]string{}
	began, gone := time.Now(), time.Now() // when there was last nothing but memory
	for limit := 90 * time.Second; ; time.Sleep(2 * time.Second) {
		for _, h := range other(s.nodes) {
			over[h] = first[h].beyond(s.holding(h), s.nodes)
		}
		all := slices.Concat(slices.Collect(maps.Values(over))...)
		if !slices.ContainsFunc(all, func(what string) bool { return !strings.HasPrefix(what, "memory: ") }) {
			gone = time.Now()
		}
		if took := time.Since(began); took > limit && (time.Since(gone) > 20*time.Second || took > givenBack) || len(all) == 0 {
			s.tell("%s until nothing was left, or was waited for", took.Round(time.Second))
			break
		}
	}
	for _, h := range other(s.nodes) {
		if len(over[h]) > 0 {
			s.t.Errorf("%s holds more than at first:\n%s", h, strings.Join(over[h], "\n"))
		}
	}
	goroutines := s.dumps()
	most := 0
	for _, h := range first {
		most = max(most, h.goroutines)
	}
	for _, h := range other(s.nodes) {
		if n := goroutines[h]; n > most+20 || n == 0 {
			s.t.Errorf("the agent of %s has %d goroutines, and at first none had more than %d: its log tells which", h, n, most)
		}
	}
	s.tell("goroutines: %v, at first %d at most", goroutines, most)
	for _, h := range other(s.nodes) {
		text, err := os.ReadFile(filepath.Join("/var/tmp/sparkrun-lab", s.name, "hosts", h, "agent.log"))
		check(s.t, err)
		if found := crash.Find(text); found != nil {
			s.t.Errorf("the agent of %s has crashed: %s", h, found)
		}
	}
}

var crash = regexp.MustCompile(`(?m)^(panic: |fatal error: |WARNING: DATA RACE).*$`)

// keep copies what tells of a storm that went wrong, before its lab goes down, and says where.
func (s *storm) keep(dir string) {
	s.mu.Lock()
	told := slices.Clone(s.told)
	s.mu.Unlock()
	s.t.Logf("what came before:\n%s", strings.Join(told[max(0, len(told)-30):], "\n"))
	if dir == "" {
		return
	}
	check(s.t, os.MkdirAll(dir, 0o755))
	check(s.t, os.WriteFile(filepath.Join(dir, "told"), []byte(strings.Join(told, "\n")+"\n"), 0o644))
	lab := filepath.Join("/var/tmp/sparkrun-lab", s.name)
	copies := [][]string{{lab, filepath.Join(dir, "lab")}, {s.shared, filepath.Join(dir, "shared")}}
	for _, h := range other(s.nodes) {
		on, _ := os.ReadFile(filepath.Join(lab, "hosts", h, "on"))
		if f := strings.Fields(string(on)); len(f) > 0 {
			copies = append(copies, []string{fmt.Sprintf("/proc/%s/root/run/sparkrun", f[0]), filepath.Join(dir, "run."+h)})
		}
	}
	for _, c := range copies {
		if out, err := exec.Command("cp", "-a", c[0], c[1]).CombinedOutput(); err != nil {
			s.t.Logf("keep %s: %v: %.300s", c[0], err, out) // a socket, or what has gone meanwhile
		}
	}
	s.t.Logf("the lab's folder, the witnesses' and the hosts' /run/sparkrun are kept in %s", dir)
}
