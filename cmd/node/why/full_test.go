package why

import (
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

const noRoom = "rank 1 on spark2: exit 1: OSError: [Errno 28] No space left on device: '/data/cache/shard-"

// fills is a job whose attempts end as a file system of spark2 can have no more files; of each the file is another one.
func fills(e *Evidence) {
	loops(e)
	e.Job.Last.Cause = noRoom + "12.pt'"
	for i := range e.Job.Attempts {
		e.Job.Attempts[i].Cause = noRoom + "7.pt'"
	}
	e.Looks = []wire.NodeLook{{Host: "spark2", Machine: usage.Machine{Disks: []usage.Disk{{Mount: "/data", Total: 1 << 40,
		Free: 1 << 39, Inodes: new(uint64(300)), InodesFree: new(uint64(0))}}}}}
}

// opensNoMore is a service of which rank 0 has as many files open as it may.
func opensNoMore(e *Evidence) {
	e.Job.Spec.Service = &launcher.Service{}
	e.Job.Service = &launcher.ServiceSeen{State: launcher.ServiceUnhealthy, Text: "GET /health: no answer within 10s",
		Since: now.Add(-time.Minute)}
	e.Looks[0].Ranks[0].Full = &wire.FullFiles{PID: 100, Name: "vllm", Open: 64, Sockets: 60, Limit: 64}
}

// childLocked is a rank whose child has waited for its own lock for a minute, and for which others wait.
func childLocked(e *Evidence) {
	each(e, -1, idles("lock"))
	e.Looks[1].Ranks[0].Stuck = &wire.BusyProgram{PID: 93, Name: "pt_data_worker"}
	goOn(e, 1)
}

// filtered is a machine to which others cannot connect, though a rank listens there.
func filtered(e *Evidence) {
	each(e, -1, idles("network"))
	at := netip.MustParseAddrPort("10.0.0.1:4711")
	e.Looks[0].Ranks[0].Listens = []netip.AddrPort{at}
	for i := range e.Looks {
		r := &e.Looks[i].Ranks[0]
		if r.Conns, r.Port = nil, 4711; i > 0 {
			r.Conns = []wire.Conn{{Local: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 999), Remote: at,
				Connects: true, Tries: 5}}
		}
	}
}

// ill is a service whose main thread reads from a client, while another one waits to be taken.
func ill(e *Evidence) {
	opensNoMore(e)
	r := &e.Looks[0].Ranks[0]
	idles("network")(r)
	r.Full, r.Backlog = nil, 6
	r.Awaits = []wire.Await{{Remote: netip.MustParseAddrPort("10.0.0.3:54610"), Main: true, Client: true, Idle: 2 * time.Minute,
		Who: "python3, pid 7 on spark3"}}
}

// reads has rank 1 wait for a file, and the others for it, for a minute.
func reads(e *Evidence) {
	each(e, -1, idles("lock"))
	r := &e.Looks[1].Ranks[0]
	r.Main.In, r.Main.At = "", "request_wait_answer"
	r.Hang = &wire.FileWait{PID: 219, Name: "python3", File: "/tmp/nas/x", Type: "fuse.sshfs", Mount: "/tmp/nas"}
	goOn(e, 1)
}

// questions has rank 1 wait for its standard input, or for a program that it has started.
func questions(in, under string) func(*Evidence) {
	return func(e *Evidence) {
		each(e, -1, idles("lock"))
		r := &e.Looks[1].Ranks[0]
		idles(in)(r)
		r.Under, r.Name = under, "upload"
		goOn(e, 1)
	}
}

// left is a job that has failed as a rank had ended with 0, and others lost their connection to it.
func left(e *Evidence) {
	e.Job.Outcome = &rendezvous.Outcome{End: rendezvous.Failed, Cause: "rank 0 on spark1: exit 1: Connection closed by peer",
		Root:  &launcher.RankExit{Rank: 0, Host: "spark1", Exit: launcher.Exit{Code: 1, LostPeer: true}},
		Exits: []launcher.RankExit{{Rank: 2, Host: "spark3"}}}
}

