package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var troubles = flag.Bool("troubles", false, "why: plant all troubles, and look at all healthy jobs")

// whyAnswer is what `why --json` prints.
type whyAnswer struct {
	Findings []struct {
		Code, Text, Host string
		Rank             *int
		Sure             int
	}
	Looked []string
}

func (l *lab) why(of string) (a whyAnswer) {
	l.t.Helper()
	r := l.on("spark1", "sparkrun", "why", of, "--json").must(l.t)
	if err := json.Unmarshal([]byte(r.out), &a); err != nil {
		l.t.Fatalf("%v: %s", err, r)
	}
	if r.took > 10*time.Second {
		l.t.Errorf("why %s took %s", of, r.took)
	}
	return a
}

// lasting is after how long a wait is told of: readings are of a minute, and one of them has to be whole.
const lasting = 125 * time.Second

// whyRow is a job, and what is done to it.
type whyRow struct {
	name   string
	launch string // with its flags; %s is the script
	plant  func(*lab)
	within time.Duration // until it is asked; 0: 4 s
	undo   func(*lab)
	// One of the codes has to be the first finding, about that host; none: nothing may be found.
	codes, host string
	of          string // what is asked for; empty: the job
}

const whyTrain = "torchrun --nodes 3 --python PYTHON -- SCRIPT "

// run tells what is wrong with the answer; empty: nothing is.
func (row whyRow) run(l *lab) string {
	script := whyScript(l.t)
	for _, h := range other(3) {
		l.on(h, "rm", "-f", "/tmp/why-trains").must(l.t)
	}
	defer func() {
		l.on("spark1", "sparkrun", "stop", "row", "--grace", "0s")
		if row.undo != nil {
			row.undo(l)
		}
	}()
	if row.launch != "" {
		args := strings.NewReplacer("PYTHON", python, "SCRIPT", script, "STANDIN",
			filepath.Join(filepath.Dir(script), "standin_server.py")).Replace(row.launch)
		words := strings.Fields(args)
		l.on("spark1", append([]string{"sparkrun", "launch", "-d", words[0], "--name", "row"}, words[1:]...)...).must(l.t)
		if strings.HasPrefix(row.launch, whyTrain) && !strings.HasSuffix(row.codes, "not-come") {
			l.awaitTraining()
		}
	}
	if row.plant != nil {
		row.plant(l)
	}
	within := row.within
	if within == 0 {
		within = 3 * time.Second
	}
	time.Sleep(within)
	of := "row"
	if row.of != "" {
		of = row.of
	}
	a := l.why(of)
	switch {
	case row.codes == "" && len(a.Findings) > 0:
		return fmt.Sprintf("found %+v", a.Findings)
	case row.codes == "" && len(a.Looked) == 0:
		return "it does not say what was looked at"
	case row.codes == "":
	case len(a.Findings) == 0:
		return fmt.Sprintf("nothing found; looked at %q", a.Looked)
	case !slices.Contains(strings.Fields(row.codes), a.Findings[0].Code) || row.host != "" &&
		a.Findings[0].Host != row.host:
		return fmt.Sprintf("want %s of %s first: %+v", row.codes, row.host, a.Findings)
	}
	if len(a.Findings) > 0 {
		l.t.Logf("%s: %s", row.name, a.Findings[0].Text)
	}
	return ""
}

func whyScript(t testing.TB) string {
	t.Helper()
	script, err := filepath.Abs("testdata/why.py")
	if err != nil {
		t.Fatal(err)
	}
	return script
}

// awaitTraining waits until each rank of a training on all machines has done a step.
func (l *lab) awaitTraining() {
	l.t.Helper()
	for _, h := range other(3) {
		eventually(l.t, 60*time.Second, h+" trains", func() bool {
			return l.on(h, "test", "-e",
				"/tmp/why-trains").code == 0
		})
	}
}

// shellOn runs shell text on a host.
func shellOn(host, text string) func(*lab) {
	return func(l *lab) { l.on(host, "sh", "-c", text).must(l.t) }
}

