package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

var (
	updateInspect = flag.Bool("update-inspect", false, "rewrite testdata/inspect.json")
	containersAll = flag.Bool("containers-all", false, "TestContainers: also what is rarely of use")
)

// inContainers launches from spark1 in the lab's image.
func (l *lab) inContainers(args ...string) result {
	l.t.Helper()
	return l.on("spark1", append([]string{"sparkrun", "launch", "exec", "--image", "lab/busybox"}, args...)...)
}

// noContainerLeft wants nothing of a job to be left on a host: no container, no process of one, no
// folder, no cgroup.
func (l *lab) noContainerLeft(hosts ...string) {
	l.t.Helper()
	for _, h := range hosts {
		left := ""
		for began := time.Now(); time.Since(began) < 30*time.Second; time.Sleep(50 * time.Millisecond) {
			left = l.on(h, "sh", "-c", `docker ps -aq --filter label=com.sparkrun.job; ls /run/sparkrun/jobs /run/sparkrun/secrets 2>/dev/null | grep '\.[0-9]'
ls -d /dev/shm/sparkrun* /tmp/sparkrun-* 2>/dev/null; find /sys/fs/cgroup/sparkrun /sys/fs/cgroup/unified/sparkrun -mindepth 1 -type d 2>/dev/null; ps -eo args= | grep '[s]him @'`).out
			if left == "" {
				break
			}
		}
		if left != "" {
			l.t.Errorf("left on %s:\n%s", h, left)
		}
	}
}

// Ranks in containers of real engines, a host each, are ranks like any others.
func TestContainers(t *testing.T) {
	l := up(t, 3)
	hosts := []string{"spark1", "spark2", "spark3"}
	l.do("engine", "spark1", "spark3")
	l.do("engine", "--live-restore", "spark2")
	for _, h := range hosts {
		l.on(h, "sh", "-c", "umask 022; useradd -M -u 4711 eve; mkdir -p /etc/sparkrun; echo 'containers: {users: [root, eve]}' > /etc/sparkrun/policy.yaml").must(t)
	}
	for _, tt := range []struct {
		name string
		rare bool
		run  func(*testing.T, *lab)
	}{
		{"like a host's ranks", false, testContainersAreRanks}, {"torchrun", false, testTorchInContainers}, {"inspect", false, testInspect}, {"refused", false, testContainersRefused}, {"mpi", false, testMPIInContainers},
		{"engine restarted", false, testEngineRestarts}, {"killed by the engine", true, testKilledByTheEngine}, {"no verbs", true, testNoVerbs}, {"engine stopped", true, testEngineStopped}, {"swept", true, testSwept},
		{"trtllm", true, testTRTLLMInContainers},
	} {
		if tt.rare && !*containersAll {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			own := &lab{t: t, name: l.name}
			tt.run(t, own)
			own.noContainerLeft(hosts...)
		})
	}
}