// silentFor is a job whose ranks have worked for a short while, and have sent each other nothing for some time.
func silentFor(idle time.Duration, change func(*wire.RankLook)) func(*Evidence) {
	return func(e *Evidence) {
		each(e, -1, func(r *wire.RankLook) {
			idles("lock")(r)
			for i := range r.Conns {
				r.Conns[i].Idle, r.Conns[i].Total = idle, 900
			}
			change(r)
		})
		for i := range e.Looks {
			e.Looks[i].Machine.GPUs = nil
		}
		goOn(e, 2)
	}
}

var fullRows = map[string]rankRow{
	"a service reads from a client that sends nothing": {ill, "serves-one:0:spark1"},
	"its client is served well": {func(e *Evidence) {
		ill(e)
		e.Job.Service.State = launcher.ServiceReady
	}, ""},
	"a file server does not answer":        {reads, "file-silent:1:spark2"},
	"a rank waits for its input":           {questions("input", ""), "waits-for-rank:1:spark2"},
	"a rank waits for what it has started": {questions("sleep", "python3"), "waits-for-rank:1:spark2"},
	"a rank had ended with 0":              {left, "ended:2:spark3"},
	"nothing has gone for minutes":         {silentFor(3*time.Minute, func(*wire.RankLook) {}), "fell-silent::"},
	"nothing has gone for a minute":        {silentFor(90*time.Second, func(*wire.RankLook) {}), ""},
	"nothing has gone, as nobody wanted any": {silentFor(3*time.Minute, func(r *wire.RankLook) {
		r.Listens = []netip.AddrPort{netip.MustParseAddrPort("0.0.0.0:8000")}
	}), ""},
	"a machine waits for others": {func(e *Evidence) {
		begins("is prepared, and waits until all machines of the job are", time.Hour, false)(e)
		e.Looks[1].Starts[0].Still = time.Hour
	}, ""},
	"an image is pulled, and nothing comes": {func(e *Evidence) {
		begins("pulls llm:7", 3*time.Minute, false)(e)
		e.Looks[1].Starts[0].Still = 3 * time.Minute
	}, "start-stalls::spark2"},
	"a file system can have no more files": {fills, "again:1:spark2"},
	"of another machine": {func(e *Evidence) {
		fills(e)
		e.Looks[0].Host = "spark3"
	}, "again:1:spark2 inodes-full::spark3"},
	"a service can open no more files": {opensNoMore, "files-full:0:spark1"},
	"a child is locked up":             {childLocked, "child-locked:1:spark2"},
	"a child is locked up, and its rank works": {func(e *Evidence) {
		childLocked(e)
		e.Looks[1].Ranks[0].CPU = 0.7
	}, ""},
	"a packet filter": {filtered, "no-answer::spark1"},
}

func TestRemedies(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Evidence)
		want   string
	}{
		"a file system can have no more files": {fills, "df -i /data   # on spark2"},
		"a packet filter":                      {filtered, "nft list ruleset   # on spark1"},
		"a way that loses all, and has gone well": {func(e *Evidence) {
			filtered(e)
			e.Looks[2].Ranks[0].Conns[0].MinRTT = time.Millisecond
		}, "sparkrun doctor --node spark1"},
	} {
		e := running()
		tt.change(&e)
		if found := Rank(e); len(found) == 0 || found[0].Remedy != tt.want {
			t.Errorf("%s: %+v, want %q", name, found, tt.want)
		}
	}
}

// Where a cause says that there was no room for a file, that file system is looked at, on the machine of that rank.
func TestFullFileSystemIsLookedAt(t *testing.T) {
	e := running()
	fills(&e)
	if d := cmp.Diff([]string{"/data/cache"}, e.filled()); d != "" {
		t.Error(d)
	}
	for _, n := range e.Nodes {
		if got := e.concerns(n); got != (n.Host == "spark2") {
			t.Errorf("%s is asked: %t", n.Host, got)
		}
	}
	e.Job.Last = &rendezvous.Outcome{Cause: "rank 1 on spark2: exit 1: cannot read /data/x"}
	e.Job.Attempts = nil
	if got := e.filled(); got != nil {
		t.Errorf("it looks at %q", got)
	}
}