// gpus has all machines' GPUs at work, that of spark2 as text says.
func gpus(text string) func(*lab) {
	return func(l *lab) {
		for _, h := range other(3) {
			b := text
			if text != "" && h != "spark2" {
				b = "util=96\nclock=2405\n"
			}
			if err := os.WriteFile("/var/tmp/sparkrun-lab/"+l.name+"/hosts/"+h+"/gpu", []byte(b), 0o644); err != nil {
				l.t.Fatal(err)
			}
		}
	}
}

// answering has spark3 take connections at a port, and then do what Python's text says with each, c; rank 1 asks it.
func answering(port, text string) func(*lab) {
	return func(l *lab) {
		l.on("spark3", "sh", "-c", fmt.Sprintf("setsid %s -c 'import os,socket,time\ns=socket.create_server((\"\",%s))\n"+
			"open(\"/tmp/why-serves\",\"w\").write(str(os.getpid()))\nwhile True:\n c=s.accept()[0]\n while True:\n  %s'"+
			" >/dev/null 2>&1 </dev/null & while ! test -s /tmp/why-serves; do sleep 0.1; done", python, port, text)).must(l.t)
		l.on("spark2", "sh", "-c", "echo spark3:"+port+" > /tmp/why-from").must(l.t)
	}
}

func answeringNoMore(l *lab) {
	l.on("spark2", "rm", "/tmp/why-from")
	l.on("spark3", "sh", "-c", "kill $(cat /tmp/why-serves); rm /tmp/why-serves")
}

