package e2e

import (
	"fmt"
	"time"
)

// asks has the agent of a host say each second what all machines use, from one process over one connection.
const asks = `import http.client, socket, time
class Agent(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/run/sparkrun/agent.sock")
agent = Agent("sparkrun")
while True:
    agent.request("GET", "/v1/usage")
    agent.getresponse().read()
    time.sleep(1)`

// facts measures what it costs to know what a machine uses. What nvidia-smi takes is the stand-in's here: a real one
// took 0.2 % of a core for the GPUs and 0.05 % for their processes (H200, driver 580.159, -lms 1000, 20 s).
func (b *bench) facts() {
	const hosts, window = 2, time.Minute
	l := up(b.t, hosts, "--gpu")
	leader := l.leader("spark1")
	looked := other(hosts, leader)[0]
	agent := l.find(looked, "sparkrun agent", "")[0]
	spend := func() float64 {
		was := usedBy(agent).cpu
		time.Sleep(window)
		return (usedBy(agent).cpu - was) * 100 / window.Seconds()
	}
	whole := figure{Group: "agent", Unit: "% of a core"}
	more := figure{Group: "of it for facts", Unit: "% of a core"}
	child := figure{Group: "nvidia-smi (stand-in), its start left out", Unit: "% of a core"}
	tell := func(name string, rest float64) float64 {
		used := spend()
		whole.Name, whole.Samples = name, []float64{used}
		b.tell(whole)
		if rest > 0 {
			more.Name, more.Samples = name, []float64{max(used-rest, 0)}
			b.tell(more)
		}
		return used
	}
	time.Sleep(10 * time.Second) // what came before has been forgotten
	rest := tell("nobody looks", 0)
	look := func() (end func()) {
		asking := l.start(leader, python, "-I", "-S", "-c", asks)
		time.Sleep(3 * time.Second)
		return func() { _ = asking.cmd.Process.Kill(); _ = asking.cmd.Wait() }
	}
	end := look()
	looks := tell("somebody looks each second", rest)
	smi, was := l.find(looked, "nvidia-smi --query", ""), 0.0
	for _, pid := range smi {
		was += usedBy(pid).cpu
	}
	time.Sleep(window / 4)
	child.Name, child.Samples = fmt.Sprintf("%d children", len(smi)), []float64{-was * 400 / window.Seconds()}
	for _, pid := range smi {
		child.Samples[0] += usedBy(pid).cpu * 400 / window.Seconds()
	}
	b.tell(child)
	end()
	more.Name, more.Samples = "nobody looks: one reading a minute", []float64{max(looks-rest, 0) / 60}
	b.tell(more)

	l.on(leader, "sparkrun", "launch", "exec", "-d", "--name", "sleeps", "--nodes", "2", "--nproc-per-node", "8", "--", "sleep", "inf").must(b.t)
	eventually(b.t, time.Minute, "the ranks run", func() bool { return l.jobs(leader)["sleeps"].State == "running" })
	time.Sleep(5 * time.Second)
	tell("8 ranks on the host, nobody looks", rest)
	end = look()
	tell("8 ranks on the host, somebody looks each second", rest)
	end()
	l.on(leader, "sparkrun", "stop", "sleeps").must(b.t)
}
