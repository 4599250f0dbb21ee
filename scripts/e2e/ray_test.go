package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var rayAll = flag.Bool("ray", false, "TestRayAlone and TestRayInContainers: Ray's dashboard and its jobs, and Ray in containers, beside what CI runs")

// rayWait is patience: Ray's processes import a lot of Python, on three hosts that share
// this machine's processors.
const rayWait = 10 * time.Minute

// rayLab is a lab with a Ray to launch, and a folder that all of its hosts have.
type rayLab struct {
	*lab
	program, folder string
}

func upRay(t *testing.T, nodes int) rayLab {
	t.Helper()
	program, err := filepath.Abs("../../.build/ray/bin/ray")
	if err == nil {
		_, err = os.Stat(program)
	}
	if err != nil {
		t.Fatalf("%v: ./scripts/ray puts Ray there", err)
	}
	return rayLab{up(t, nodes), program, scratch(t)}
}

// launch begins a job whose story goes to a file, for said.
func (l rayLab) launch(args ...string) *running { return l.launchFrom("spark2", args...) }

func (l rayLab) launchFrom(host string, args ...string) *running {
	l.t.Helper()
	return l.start(host, append([]string{"sh", "-c", `exec "$@" 2>"$0"`, filepath.Join(l.folder, "said"), "sparkrun", "launch", "ray"}, args...)...)
}

func (l rayLab) said() string { return l.read("said") }

func (l rayLab) read(name string) string {
	b, _ := os.ReadFile(filepath.Join(l.folder, name))
	return string(b)
}

func (l rayLab) write(name string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.folder, name), nil, 0o644); err != nil {
		l.t.Fatal(err)
	}
}

// hears waits until launch has said so.
func (l rayLab) hears(words string) {
	l.t.Helper()
	ended := false
	eventually(l.t, rayWait, "told: "+words, func() bool {
		ended = strings.Contains(l.said(), "job was ended")
		return ended || strings.Contains(l.said(), words)
	})
	if ended && !strings.Contains(l.said(), words) {
		l.t.Fatalf("not told %q: %s", words, l.said())
	}
}

// nothingOfRay wants no process, port, memory, folder or group of it to be left.
func (l rayLab) nothingOfRay(hosts ...string) {
	l.t.Helper()
	l.assertNothingLeft(hosts...)
	for _, host := range hosts {
		for line := range strings.Lines(l.on(host, "ss", "-Hltnp").must(l.t).out) {
			if !strings.Contains(line, "sparkrun") && !strings.Contains(line, "dockerd") {
				l.t.Errorf("%s still listens: %s", host, line)
			}
		}
		if out := l.on(host, "ls", "/dev/shm").must(l.t).out; strings.Contains(out, "plasma") || strings.Contains(out, "ray") {
			l.t.Errorf("shared memory left on %s: %s", host, out)
		}
	}
}