func whyTroubles() []whyRow {
	on := func(host, text string) func(*lab) { return shellOn(host, text) }
	return []whyRow{
		{name: "a rank is stopped", launch: whyTrain + "train", plant: on("spark2", "pkill -STOP -f [w]hy.py"),
			codes: "rank-stopped", host: "spark2"},
		{name: "a rank sleeps, others are in all_reduce", launch: whyTrain + "train",
			plant: on("spark3", "touch /tmp/why-sleep-2"), undo: on("spark3", "rm /tmp/why-sleep-2"), within: lasting,
			codes: "waits-for-rank", host: "spark3"},
		{name: "a proxy takes a rank's connection, and does not answer", launch: whyTrain + "fetch",
			plant: answering("3128", "time.sleep(9)"), undo: answeringNoMore, within: lasting, codes: "awaits-answer", host: "spark2"},
		{name: "a child waits for a lock that a thread had when it was forked", launch: whyTrain + "forked", within: lasting,
			codes: "child-locked", host: "spark2"},
		{name: "a rank does not read what a program writes for which it waits", launch: whyTrain + "piped",
			within: lasting, codes: "waits-for-rank", host: "spark2"},
		{name: "a machine has an address of the job's", launch: "exec --on spark1,spark2 -- sleep 600",
			plant: on("spark3", "ip addr add 192.168.100.12/24 dev enp1s0f0np0"),
			undo:  on("spark3", "ip addr del 192.168.100.12/24 dev enp1s0f0np0"), codes: "duplicate-address", host: "spark3"},
		{name: "a client has all files of a service", launch: "exec --on spark1 --serve 8000 --health /health --ulimit nofile=64:64 " +
			"-- PYTHON -m http.server 8000", plant: func(l *lab) {
			on("spark1", "until ss -Hltn sport = :8000 | grep -q .; do sleep 0.2; done")(l)
			on("spark3", "setsid timeout 60 "+python+" -c 'import socket,time\n"+
				"all=[socket.create_connection((\"spark1\",8000)) for _ in range(80)]\ntime.sleep(60)' >/dev/null 2>&1 </dev/null &")(l)
		}, within: 30 * time.Second, codes: "files-full", host: "spark1"},
		{name: "a packet filter drops what would connect", plant: func(l *lab) {
			on("spark1", "iptables -A INPUT -p tcp --syn --dport 20000:65535 -j DROP")(l)
			l.on("spark1", "sparkrun", "launch", "-d", "torchrun", "--name", "row", "--nodes", "3", "--python", python, "--",
				whyScript(l.t), "train").must(l.t)
		}, undo: on("spark1", "iptables -F INPUT"), within: 30 * time.Second, codes: "no-answer", host: "spark1"},
		{name: "ranks look for rank 0 on their own machines", launch: whyTrain + "elsewhere", within: lasting,
			codes: "not-come", host: "spark2"},
		{name: "a program's world is larger than the job", launch: whyTrain + "larger", within: lasting, codes: "not-come"},
		{name: "ranks talk over management", launch: strings.Replace(whyTrain, " --python", " -e GLOO_SOCKET_IFNAME=enP7s7 --python",
			1) + "train", within: 10 * time.Second, codes: "not-by-fabric", host: "spark1"},
		{name: "a rank is locked up", launch: "exec --nodes 3 -- PYTHON SCRIPT lock", within: 2 * time.Second,
			codes: "rank-locked", host: "spark2"},
		{name: "another program has a rank's core", launch: "exec --nodes 3 -- PYTHON SCRIPT burn",
			plant: on("spark2", "p=$(pgrep -f '[w]hy.py burn' | head -1); taskset -pc 0 $p; for i in 1 2 3 4; do setsid taskset -c 0 timeout 20 sh -c 'while :; do :; done' >/dev/null 2>&1 & done"),
			undo:  func(*lab) { time.Sleep(12 * time.Second) }, // until these are over
			codes: "starved", host: "spark2"},
		{name: "its quota of processor time is used up", launch: "exec --nodes 2 -- PYTHON SCRIPT burn",
			plant: on("spark2", "g=/sys/fs/cgroup/cpu/why; mkdir -p $g; echo 2000 > $g/cpu.cfs_quota_us; "+
				"for p in $(pgrep -f '[w]hy.py burn'); do echo $p > $g/cgroup.procs; done"),
			codes: "throttled", host: "spark2"},
		{name: "a rank is at its cgroup's limit of memory", launch: "exec --nodes 2 -- PYTHON SCRIPT page",
			plant: on("spark2", "until [ $(stat -c %s /tmp/why-pages) = 167772160 ]; do sleep 0.2; done; sleep 2; "+
				"g=/sys/fs/cgroup/memory/why; mkdir -p $g; echo 40M > $g/memory.limit_in_bytes; "+
				"for p in $(pgrep -f '[w]hy.py page'); do echo $p > $g/cgroup.procs; done; touch /tmp/why-limited"),
			undo: on("spark2", "rmdir /sys/fs/cgroup/memory/why; rm /tmp/why-pages /tmp/why-limited"), within: 8 * time.Second,
			codes: "paging", host: "spark2"},
		{name: "docker hangs while a job starts", plant: func(l *lab) {
			l.do("engine", "spark2")
			on("spark2", "kill -STOP $(cat /run/docker.pid)")(l)
			on("spark1", "sparkrun launch -d exec --name row --on spark2 --image lab/busybox -- sleep 60 "+
				">/dev/null 2>&1 </dev/null &")(l)
		}, undo: func(l *lab) {
			on("spark2", "kill -CONT $(cat /run/docker.pid)")(l)
			l.do("engine", "--stop", "spark2")
		}, within: 8 * time.Second, codes: "engine-silent", host: "spark2"},
		{name: "a debugger holds a rank", launch: "exec --nodes 2 -- PYTHON SCRIPT idle",
			plant: on("spark2", "p=$(pgrep -f '[w]hy.py idle'); "+
				"setsid sh -c \"sleep 60 | gdb -nx -q -p $p\" >/dev/null 2>&1 </dev/null &"),
			codes: "rank-traced", host: "spark2"},
		{name: "a link loses packets", launch: whyTrain + "train",
			plant: on("spark3", "iptables -A INPUT -i enp1s0f0np0 -m statistic --mode random --probability 0.05 -j DROP"),
			undo:  on("spark3", "iptables -F INPUT"), codes: "loses-packets no-answer", host: "spark3"},
		{name: "a switch takes no large packets", launch: whyTrain + "train",
			plant: on("spark3", "for n in enp1s0f0np0 enp1s0f1np1; do iptables -A INPUT -i $n -m length --length 1501:65535 -j DROP; done"),
			undo:  on("spark3", "iptables -F INPUT"), within: 15 * time.Second, codes: "no-answer"},
		{name: "a cable is pulled", launch: whyTrain + "train", plant: func(l *lab) { l.do("cut", "spark2", "port0") },
			undo: func(l *lab) { l.do("heal", "spark2"); time.Sleep(2 * time.Second) }, codes: "link-lost", host: "spark2"},
		{name: "a GPU has fallen to a part of its clock", launch: "exec --nodes 3 -- sleep 600",
			plant: gpus("util=96\nclock=507\n"),
			undo:  gpus(""), codes: "gpu-slow", host: "spark2"},
		{name: "its machines are taken", launch: "exec --nodes 3 --gpus all --wait -- sleep 600",
			plant: func(l *lab) {
				l.on("spark1", "sparkrun", "launch", "-d", "exec", "--name", "second", "--nodes", "2", "--gpus", "all", "--wait",
					"--", "true").must(l.t)
			}, of: "second", undo: func(l *lab) { l.on("spark1", "sparkrun", "stop", "second") }, codes: "waits"},
		{name: "a machine is drained", launch: "exec --on spark1 --gpus all -- sleep 600", plant: func(l *lab) {
			l.on("spark1", "sparkrun", "node", "drain", "spark3").must(l.t)
			l.on("spark1", "sparkrun", "launch", "-d", "exec", "--name", "second", "--nodes", "2", "--gpus", "all", "--wait", "--",
				"true").must(l.t)
		}, of: "second", undo: func(l *lab) {
			l.on("spark1", "sparkrun", "stop", "second")
			l.on("spark1", "sparkrun", "node", "resume", "spark3").must(l.t)
		}, codes: "waits"},
		{name: "a rank is killed", launch: whyTrain + "train", plant: on("spark2", "pkill -KILL -f [w]hy.py"),
			codes: "ended", host: "spark2"},
		{name: "a service is wedged", launch: "exec --serve 8000 --health /health --metrics /metrics -- PYTHON STANDIN 8000 0.0.0.0 wedge",
			within: 75 * time.Second, codes: "service-wedged"},
		{name: "a machine loses its power", launch: whyTrain + "train --node-timeout 1h", plant: func(l *lab) {
			l.do("kill",
				"spark3")
		},
			codes: "machine-away", host: "spark3", within: 8 * time.Second},
	}
}