func testContainersAreRanks(t *testing.T, l *lab) {
	r := l.inContainers("--nodes", "3", "--", "sh", "-c", `echo $RANK of $WORLD_SIZE as $(id -u) in $SHAPE; echo err $RANK >&2; wget -q -O- http://127.0.0.1:1 2>/dev/null; hostname`).must(t)
	for _, want := range []string{"[0] 0 of 3 as 0 in image\n", "[1] 1 of 3 as 0 in image\n", "[2] 2 of 3 as 0 in image\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("want %q: %s", want, r)
		}
	}
	if !strings.Contains(r.err, "[1] err 1\n") {
		t.Errorf("want stderr apart: %s", r)
	}
	r = l.inContainers("--nodes", "3", "--", "sh", "-c", `[ $RANK = 1 ] || exec sleep 1000; exit 7`)
	if r.code != 7 || !strings.Contains(r.err, "rank 1 on spark2: exit 7") {
		t.Errorf("an exit code: %s", r)
	}
	if r := l.inContainers("--nodes", "2", "--", "sh", "-c", `[ $RANK = 1 ] || exec sleep 1000; kill -SEGV $$`); r.code != 139 {
		t.Errorf("a signal of its own: %s", r)
	}
	if r := l.inContainers("--", "pyhton3"); r.code == 0 || !strings.Contains(r.err, `exec "pyhton3"`) {
		t.Errorf("a program that the image lacks: %s", r)
	}
	r = l.on("spark1", "sh", "-c", `seq 3 | sparkrun launch exec --image lab/busybox --on spark2,spark3 -- sh -c 'echo read $(cat)'`).must(t)
	if !strings.Contains(r.out, "[0] read 1 2 3\n") || !strings.Contains(r.out, "[1] read\n") {
		t.Errorf("standard input: %s", r)
	}
	r = l.inContainers("--on", "spark1", "--user", "eve", "--", "sh", "-c", `id -u; echo $HOME; echo x > $HOME/x && cat $HOME/x; cat /etc/shadow`)
	if r.code == 0 || !strings.HasPrefix(r.out, "[0] 4711\n[0] /home/eve\n[0] x\n") {
		t.Errorf("as another user: %s", r)
	}
	models := filepath.Join(scratch(t), "models")
	l.inContainers("--on", "spark1", "--user", "eve", "--model-cache", models, "--", "sh", "-c", `echo x > $HOME/.cache/huggingface/x`).must(t)
	if fi, err := os.Stat(models); err != nil || fi.Sys().(*syscall.Stat_t).Uid != 4711 || !exists(models+"/x") {
		t.Errorf("the user's models: %+v, %v", fi, err)
	}
	r = l.inContainers("--on", "spark1", "--user", "eve", "--env", "HF_HOME="+models, "--", "sh", "-c", `ls $HF_HOME`).must(t)
	if r.out != "[0] x\n" {
		t.Errorf("models by HF_HOME: %s", r)
	}

	// An agent that dies under a container finds it again; a stop reaches it, and those who mind no TERM.
	l.on("spark1", "sparkrun", "launch", "-d", "--name", "long", "exec", "--image", "lab/busybox", "--on", "spark2,spark3", "--grace", "1s", "--",
		"sh", "-c", `trap "" TERM; (trap "" TERM; setsid sleep 1000 &) ; echo up; while :; do sleep 1; done`).must(t)
	l.do("kill", "spark2", "--agent")
	l.do("start", "spark2", "--agent")
	eventually(t, time.Minute, "output of both", func() bool {
		return strings.Count(l.on("spark3", "sparkrun", "logs", "long").out, "up\n") == 2
	})
	if ps := l.on("spark3", "sparkrun", "ps", "long").must(t).out; !strings.Contains(ps, "in containers of lab/busybox") {
		t.Errorf("ps does not name the image:\n%s", ps)
	}
	r = l.on("spark1", "sh", "-c", `echo word | sparkrun exec -i long --rank 1 -- sh -c 'read w; echo $w $RANK $SHAPE $(cat /proc/1/comm); exit 6'`)
	if r.code != 6 || r.out != "word 1 image docker-init\n" {
		t.Errorf("exec: %s", r)
	}
	eventually(t, time.Minute, "the agent of spark2", func() bool {
		return l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "30s").code == 0
	})
	l.on("spark3", "sparkrun", "stop", "long").must(t)
	for _, h := range []string{"spark2", "spark3"} {
		if left := l.on(h, "sh", "-c", "docker ps -q; ps -eo args= | grep '[s]leep 1000'").out; left != "" {
			t.Errorf("after stop, on %s: %s", h, left)
		}
	}
}

// A sum over gloo between containers of two hosts, with this machine's torch; rank 1 fails in the second.
func testTorchInContainers(t *testing.T, l *lab) {
	script, err := filepath.Abs("testdata/allreduce.py")
	if err != nil {
		t.Fatal(err)
	}
	torchrun := func(args ...string) result {
		t.Helper()
		return l.on("spark1", append([]string{"sparkrun", "launch", "torchrun", "--image", "lab/bare", "--mount", "/usr:/usr:ro", "--mount", "/etc/alternatives:/etc/alternatives:ro",
			"--mount", filepath.Dir(script) + ":/work:ro", "--workdir", "/work", "--python", python}, args...)...)
	}
	r := torchrun("--on", "spark2,spark3", "--", "allreduce.py").must(t)
	if strings.Count(r.out, `"sum": 3.0`) != 2 || strings.Count(r.out, `"MASTER_ADDR": "192.168.100.12"`) != 2 {
		t.Errorf("want the sum of two workers, who meet on the fabric: %s", r)
	}
	if r := torchrun("--on", "spark2", "--", "nowhere.py"); r.code != 125 || !strings.Contains(r.err, "file /work/nowhere.py: not found here") {
		t.Errorf("a script that is not there: %s", r)
	}
	bad := filepath.Join(scratch(t), "failing.py")
	if err := os.WriteFile(bad, []byte(failing), 0o644); err != nil {
		t.Fatal(err)
	}
	r = torchrun("--on", "spark3", "--nproc-per-node", "2", "--mount", filepath.Dir(bad)+":/bad:ro", "--", "/bad/failing.py", "raise")
	if r.code != 1 || !strings.Contains(r.err, "RuntimeError: out of luck") {
		t.Errorf("a worker that fails: %s", r)
	}
}