// A real Ray cluster comes up in stages on the fabric's addresses, with a token that nobody
// sees, and runs a task on each host. A worker that dies comes again while the command runs; one
// whose machine dies is told, and all goes on.
func TestRay(t *testing.T) {
	l := upRay(t, 3)
	script, err := filepath.Abs("testdata/onray.py")
	if err != nil {
		t.Fatal(err)
	}
	// Further tries are for a machine so busy that Ray's own start takes longer than the 30 s that it allows.
	r := l.launch("--on", "spark1,spark2,spark3", "--max-restarts", "5", "--ray", l.program, "--ray-arg=--num-cpus=1", "--ray-head-arg=--include-dashboard=false", "--name", "cluster", "--",
		filepath.Join(filepath.Dir(l.program), "python3"), script, l.folder)
	defer r.cmd.Process.Kill()
	token := ""
	eventually(t, rayWait, "a task on each host", func() bool {
		token = l.read("token")
		return len(token) == 64 || strings.Contains(l.said(), "job was ended")
	})
	if len(token) != 64 {
		t.Fatalf("token of %d letters: %s", len(token), l.said())
	}
	for _, host := range []string{"spark1", "spark2", "spark3"} {
		if args := l.on(host, "ps", "-eo", "args").must(t).out; strings.Contains(args, token) || !strings.Contains(args, "ray start") {
			t.Errorf("the arguments on %s have the token, or no Ray:\n%s", host, args)
		}
	}
	if out := l.on("spark3", "sparkrun", "ps", "cluster").must(t).out; !strings.Contains(out, "spark1: rank 0 (ray-head), rank 1 (command)") || !strings.Contains(out, "spark3: rank 3 (ray-workers)") {
		t.Errorf("ps names no stages:\n%s", out)
	}
	l.on("spark2", "sh", "-c", `kill -KILL $(ps -eo pid=,args= | awk '/[r]ay start/ {print $1}')`).must(t)
	l.hears("stage ray-workers, rank 2 on spark2: killed by SIGKILL (9); the job goes on, and it starts again in 1s (")
	l.hears("stage ray-workers, rank 2 on spark2 runs again (")
	l.do("kill", "spark3")
	l.hears("stage ray-workers, spark3 does not answer; the job goes on")
	l.write("go")
	end := r.wait()
	if end.code != 0 {
		t.Errorf("want the command's code 0, though a machine is lost: %s, %s", end, l.said())
	}
	_, line, _ := strings.Cut(end.out, "{")
	var got struct {
		Seen                map[string]string
		Address, Mode, Rank string
		Again               bool
	}
	if err := json.Unmarshal([]byte("{"+line), &got); err != nil {
		t.Fatalf("%v: %s", err, end)
	}
	if d := cmp.Diff(map[string]string{"192.168.100.11": "spark1", "192.168.100.12": "spark2", "192.168.100.13": "spark3"}, got.Seen); d != "" {
		t.Error(d)
	}
	if !strings.HasPrefix(got.Address, "192.168.100.11:2") || got.Mode != "token" || got.Rank != "" {
		t.Errorf("the command's variables: %+v", got)
	}
	if !got.Again {
		t.Error("no task ran on the worker that came again")
	}
	for _, want := range []string{"stage ray-head is ready", "stage ray-workers is ready"} {
		if !strings.Contains(l.said(), want) {
			t.Errorf("not told %q: %s", want, l.said())
		}
	}
	l.nothingOfRay("spark1", "spark2")
}

// A cluster by itself, with its dashboard on loopback: jobs are submitted with the address that
// launch prints, and by whoever has the token; a machine that comes back takes part again, and a stop leaves nothing.
func TestRayAlone(t *testing.T) {
	if !*rayAll {
		return
	}
	l := upRay(t, 3)
	r := l.launch("--on", "spark1,spark2,spark3", "--max-restarts", "5", "--ray", l.program, "--ray-arg=--num-cpus=1", "--port", "6399", "--dashboard-port", "8299", "--name", "cluster")
	defer r.cmd.Process.Kill()
	l.hears("submit with: sparkrun exec cluster -- " + l.program + " job submit")
	address := regexp.MustCompile(`RAY_ADDRESS=(\S+)`).FindStringSubmatch(l.said())
	if address == nil || address[1] != "192.168.100.11:6399" {
		t.Fatalf("want the address with the port that was asked for: %s", l.said())
	}
	if out := l.on("spark1", "ss", "-Hltn", "sport = :8299").must(t).out; !strings.Contains(out, "127.0.0.1:8299") || strings.Contains(out, "0.0.0.0:8299") {
		t.Errorf("want the dashboard on loopback, at the port that was asked for: %s", out)
	}
	submit := func(args ...string) result {
		return l.on("spark1", append([]string{"sparkrun", "exec", "cluster", "--"}, args...)...)
	}
	job := []string{l.program, "job", "submit", "--", filepath.Join(filepath.Dir(l.program), "python3"), "-c", "import ray; ray.init(); print('sees', len([n for n in ray.nodes() if n['Alive']]))"}
	if out := submit(job...).must(t); !strings.Contains(out.out+out.err, "sees 3") {
		t.Errorf("a job by the dashboard's address: %s", out)
	}
	if out := submit(append([]string{"env", "-u", "RAY_API_SERVER_ADDRESS", "RAY_ADDRESS=" + address[1]}, job...)...).must(t); !strings.Contains(out.out+out.err, "sees 3") {
		t.Errorf("a job with the RAY_ADDRESS that was printed: %s", out)
	}
	if out := l.on("spark1", append([]string{"env", "RAY_ADDRESS=" + address[1]}, job...)...); out.code == 0 {
		t.Errorf("a job of somebody who has no token: %s", out)
	}
	if out := l.on("spark1", "sh", "-c", "ss -Hltnp | grep -c '^LISTEN.*0.0.0.0:.*python'").out; strings.TrimSpace(out) != "0" {
		t.Logf("listeners on all addresses:\n%s", l.on("spark1", "ss", "-Hltnp").out)
	}
	l.do("kill", "spark3")
	l.hears("stage ray-workers, spark3 does not answer")
	l.do("start", "spark3")
	l.hears("stage ray-workers, spark3 was rebooted and takes part again (")
	eventually(t, rayWait, "three nodes", func() bool {
		return strings.Contains(submit(job...).out, "sees 3")
	})
	l.on("spark3", "sparkrun", "stop", "cluster").must(t)
	if end := r.wait(); end.code != 143 {
		t.Errorf("want the code of a job that was stopped: %s", end)
	}
	l.nothingOfRay("spark1", "spark2", "spark3")
}