func whyHealthy() []whyRow {
	return []whyRow{
		{name: "a training", launch: whyTrain + "train"},
		{name: "rank 0 works more than the others", launch: whyTrain + "uneven"},
		{name: "rank 0 writes a checkpoint, the others wait", launch: whyTrain + "checkpoint"},
		{name: "rank 0 writes a checkpoint in small pieces", launch: whyTrain + "pieces", within: lasting},
		{name: "a rank downloads something slowly, the others wait", launch: whyTrain + "fetch",
			plant: answering("8099", "c.send(b\"x\");time.sleep(5)"), undo: answeringNoMore, within: lasting},
		{name: "all ranks use all of a core", launch: "exec --nodes 3 -- PYTHON SCRIPT burn"},
		{name: "a rank has more threads than cores", launch: "exec --nodes 1 -- PYTHON SCRIPT burn-many"},
		{name: "ranks sleep", launch: "exec --nodes 3 -- PYTHON SCRIPT idle"},
		{name: "a shell waits for a child", launch: "exec --nodes 2 -- sh -c true;sleep${IFS}600"},
		{name: "a model is loaded", launch: "exec --nodes 1 -- PYTHON SCRIPT load"},
		{name: "threads have nothing to do", launch: "exec --nodes 2 -- PYTHON SCRIPT pool"},
		{name: "workers have no work", launch: "exec --on spark1,spark2 -- PYTHON SCRIPT worker", plant: func(l *lab) {
			l.on("spark3", "sh", "-c", "setsid "+python+" "+whyScript(l.t)+" queue >/dev/null 2>&1 </dev/null &").must(l.t)
		}, undo: shellOn("spark3", "pkill -f '[w]hy.py queue'"), within: lasting},
		{name: "a service has no requests", launch: "exec --serve 8000 --health /health -- PYTHON -m http.server 8000"},
		{name: "a machine with nothing to do", of: "spark2"},
		{name: "GPUs work, and one is idle", launch: "exec --nodes 3 -- sleep 600", plant: gpus("util=0\nclock=208\n"),
			undo: gpus("")},
	}
}