// Of a machine is told what those see of it that run a job with it, and nothing of them.
func TestMachineBesideOthers(t *testing.T) {
	e := running()
	filtered(&e)
	e.Looks[2].Ranks[0].Main.State, e.Looks[2].Ranks[0].Main.In = "T", ""
	e.Open, e.Node, e.Job = []rendezvous.JobStatus{*e.Job}, &e.Nodes[0], nil
	if found := Rank(e); len(found) != 1 || found[0].Code != "no-answer" || found[0].Host != "spark1" {
		t.Errorf("%+v", found)
	}
	for _, n := range e.Nodes {
		if !e.concerns(n) {
			t.Errorf("%s is not asked", n.Host)
		}
	}
}

// A process is stuck of which the only thread waits for a lock that it holds itself; and its descriptors are counted.
func TestStuckChild(t *testing.T) {
	c := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", "import resource, threading\n"+
		"resource.setrlimit(resource.RLIMIT_NOFILE, (44, 44))\n"+
		"files = []\n"+
		"try:\n  while True: files.append(open('/dev/null'))\nexcept OSError: pass\n"+
		"lock = threading.Lock()\nlock.acquire()\nlock.acquire()")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()         //nolint:errcheck // it is killed
	defer c.Process.Kill() //nolint:errcheck // the same
	pid := c.Process.Pid
	w := New(Config{Proc: proc.Here})
	k := &watched{root: os.Getpid(), pids: []int{os.Getpid(), pid}}
	for !proc.Here.WaitsForOwn(pid, pid) {
		time.Sleep(time.Millisecond)
	}
	w.first(k, map[int]proc.Work{})
	w.second(k, map[int]proc.Work{}, time.Second)
	if s := k.look.Stuck; s == nil || s.PID != pid {
		t.Errorf("stuck: %+v", s)
	}
	if f := k.look.Full; f == nil || f.PID != pid || f.Open < 44 || f.Limit != 44 {
		t.Errorf("files: %+v", f)
	}
}

// Of a rank that holds others up is told what for, whether they sleep or spin.
func TestHeldUp(t *testing.T) {
	for name, tt := range map[string]struct {
		others func(*wire.RankLook)
		want   string
	}{
		"sleep": {idles("lock"), "rank 1 on spark2 waits for upload (pid 7), which python3 has started, and ranks 0, 2 wait for it"},
		"spin": {func(r *wire.RankLook) { r.CPU, r.Top, r.Main = 1.02, 1, wire.ThreadLook{State: "R", Ran: 30} },
			"rank 1 on spark2 waits for upload (pid 7), which python3 has started, while others use all of a core: they may wait for it"},
	} {
		e := running()
		each(&e, -1, tt.others)
		r := &e.Looks[1].Ranks[0]
		idles("sleep")(r)
		r.Under, r.Name, r.PID = "python3", "upload", 7
		goOn(&e, 1)
		if found := Rank(e); len(found) == 0 || found[0].Text != tt.want {
			t.Errorf("others %s: %+v", name, found)
		}
	}
}

// An end for which there is but a lost connection is told with what is wrong with the fabric; any other is not.
func TestLostPeerOverFabric(t *testing.T) {
	for cause, want := range map[string]string{
		"Connection reset by peer": "rank 0 on spark1: exit 1: Connection reset by peer; of their fabric: spark3 has address 10.0.0.2",
		"Killed":                   "rank 0 on spark1: exit 1: Killed",
	} {
		e := running()
		e.Looks = nil
		e.Fabric = []envgen.Finding{{Code: topology.CodeDuplicateAddress, Severity: envgen.SeverityWarning, Host: "spark3",
			Text: "spark3 has address 10.0.0.2", Remedy: "ip -br address"}}
		e.Job.Outcome = &rendezvous.Outcome{End: rendezvous.Failed, Cause: "rank 0 on spark1: exit 1: " + cause,
			Root: &launcher.RankExit{Rank: 0, Host: "spark1", Exit: launcher.Exit{Code: 1, LostPeer: cause != "Killed"}}}
		if got := Rank(e); len(got) != 1 || got[0].Text != want {
			t.Errorf("%+v, want one: %s", got, want)
		}
	}
}