// Ray in containers of real engines: head, workers and command, which finds the head's sockets. A cluster by
// itself says how to submit there, and a machine that was booted anew, whose engine still has the container of
// the boot before, takes part again.
func TestRayInContainers(t *testing.T) {
	if !*rayAll {
		return
	}
	l := upRay(t, 2)
	l.do("engine", "spark1", "spark2")
	script, err := filepath.Abs("testdata/onray.py")
	if err != nil {
		t.Fatal(err)
	}
	venv := filepath.Dir(filepath.Dir(l.program))
	inContainers := []string{"--on", "spark1,spark2", "--max-restarts", "5", "--image", "lab/bare", "--mount", "/usr:/usr:ro", "--mount", "/etc/alternatives:/etc/alternatives:ro", "--mount", venv + ":" + venv + ":ro",
		"--mount", filepath.Dir(script) + ":/onray:ro", "--mount", l.folder, "--ray", l.program, "--ray-arg=--num-cpus=1"}
	r := l.launch(append(inContainers, "--name", "cluster", "--ray-head-arg=--include-dashboard=false", "--", venv+"/bin/python3", "/onray/onray.py", l.folder, "2")...)
	defer r.cmd.Process.Kill()
	token := ""
	eventually(t, rayWait, "a task on each host", func() bool {
		token = l.read("token")
		return len(token) == 64 || strings.Contains(l.said(), "job was ended")
	})
	if len(token) != 64 {
		t.Fatalf("token of %d letters: %s", len(token), l.said())
	}
	for _, host := range []string{"spark1", "spark2"} {
		if text := l.on(host, "sh", "-c", "docker inspect $(docker ps -q); ps -eo args").must(t).out; strings.Contains(text, token) || !strings.Contains(text, "com.sparkrun.job") {
			t.Errorf("docker inspect or arguments on %s have the token, or there is no container:\n%s", host, text)
		}
	}
	if out := l.on("spark2", "sparkrun", "exec", "cluster", "--", l.program, "status").must(t).out; strings.Count(out, " 1 node_") != 2 {
		t.Errorf("ray status in the head's container: %s", out)
	}
	l.on("spark2", "sh", "-c", `docker kill $(docker ps -q)`).must(t)
	l.hears("runs again (")
	l.write("go")
	if end := r.wait(); end.code != 0 || !strings.Contains(end.out, `"again": true`) {
		t.Errorf("want the command's code 0, and a task on the worker that came again: %s, %s", end, l.said())
	}
	l.noContainerLeft("spark1", "spark2")

	r = l.launchFrom("spark1", append(inContainers, "--name", "alone")...) // whose machine stays
	defer r.cmd.Process.Kill()
	l.hears("submit with: sparkrun exec alone -- " + l.program + " job submit")
	seesTwo := func() bool {
		r := l.on("spark2", "sparkrun", "exec", "alone", "--", l.program, "job", "submit", "--", venv+"/bin/python3", "-c", "import ray; ray.init(); print('sees', len([n for n in ray.nodes() if n['Alive']]))")
		return r.code == 0 && strings.Contains(r.out, "sees 2")
	}
	if !seesTwo() {
		t.Errorf("a job that is submitted as launch says: %s", l.on("spark2", "sparkrun", "exec", "alone", "--", l.program, "status"))
	}
	l.do("kill", "spark2")
	l.hears("stage ray-workers, spark2 does not answer")
	l.do("start", "spark2")
	l.do("engine", "spark2")
	l.hears("stage ray-workers, spark2 was rebooted and takes part again (")
	eventually(t, rayWait, "two nodes, one of them started anew", seesTwo)
	if strings.Contains(l.said(), "starts again in") {
		t.Errorf("a try was lost: %s", l.said())
	}
	l.on("spark2", "sparkrun", "stop", "alone").must(t)
	r.wait()
	l.noContainerLeft("spark1", "spark2")
	l.nothingOfRay("spark1", "spark2")
}