// Of a training that is well nothing is found; nor of one of which a rank sleeps while the other is in all_reduce, until
// that has gone on for a minute. Then the one is named that a signal has stopped.
func TestWhy(t *testing.T) {
	t.Parallel()
	l := up(t, 2)
	script := whyScript(t)
	launch := func(name, mode string) {
		l.on("spark1", "sparkrun", "launch", "-d", "torchrun", "--name", name, "--nodes", "2", "--python", python, "--",
			script, mode).must(t)
	}
	launch("row", "train")
	launch("late", "late")
	launch("chat", "chat")
	eventually(t, 30*time.Second, "it trains", func() bool {
		return l.on("spark1", "sh", "-c",
			"ls /tmp/why-trains").code == 0
	})
	if a := l.why("row"); len(a.Findings) > 0 || len(a.Looked) < 5 {
		t.Errorf("a healthy job: %+v", a)
	}
	l.on("spark2", "touch", "/tmp/why-sleep-1").must(t)
	eventually(t, 10*time.Second, "the wait is seen, and is no finding yet", func() bool {
		a := l.why("row")
		return len(a.Findings) == 0 && slices.Contains(a.Looked,
			"rank 1 sleeps and rank 0 waits, which has not been seen for a whole minute: ask again if that goes on")
	})
	time.Sleep(lasting)
	for job, code := range map[string]string{"row": "waits-for-rank", "late": "not-come", "chat": ""} {
		switch a := l.why(job); {
		case code == "" && len(a.Findings) == 0:
		case code == "" || len(a.Findings) == 0 || a.Findings[0].Code != code || a.Findings[0].Host != "spark2":
			t.Errorf("%s, want %q: %+v", job, code, a)
		}
	}
	l.on("spark2", "sh", "-c", "pkill -STOP -f [w]hy.py").must(t)
	r := l.on("spark2", "sparkrun", "why", "row").must(t)
	if !strings.Contains(r.out, "1. rank 1 on spark2 is stopped by a signal") || !strings.Contains(r.out,
		"--rank 1 -- kill -CONT ") {
		t.Errorf("%s", r)
	}
	if r := l.on("spark2", "sparkrun", "why", "spark3"); r.code == 0 || !strings.Contains(r.err,
		"those are spark1, spark2") {
		t.Errorf("an unknown name: %s", r)
	}
}

// TestWhyTroubles plants all troubles, each of which has to be found first, and looks at healthy jobs, in which
// nothing may be found. It takes minutes: -troubles.
func TestWhyTroubles(t *testing.T) {
	if !*troubles {
		t.Skip("takes minutes: -troubles")
	}
	l := up(t, 3, "--gpu")
	wrong := [2]int{}
	tried := [2]int{}
	for i, rows := range [][]whyRow{whyHealthy(), whyTroubles()} {
		for _, row := range rows {
			if only := os.Getenv("WHY_ROW"); only != "" && !strings.Contains(row.name, only) {
				continue
			}
			tried[i]++
			if text := row.run(l); text != "" {
				t.Errorf("%s: %s", row.name, text)
				wrong[i]++
			}
		}
	}
	t.Logf("%d of %d troubles found first; in %d of %d healthy jobs something was found", tried[1]-wrong[1], tried[1],
		wrong[0], tried[0])
}