// inspected are the fields by which a container could have more, or less, than is told.
var inspected = map[string][]string{
	"Config":     {"User", "Env", "Cmd", "Entrypoint", "Labels", "Healthcheck", "StopTimeout", "StopSignal", "WorkingDir", "Volumes", "ExposedPorts"},
	"HostConfig": {"Privileged", "AutoRemove", "NetworkMode", "IpcMode", "PidMode", "UTSMode", "UsernsMode", "CapAdd", "CapDrop", "SecurityOpt", "Devices", "DeviceRequests", "DeviceCgroupRules", "GroupAdd", "Init", "RestartPolicy", "LogConfig", "Mounts", "Binds", "Tmpfs", "Ulimits", "Memory", "PidsLimit", "ShmSize", "ReadonlyRootfs", "ExtraHosts", "PortBindings", "VolumesFrom", "Sysctls", "Runtime", "CpusetCpus"},
}

func testInspect(t *testing.T, l *lab) {
	const secret = "hf_abcdefgh"
	folder := scratch(t)
	if err := os.WriteFile(filepath.Join(folder, "token"), []byte(secret+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	l.on("spark1", "sparkrun", "launch", "-d", "--name", "seen", "exec", "--image", "lab/busybox", "--on", "spark1", "--user", "eve", "--secret", "HF_TOKEN="+folder+"/token", "--env", "WORD=w0rd",
		"--mount", "/usr/share:/data:ro", "--mount", folder+":/home/eve/deep/down", "--ulimit", "nofile=512:1024", "--", "sh", "-c",
		`echo $HF_TOKEN; cat $HF_TOKEN_FILE; ls -d /data/doc; touch $HOME/deep/x; exec sleep 1000`).must(t)
	eventually(t, time.Minute, "its output", func() bool {
		return l.on("spark1", "sparkrun", "logs", "--output", "raw", "seen").out == secret+"\n"+secret+"\n/data/doc\n"
	})
	text := l.on("spark1", "sh", "-c", `docker inspect $(docker ps -q)`).must(t).out
	if strings.Contains(text, secret) || strings.Contains(text, "w0rd") {
		t.Errorf("docker inspect shows what is the rank's alone:\n%s", text)
	}
	var raw []map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil || len(raw) != 1 {
		t.Fatalf("%v in\n%s", err, text)
	}
	got := map[string]map[string]any{}
	for part, fields := range inspected {
		var m map[string]any
		if err := json.Unmarshal(raw[0][part], &m); err != nil {
			t.Fatal(err)
		}
		if part == "HostConfig" {
			m["Ulimits"] = withoutMemlock(t, m["Ulimits"])
		}
		got[part] = map[string]any{}
		for _, f := range fields {
			got[part][f] = m[f]
		}
	}
	b, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	plain := string(b) + "\n"
	for _, x := range []struct{ of, to string }{
		{regexp.QuoteMeta(folder), "FOLDER"}, {"/var/tmp/sparkrun-lab/[^/]+/", "LAB/"}, {`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`, "UUID"},
		{`[a-z0-9]{10}\.1/[0-9a-f]{16}`, "JOB.1/MARK"}, {`[a-z0-9]{10}\.1\b`, "JOB.1"}, {`"com.sparkrun.job": "[a-z0-9]+"`, `"com.sparkrun.job": "JOB"`},
	} {
		plain = regexp.MustCompile(x.of).ReplaceAllString(plain, x.to)
	}
	const golden = "testdata/inspect.json"
	if *updateInspect {
		if err := os.WriteFile(golden, []byte(plain), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), plain); d != "" {
		t.Errorf("docker inspect (-want +got):\n%s", d)
	}
	l.on("spark1", "sparkrun", "stop", "seen").must(t)
}

// withoutMemlock takes it out of a container's limits, where it is unlimited exactly if this machine's agents may raise it.
func withoutMemlock(t *testing.T, limits any) any {
	t.Helper()
	all, _ := limits.([]any)
	kept := slices.DeleteFunc(slices.Clone(all), func(u any) bool {
		return cmp.Equal(u, any(map[string]any{"Name": "memlock", "Hard": -1.0, "Soft": -1.0}))
	})
	may := shim.MayLimit([]launcher.Ulimit{{Name: "memlock", Soft: launcher.Unlimited, Hard: launcher.Unlimited}}) == nil
	if has := len(kept) < len(all); has != may {
		t.Errorf("memlock unlimited: %t, and an agent may raise it: %t: %v", has, may, all)
	}
	return kept
}

// What cannot be started is told with the machine and a remedy, and nothing is begun anywhere.
func testContainersRefused(t *testing.T, l *lab) {
	says := func(what string, r result, words ...string) {
		t.Helper()
		for _, w := range words {
			if r.code != 125 || !strings.Contains(r.err, w) {
				t.Errorf("%s: want exit 125 and %q: %s", what, w, r)
			}
		}
	}
	l.on("spark2", "docker", "tag", "lab/busybox", "only/here").must(t)
	says("an image that one machine has", l.on("spark1", "sparkrun", "launch", "exec", "--image", "only/here", "--pull", "never", "--nodes", "3", "--", "true"),
		"spark1, spark3: image only/here is not on this node", "docker pull", "no rank was started")
	says("an image that nobody has", l.on("spark1", "sparkrun", "launch", "exec", "--image", "127.0.0.1:1/none", "--on", "spark2", "--", "true"), "spark2", "pull image 127.0.0.1:1/none")
	l.on("spark3", "sh", "-c", `c=$(docker create only/here true 2>/dev/null || docker create lab/busybox true); docker commit -c 'ENV X=1' $c only/here; docker rm $c; docker tag only/here two/faced`).must(t)
	l.on("spark2", "docker", "tag", "lab/busybox", "two/faced").must(t)
	says("a tag that was moved on one machine", l.on("spark1", "sparkrun", "launch", "exec", "--image", "two/faced", "--on", "spark2,spark3", "--", "true"),
		"different images under the name two/faced", "spark2 has ", "spark3 has ", "--pull always", "no rank was started")
	if r := l.on("spark1", "sparkrun", "launch", "exec", "--image", "two/faced", "--on", "spark2,spark3", "--dry-run", "--", "true"); r.code != 125 || !strings.Contains(r.err, "would be refused: the machines have different images under the name two/faced") {
		t.Errorf("the same, in a dry run: %s", r)
	}
	says("a source that is not there", l.inContainers("--on", "spark2", "--mount", "/nowhere", "--", "true"), "spark2: --mount /nowhere: not found here")
	l.on("spark2", "sh", "-c", "mkdir -m 700 -p /tmp/closed/in").must(t)
	says("a source that its user may not reach", l.inContainers("--on", "spark2", "--user", "eve", "--mount", "/tmp/closed/in:/x", "--", "true"), "--mount /tmp/closed/in:/x", "permission denied for user eve")
	says("more than its user has", l.inContainers("--on", "spark2", "--user", "eve", "--docker-arg=--cap-add=SYS_PTRACE", "--", "true"), "--docker-arg --cap-add gives a container on spark2 more than eve has")
	l.inContainers("--on", "spark2", "--docker-arg=--cap-add=SYS_PTRACE", "--", "true").must(t)

	l.on("spark2", "sh", "-c", `umask 022; mkdir -p /etc/sparkrun; printf 'containers: {users: [root]}\nimages: [nvcr.io/, lab/busybox]\nmounts: [/models]\n' > /etc/sparkrun/policy.yaml`).must(t)
	says("an image that a machine's rules do not name", l.on("spark1", "sparkrun", "launch", "exec", "--image", "two/faced", "--on", "spark2", "--", "true"), "image two/faced may not be launched on spark2: rule images, line 2")
	says("a folder that they do not name", l.inContainers("--on", "spark2", "--mount", "/usr", "--", "true"), "/usr may not be mounted on spark2: rule mounts, line 3")
	l.inContainers("--on", "spark2", "--", "true").must(t)
	says("somebody whom they do not let have containers", l.inContainers("--on", "spark2", "--user", "eve", "--", "true"), "eve may not run containers on spark2: rule containers, line 1")
	l.on("spark2", "rm", "/etc/sparkrun/policy.yaml").must(t)
	says("somebody, without rules", l.inContainers("--on", "spark2", "--user", "eve", "--", "true"), "eve may not run containers on spark2: only root may")

	r := l.inContainers("--dry-run", "--nodes", "2", "--mount", "/usr:/u:ro", "--", "true").must(t)
	for _, want := range []string{"docker run --name sparkrun-", "--network host", "--mount type=bind,src=/usr,dst=/u,readonly", "--security-opt no-new-privileges"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("a dry run: want %q: %s", want, r)
		}
	}
}

// A program whose container somebody ends by the engine has not ended by itself.
func testKilledByTheEngine(t *testing.T, l *lab) {
	run := l.start("spark1", "sparkrun", "launch", "exec", "--name", "taken", "--image", "lab/busybox", "--on", "spark1,spark2", "--", "sleep", "1000")
	eventually(t, time.Minute, "it runs", func() bool { return l.jobs("spark1")["taken"].State == "running" })
	l.on("spark2", "sh", "-c", "docker kill $(docker ps -q --filter label=com.sparkrun.job)").must(t)
	if r := run.wait(); r.code != 137 || !strings.Contains(r.err, "rank 1 on spark2: killed by SIGKILL (9): its container was ended from outside: by docker kill") {
		t.Errorf("a container that was killed: %s", r)
	}
	run = l.start("spark1", "sparkrun", "launch", "exec", "--name", "stopped", "--image", "lab/busybox", "--on", "spark1,spark2", "--", "sleep", "1000")
	eventually(t, time.Minute, "it runs", func() bool { return l.jobs("spark1")["stopped"].State == "running" })
	l.on("spark2", "sh", "-c", "docker stop $(docker ps -q --filter label=com.sparkrun.job)").must(t)
	if r := run.wait(); r.code != 143 || !strings.Contains(r.err, "rank 1 on spark2: killed by SIGTERM (15): its container was ended from outside: by docker kill, docker stop") {
		t.Errorf("a container that was stopped: %s", r)
	}
}

// An image whose loader does not know libibverbs is told of where there are RDMA devices, which here are files alone.
func testNoVerbs(t *testing.T, l *lab) {
	if err := os.Mkdir("/dev/infiniband", 0o755); err == nil {
		defer os.Remove("/dev/infiniband") // the machine's, in which each host mounts its own
	}
	root := scratch(t)
	if out, err := exec.Command("sh", "-c", "mkdir "+root+"/etc; : > "+root+"/etc/ld.so.conf; ldconfig -r "+root).CombinedOutput(); err != nil {
		t.Fatalf("a loader's cache: %v\n%s", err, out)
	}
	l.on("spark2", "sh", "-c", "c=$(docker create lab/busybox true); docker cp "+root+"/etc/ld.so.cache $c:/etc/ld.so.cache; docker commit $c lab/glibc; docker rm $c; docker save lab/glibc > "+root+"/image").must(t)
	l.on("spark3", "sh", "-c", "docker load < "+root+"/image").must(t)
	hosts := []string{"spark2", "spark3"}
	for _, h := range hosts {
		l.on(h, "sh", "-c", "mount -t tmpfs tmpfs /dev/infiniband && mknod /dev/infiniband/uverbs0 c 231 192").must(t)
		defer l.on(h, "umount", "/dev/infiniband")
	}
	r := l.on("spark1", "sparkrun", "launch", "exec", "--image", "lab/glibc", "--on", "spark2,spark3", "--ulimit", "memlock=65536", "--", "ls", "/dev/infiniband").must(t) // no more than a lab's engine may give
	if want := "image lab/glibc has no libibverbs.so.1"; !strings.Contains(r.err, "warning: spark2: "+want) || !strings.Contains(r.err, "rdma-core") {
		t.Errorf("want %q: %s", want, r)
	}
	if strings.Count(r.out, "uverbs0") != 2 {
		t.Errorf("RDMA devices: %s", r)
	}
	if r := l.on("spark1", "sparkrun", "launch", "exec", "--image", "lab/glibc", "--on", "spark2", "--", "true").must(t); strings.Contains(r.err, "libibverbs") {
		t.Errorf("on a single machine: %s", r)
	}
	for _, h := range hosts {
		if left := l.on(h, "docker", "ps", "-aq").out; left != "" {
			t.Errorf("looking left on %s: %s", h, left)
		}
	}
}

// Row 10: with live-restore the ranks outlive the end of their engine; without it their failure is seen
// in time, and told as what it is.
func testEngineRestarts(t *testing.T, l *lab) {
	launch := func(name, host string) *running {
		run := l.start("spark1", "sparkrun", "launch", "exec", "--name", name, "--image", "lab/busybox", "--on", host, "--", "sh", "-c", `trap "exit 9" USR1; while [ ! -e /go/on ]; do sleep 0.1; done`)
		eventually(t, time.Minute, name+" runs", func() bool { return l.jobs("spark1")[name].State == "running" })
		return run
	}
	lives, dies := launch("lives", "spark2"), launch("dies", "spark3")
	l.do("engine", "--stop", "spark2")
	began := time.Now()
	l.do("engine", "--stop", "spark3")
	r := dies.wait()
	t.Logf("an engine without live-restore: its launch returned %s after the stop began", time.Since(began).Round(10*time.Millisecond))
	if r.code == 0 {
		t.Errorf("a container that its engine ended: %s", r)
	}
	if s := l.jobs("spark1")["lives"].State; s != "running" {
		t.Errorf("with live-restore the job is %s, want running", s)
	}
	l.do("engine", "--live-restore", "spark2")
	l.do("engine", "spark3")
	if s := l.jobs("spark1")["lives"].State; s != "running" {
		t.Errorf("with live-restore the job is %s once the engine is back, want running", s)
	}
	l.on("spark1", "sparkrun", "stop", "lives").must(t)
	lives.wait()
}

func testEngineStopped(t *testing.T, l *lab) {
	l.do("engine", "--stop", "spark3")
	r := l.inContainers("--nodes", "3", "--", "true")
	if r.code != 125 || !strings.Contains(r.err, "spark3: open engine /var/run/docker.sock: no container engine answers") || !strings.Contains(r.err, "systemctl start docker") || !strings.Contains(r.err, "no rank was started") {
		t.Errorf("an engine that is off: %s", r)
	}
	l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "3", "--", "true").must(t) // which needs none
	l.do("engine", "spark3")
}

// A container whose shim and folder are gone is removed once the record says that its try is over, and
// not before; nobody's else is touched.
func testSwept(t *testing.T, l *lab) {
	l.on("spark3", "docker", "run", "-d", "--network", "none", "--name", "mine", "lab/busybox", "sleep", "1000").must(t)
	defer l.on("spark3", "docker", "rm", "-f", "mine")
	run := l.start("spark1", "sparkrun", "launch", "exec", "--name", "left", "--image", "lab/busybox", "--on", "spark3", "--", "sleep", "1000")
	eventually(t, time.Minute, "it runs", func() bool { return l.jobs("spark1")["left"].State == "running" })
	box := strings.TrimSpace(l.on("spark3", "sh", "-c", "docker ps -q --filter label=com.sparkrun.job").must(t).out)
	labels := l.on("spark3", "docker", "inspect", "-f", `{{range $k, $v := .Config.Labels}}--label {{$k}}={{$v}} {{end}}`, box).must(t).out
	twin := append(append([]string{"docker", "run", "-d", "--network", "none", "--name", "twin"}, strings.Fields(labels)...), "lab/busybox", "sleep", "1000")
	l.on("spark3", twin...).must(t)
	l.do("kill", "spark3", "--agent")
	l.do("start", "spark3", "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "60s").must(t)
	l.on("spark3", "docker", "inspect", "twin", box).must(t) // the try is in the ledger
	l.on("spark1", "sparkrun", "stop", "left").must(t)
	run.wait()
	eventually(t, time.Minute, "the twin is swept", func() bool { return l.on("spark3", "docker", "inspect", "twin").code != 0 })
	l.on("spark3", "docker", "inspect", "mine").must(t)
}
