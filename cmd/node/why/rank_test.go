package why

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

var now = time.Date(2026, 11, 28, 14, 2, 0, 0, time.UTC)

func conn(from, to int) wire.Conn {
	at := func(i, port int) netip.AddrPort {
		return netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:%d", i, port))
	}
	return wire.Conn{Local: at(from+1, 4000+10*from+to), Remote: at(to+1, 4000+10*to+from), RTT: 60 * time.Microsecond,
		MinRTT: 30 * time.Microsecond, Sent: 1000, Idle: 8 * time.Minute}
}

// running is a job of three ranks on three machines that is well: each waits for the others a part of the time.
func running() Evidence {
	j := rendezvous.JobStatus{State: rendezvous.StateRuns}
	j.Spec = launcher.Spec{ID: "aaaa", User: "ada", Nodes: 3, Stages: []launcher.Stage{{Main: true, UsesPort: true}}}
	j.Plan.World, j.Plan.Generation, j.Planned = 3, 1, now.Add(-time.Hour)
	j.Plan.Head, j.Plan.Network = netip.MustParseAddr("10.0.0.1"), string(envgen.NetworkFabric)
	e := Evidence{Now: now, Job: &j}
	for i := range 3 {
		host := fmt.Sprintf("spark%d", i+1)
		j.Plan.Nodes = append(j.Plan.Nodes, rendezvous.Place{Node: launcher.NodeID(host), Host: host, FirstRank: i, Ranks: 1,
			Entry: envgen.Entry{Paths: []envgen.Path{{Slot: "s"}}}})
		e.Nodes = append(e.Nodes, wire.NodeStatus{ID: launcher.NodeID(host), Host: host, State: "ready",
			Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})})
		r := wire.RankLook{Job: "aaaa", Rank: i, PID: 100 + i, Name: "python3", Count: 5, CPU: 0.7, Mean: 0.7, Top: 0.6,
			Main: wire.ThreadLook{State: "S", In: "lock", At: "futex_do_wait", Ran: 90}}
		for k := range 3 {
			if k != i {
				r.Conns = append(r.Conns, conn(i, k))
			}
		}
		e.Looks = append(e.Looks, wire.NodeLook{ID: launcher.NodeID(host), Host: host, Over: window,
			Ranks: []wire.RankLook{r},
			Machine: usage.Machine{At: now, Memory: &usage.Memory{Total: 128 << 30, Available: 60 << 30, Stalled: new(0.01)},
				GPUs: []usage.GPU{{Name: "NVIDIA GB10", Busy: new(0.9), MHz: new(2400.0), MaxMHz: new(3003.0),
					Throttle: []string{"sw_power_cap"}}}}})
	}
	return e
}

// each changes all ranks but one.
func each(e *Evidence, but int, change func(*wire.RankLook)) {
	for i := range e.Looks {
		if i != but {
			change(&e.Looks[i].Ranks[0])
		}
	}
}

func idles(in string) func(*wire.RankLook) {
	return func(r *wire.RankLook) { r.CPU, r.Top, r.Main = 0.01, 0.01, wire.ThreadLook{State: "S", In: in, At: in} }
}

// loops is a job that has failed three times in the same way, and waits for its fourth attempt.
func loops(e *Evidence) {
	e.Job.State, e.Looks, e.Job.AgainAt = rendezvous.StateAgain, nil, new(now.Add(time.Minute))
	const cause = "rank 1 on spark2: exit 1"
	e.Job.Spec.MaxRestarts, e.Job.Plan.Generation, e.Job.Plan.Restarts = 20, 3, 2
	for i := range 2 {
		e.Job.Attempts = append(e.Job.Attempts, rendezvous.Attempt{Generation: launcher.Generation(i + 1), Cause: cause,
			Ended: now.Add(-time.Minute)})
	}
	e.Job.Attempts[0].Cause = "rank 0 on spark1: exit 1" // another one was first
	e.Job.Last = &rendezvous.Outcome{End: rendezvous.Failed, Cause: cause, Root: &launcher.RankExit{Rank: 1, Host: "spark2"}}
}

// begins is a job for which spark2 does something before its ranks are there.
func begins(what string, since time.Duration, brief bool) func(*Evidence) {
	return func(e *Evidence) {
		e.Job.State = rendezvous.StateStarts
		for i := range e.Looks {
			e.Looks[i].Ranks = nil
		}
		e.Looks[1].Starts = []wire.StartLook{{Job: "aaaa", Text: what, For: since, Brief: brief}}
	}
}

// atLimit is a rank at its cgroup's limit that reads pages, of which some come back.
func atLimit(faults, refaults float64) func(*wire.RankLook) {
	return func(r *wire.RankLook) {
		r.Faults, r.Group = faults, wire.Cgroup{Limit: 40 << 20, Held: 40<<20 - 4096, Refaults: refaults,
			LimitFile: "/sys/fs/cgroup/why/memory.max"}
	}
}

func flap(ago time.Duration) []envgen.LinkChange {
	return []envgen.LinkChange{{At: now.Add(-ago), Slot: "s", Port: "port 0", Up: new(false)},
		{At: now.Add(-ago + time.Second), Slot: "s", Port: "port 0", Up: new(true)}}
}

// rankRow changes what is seen of a job that is well. Want are the codes with rank and host, the first first; empty:
// nothing is found; "later": once it has gone on for a minute, and not before.
type rankRow struct {
	change func(*Evidence)
	want   string
}

// elsewhere has a service that is still starting listen at some addresses.
func (e *Evidence) elsewhere(at ...string) {
	e.Job.Spec.Service = &launcher.Service{Port: launcher.Value{{Ref: launcher.PortNamed("http")}}}
	e.Job.Spec.Stages[0].Ports = []launcher.NamedPort{{Name: "http", At: 8000}}
	e.Job.Plan.Nodes[0].Addrs = []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	e.Job.State = rendezvous.StateStarts
	each(e, -1, idles("poll"))
	each(e, -1, func(r *wire.RankLook) { r.Conns = nil })
	for _, a := range at {
		e.Looks[0].Ranks[0].Listens = append(e.Looks[0].Ranks[0].Listens, netip.MustParseAddrPort(a))
	}
}

func TestRank(t *testing.T) {
	second := func(change func(*wire.RankLook)) func(*Evidence) {
		return func(e *Evidence) { change(&e.Looks[1].Ranks[0]) }
	}
	rows := map[string]rankRow{
		"a GPU's driver hangs": {func(e *Evidence) {
			e.Job.Spec.GPUs, e.Looks[1].Machine.GPUSilent = launcher.AllGPUs, "the driver hangs"
		}, "gpu-silent::spark2"},
		"well":                     {func(*Evidence) {}, ""},
		"all idle in the same way": {func(e *Evidence) { each(e, -1, idles("lock")) }, ""},
		"all sleep":                {func(e *Evidence) { each(e, -1, idles("sleep")) }, ""},
		"one works, others wait":   {func(e *Evidence) { each(e, 0, idles("lock")) }, ""},
		"one works by its stack, others wait": {func(e *Evidence) {
			each(e, -1, stacks("all_reduce (d.py:1)", "<module> (train.py:3)"))
			each(e, 0, idles("lock"))
			e.Looks[0].Ranks[0].Stacks = []string{"save (train.py:9)"}
		}, ""},
		"all have more threads than cores": {func(e *Evidence) {
			each(e, -1, func(r *wire.RankLook) {
				r.CPU, r.Queued = 1,
					1
			})
		}, ""},
		"reads a model": {second(func(r *wire.RankLook) {
			r.Faults, r.Disk, r.CPU, r.Main = 5000, 1, 0.2, wire.ThreadLook{State: "D", In: "disk", Ran: 400}
		}), ""},
		"waits for work, or to be told to end": {second(func(r *wire.RankLook) { r.Signals, r.Locked = true, true }), ""},
		"a large disk has room left": {func(e *Evidence) {
			e.Looks[0].Machine.Disks = []usage.Disk{{Mount: "/", Total: 4 << 40, Free: 20 << 30}}
		}, ""},
		"another job's GPU is slow": {func(e *Evidence) {
			e.Looks[2].Machine.GPUs[0].MHz = new(507.0)
			e.Looks[2].Machine.Ranks = []usage.Rank{{Job: "aaaa"}, {Job: "bbbb", GPUMemory: new(int64(1 << 30))}}
		}, ""},

		"stopped": {func(e *Evidence) {
			each(e, 1, idles("lock"))
			e.Looks[1].Ranks[0].Main = wire.ThreadLook{State: "T"}
		}, "rank-stopped:1:spark2"},
		"traced": {second(func(r *wire.RankLook) { r.Tracer, r.Main.State = 7, "t" }), "rank-traced:1:spark2"},
		"frozen": {second(func(r *wire.RankLook) { r.Main.In = "frozen" }), "rank-frozen:1:spark2"},
		"locked": {second(func(r *wire.RankLook) { r.Locked = true }), "rank-locked:1:spark2"},
		"hangs": {second(func(r *wire.RankLook) {
			r.Disk, r.CPU, r.Main = 1, 0, wire.ThreadLook{State: "D", In: "disk", At: "rpc_wait_bit_killable"}
		}), "rank-hangs:1:spark2"},
		"waits for a file's lock": {second(func(r *wire.RankLook) {
			r.FileLock = &wire.FileLock{File: "/hf/4f1c.lock", Holder: wire.BusyProgram{PID: 4711, Name: "flock"}}
		}), "file-locked:1:spark2"},
		"waits for the lock of a file that another rank loads": {second(func(r *wire.RankLook) {
			r.FileLock = &wire.FileLock{File: "/hf/4f1c.lock", Holder: wire.BusyProgram{PID: 4711, Job: "aaaa"}, Works: true}
		}), ""},
		"another rank has the lock, and does nothing": {second(func(r *wire.RankLook) {
			r.FileLock = &wire.FileLock{File: "/hf/4f1c.lock", Holder: wire.BusyProgram{PID: 4711, Job: "aaaa"}}
		}), "file-locked:1:spark2"},
		"its engine is dead": {second(func(r *wire.RankLook) {
			r.Dead = []wire.DeadChild{{PID: 7, Name: "VLLM::EngineCor", End: "killed by SIGKILL (9)"}}
		}), "child-dead:1:spark2"},
		"a stranger has the GPU's memory": {func(e *Evidence) {
			e.Job.Spec.GPUs = launcher.AllGPUs
			e.Looks[1].Machine.Others = []usage.Other{{PID: 4711, Name: "python", User: "bob", GPUMemory: 60 << 30}}
		}, "gpu-held::spark2"},
		"a stranger has little of the GPU's memory": {func(e *Evidence) {
			e.Job.Spec.GPUs = launcher.AllGPUs
			e.Looks[1].Machine.Others = []usage.Other{{PID: 4711, Name: "python", User: "bob", GPUMemory: 3 << 30}}
		}, ""},
		"a stranger has the GPU's memory, and the job uses none": {func(e *Evidence) {
			e.Looks[1].Machine.Others = []usage.Other{{PID: 4711, Name: "python", User: "bob", GPUMemory: 60 << 30}}
		}, ""},
		"another job has the GPU's memory": {func(e *Evidence) {
			e.Job.Spec.GPUs = launcher.AllGPUs
			other := *e.Job
			other.Spec.ID = "bbbb"
			e.Open = []rendezvous.JobStatus{other}
			e.Looks[1].Machine.Others = []usage.Other{{PID: 4711, Name: "python", User: "bob", Job: "bbbb", GPUMemory: 60 << 30}}
		}, ""},
		"it listens at another port": {func(e *Evidence) { e.elsewhere("0.0.0.0:8080") }, "later wrong-port:0:spark1"},
		"it listens on loopback":     {func(e *Evidence) { e.elsewhere("127.0.0.1:8080") }, ""},
		"it listens where ranks meet, and at ports of the kernel's choice": {func(e *Evidence) {
			e.elsewhere("10.0.0.1:29500", "10.0.0.1:41233")
		}, ""},
		"it listens at its port as well": {func(e *Evidence) { e.elsewhere("[::]:8080", "[::]:8000") }, ""},
		"quota":                          {second(func(r *wire.RankLook) { r.Group.Throttled = 0.7 }), "throttled:1:spark2"},
		"starved":                        {second(func(r *wire.RankLook) { r.CPU, r.Queued = 0.3, 0.7 }), "starved:1:spark2"},
		"starved on all machines, by strangers": {func(e *Evidence) {
			each(e, -1, func(r *wire.RankLook) { r.CPU, r.Queued = 0.5, 0.5 })
			e.Looks[2].Busy = []wire.BusyProgram{{PID: 9, Name: "stress", CPU: 3}}
		}, "starved:2:spark3"},
		"pages":                                  {second(func(r *wire.RankLook) { r.Swapped, r.Faults = 1<<30, 900 }), "paging:1:spark2"},
		"pages at its cgroup's limit":            {second(atLimit(9000, 8000)), "paging:1:spark2"},
		"reads a model in a cgroup that is full": {second(atLimit(9000, 0)), ""},
		"reads files again in one, by read":      {second(atLimit(0, 8000)), ""},
		"pages, and its cgroup is far from full": {second(func(r *wire.RankLook) {
			atLimit(9000, 8000)(r)
			r.Group.Held /= 2
		}), ""},
		"the machine pages": {func(e *Evidence) { e.Looks[1].Machine.Memory.Stalled = new(0.4) }, "memory-stalls::spark2"},
		"below the memory guard's floor, asked for a machine": {func(e *Evidence) {
			e.Looks[1].Floor, e.Job, e.Node = 61<<30, nil, &e.Nodes[1]
		}, "memory-short::spark2"},
		"below the memory guard's floor, asked for a job": {func(e *Evidence) { e.Looks[1].Floor = 61 << 30 }, ""},
		"clock": {func(e *Evidence) { e.Looks[2].Machine.GPUs[0].MHz = new(507.0) }, "gpu-slow::spark3"},
		"a clock that was higher": {func(e *Evidence) {
			for i := range e.Looks { // all are slow, and one has not always been
				e.Looks[i].Machine.GPUs[0].MHz = new(1600.0)
			}
			e.Looks[2].Past = []usage.Machine{{GPUs: []usage.GPU{{Busy: new(0.9), MHz: new(2400.0)}}},
				{GPUs: []usage.GPU{{Busy: new(0.9), MHz: new(2410.0)}}}}
		}, "gpu-slow::spark3"},
		"all wait, and worked before": {func(e *Evidence) {
			each(e, -1, idles("lock"))
			for i := range e.Looks {
				m := usage.Machine{Ranks: []usage.Rank{{Job: "aaaa", Rank: i, CPU: new(0.8)}}}
				e.Looks[i].Past, e.Looks[i].Machine.GPUs = []usage.Machine{m, m}, nil
			}
		}, "later fell-silent::"},
		"idle GPU": {func(e *Evidence) {
			e.Looks[2].Machine.GPUs[0].MHz, e.Looks[2].Machine.GPUs[0].Busy = new(207.0), new(0.0)
		}, ""},
		"hot": {func(e *Evidence) {
			e.Looks[2].Machine.GPUs[0].Throttle = []string{"hw_thermal_slowdown"}
		}, "gpu-slow::spark3"},
		"loses packets": {func(e *Evidence) {
			e.Looks[0].Ranks[0].Conns[1].Again, e.Looks[1].Ranks[0].Conns[1].Again = 40, 30
		}, "loses-packets::spark3"},
		"a retransmit is none": {func(e *Evidence) { e.Looks[0].Ranks[0].Conns[1].Again = 4 }, ""},
		"cut": {func(e *Evidence) {
			each(e, -1, idles("lock"))
			e.Looks[0].Ranks[0].Conns[0].Tries = 5
			e.Looks[1].Links = []envgen.LinkChange{{At: now.Add(-9 * time.Second), Slot: "s", Port: "port 0", Up: new(false),
				Text: "lost its link"}}
		}, "link-lost::spark2"},
		"a port lost its link by which it does not meet": {func(e *Evidence) {
			e.Looks[1].Links = []envgen.LinkChange{{At: now.Add(-9 * time.Second), Slot: "t", Port: "port 1", Up: new(false)}}
		}, ""},
		"a link was away": {func(e *Evidence) { e.Looks[1].Links = flap(10 * time.Minute) }, "link-flaps::spark2"},
		"a link was away, long ago": {func(e *Evidence) {
			e.Job.Planned, e.Looks[1].Links = now.Add(-48*time.Hour), flap(20*time.Hour)
		}, ""},
		"far": {func(e *Evidence) {
			each(e, -1, func(r *wire.RankLook) {
				for i := range r.Conns {
					if c := &r.Conns[i]; r.Rank == 1 || c.Remote.Addr() == netip.MustParseAddr("10.0.0.2") {
						c.RTT, c.MinRTT = 41*time.Millisecond, 40*time.Millisecond
					}
				}
			})
		}, "far::spark2"},
		"a link has become slow": {func(e *Evidence) {
			e.Looks[0].Ranks[0].Conns[1].RTT, e.Looks[2].Ranks[0].Conns[0].RTT = 25*time.Millisecond, 25*time.Millisecond
		}, "crowded::spark1"},
		"a link is slow beside others, from time to time": {func(e *Evidence) {
			each(e, -1, func(r *wire.RankLook) {
				for i := range r.Conns {
					if c := &r.Conns[i]; r.Rank == 1 || c.Remote.Addr() == netip.MustParseAddr("10.0.0.2") {
						c.RTT, c.Queued, c.Sent = 15*time.Millisecond, 200<<10, 150
					}
				}
			})
		}, "crowded::spark2"},
		"all links are as slow": {func(e *Evidence) {
			each(e, -1, func(r *wire.RankLook) {
				for i := range r.Conns {
					r.Conns[i].RTT, r.Conns[i].Queued, r.Conns[i].Sent = 15*time.Millisecond, 200<<10, 150
				}
			})
		}, ""},
		"a question now and then": {func(e *Evidence) {
			each(e, -1, func(r *wire.RankLook) {
				for i := range r.Conns {
					r.Conns[i].RTT, r.Conns[i].Sent = 30*time.Millisecond, 66
				}
			})
		}, ""},
		"away": {func(e *Evidence) {
			e.Job.Away, e.Looks = []string{"spark3"}, e.Looks[:2]
			each(e, -1, idles("lock"))
		}, "machine-away::spark3"},
		"suspended": {func(e *Evidence) { e.Job.Suspended = []string{"spark1"} }, "suspended::spark1"},
		"it failed before": {func(e *Evidence) {
			e.Job.Attempts = []rendezvous.Attempt{{Generation: 1, Cause: "rank 2 on spark3: exit 1",
				Ended: now.Add(-time.Minute)}}
		}, "failed-before::spark3"},
		"it was restarted by hand": {func(e *Evidence) {
			e.Job.Attempts = []rendezvous.Attempt{{Generation: 1, Cause: "restarted by root", Ended: now.Add(-time.Minute)}}
		}, ""},
		"it failed long ago": {func(e *Evidence) {
			e.Job.Attempts = []rendezvous.Attempt{{Generation: 1, Cause: "rank 2 on spark3: exit 1",
				Ended: now.Add(-5 * time.Hour)}}
		}, ""},
		"no leader": {func(e *Evidence) { e.Problem = "spark1 is away" }, "no-leader::"},
		"the fabric": {func(e *Evidence) {
			e.Fabric = []envgen.Finding{{Code: "mtu-unequal", Text: "x", Severity: envgen.SeverityWarning, Host: "spark2"},
				{Code: "no-ipv4", Text: "x", Severity: envgen.SeverityError, Host: "spark1"}, {Code: "x",
					Severity: envgen.SeverityInfo}}
		}, "no-ipv4::spark1 mtu-unequal::spark2"},
		"ended": {func(e *Evidence) {
			e.Job.Outcome = &rendezvous.Outcome{End: rendezvous.Failed, Cause: "rank 1 ran out of memory",
				Root: &launcher.RankExit{Rank: 1, Host: "spark2"}}
		}, "ended:1:spark2"},
		"starts again": {func(e *Evidence) {
			e.Job.State, e.Looks, e.Job.AgainAt = rendezvous.StateAgain, nil, new(now.Add(time.Minute))
			e.Job.Attempts = []rendezvous.Attempt{{Generation: 1, Cause: "rank 2 on spark3: exit 1", Ended: now}}
			e.Job.Last = &rendezvous.Outcome{End: rendezvous.Failed, Cause: "rank 1: exit 3",
				Root: &launcher.RankExit{Rank: 1, Host: "spark2"}}
		}, "again:1:spark2 failed-before::spark3"},
		"pulls its image for long":          {begins("pulls llm:7: 3 GiB of 20 GiB", time.Hour, false), ""},
		"looks at its folders for a moment": {begins("looks at folders", 5*time.Second, true), ""},
		"looks at its folders for long":     {begins("looks at folders", time.Minute, true), "start-stuck::spark2"},
		"docker hangs while it starts": {func(e *Evidence) {
			begins("asks its container engine for the image", 30*time.Second, true)(e)
			e.Looks[1].Engine = "the engine at /s has not answered within 2s"
		}, "engine-silent::spark2"},
		"docker hangs while a job runs": {func(e *Evidence) {
			e.Looks[1].Engine = "the engine at /s has not answered within 2s"
		}, "engine-silent::spark2"},
		"starts again, and ends in the same way each time": {loops, "again:1:spark2"},
		"ended, and the disk is full": {func(e *Evidence) {
			e.Job.Outcome, e.Looks = &rendezvous.Outcome{End: rendezvous.Failed, Cause: "rank 1 on spark2: killed by SIGABRT (6)",
				Root: &launcher.RankExit{Rank: 1, Host: "spark2"}}, e.Looks[1:2]
			e.Looks[0].Machine.Disks = []usage.Disk{{Mount: "/tmp/run", Total: 18 << 20, Free: 1 << 20}}
		}, "ended:1:spark2 disk-full::spark2"},
		"a small disk has room left": {func(e *Evidence) {
			e.Looks[0].Machine.Disks = []usage.Disk{{Mount: "/tmp/run", Total: 18 << 20, Free: 9 << 20}}
		}, ""},
		"completed": {func(e *Evidence) { e.Job.Outcome = &rendezvous.Outcome{End: rendezvous.Completed} }, ""},
		"asleep":    {func(e *Evidence) { e.Job.State, e.Looks = rendezvous.StateAsleep, nil }, ""},
		"wedged": {func(e *Evidence) {
			e.Job.Spec.Service = &launcher.Service{}
			e.Job.Service = &launcher.ServiceSeen{State: launcher.ServiceWedged, Text: "2 requests, no tokens",
				Since: now.Add(-time.Minute)}
		}, "service-wedged::spark1"},
		"a machine is away": {func(e *Evidence) {
			e.Job, e.Node, e.Looks = nil, &wire.NodeStatus{Host: "spark2", State: "away", Since: now.Add(-time.Minute)}, nil
		}, "machine-away::spark2"},
		"a machine is drained": {func(e *Evidence) {
			e.Job, e.Node = nil, &wire.NodeStatus{Host: "spark2", State: "drained", Why: "by ada"}
		}, "drained::spark2"},
	}
	maps.Copy(rows, waitRows)
	maps.Copy(rows, netRows)
	maps.Copy(rows, fullRows)
	for name, tt := range rows {
		e := running()
		tt.change(&e)
		want, lasts := strings.CutPrefix(tt.want, "later ")
		if lasts {
			if found := Rank(e); len(found) > 0 || !slices.ContainsFunc(e.looked(), func(text string) bool {
				return strings.Contains(text, "which has not been seen for a whole minute: ask again")
			}) {
				t.Errorf("%s, for a moment: %+v, %q", name, found, e.looked())
			}
			goOn(&e, 1)
		}
		var got []string
		for _, f := range Rank(e) {
			rank := ""
			if f.Rank != nil {
				rank = fmt.Sprint(*f.Rank)
			}
			got = append(got, f.Code+":"+rank+":"+f.Host)
			if f.Text == "" || f.Sure < 1 || f.Sure > 100 {
				t.Errorf("%s: %+v", name, f)
			}
		}
		if d := cmp.Diff(want, strings.Join(got, " ")); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// A job that waits is told who has each machine, and since when.
func TestRankSaysWhoHoldsMachines(t *testing.T) {
	e := running()
	other := *e.Job
	other.Spec.ID, other.Spec.Name, other.Spec.User, other.Spec.GPUs = "bbbb", "llm", "bob", launcher.AllGPUs
	other.Plan.Nodes = e.Job.Plan.Nodes[:1]
	e.Open, e.Looks = []rendezvous.JobStatus{*e.Job, other}, nil
	e.Job.State, e.Job.Waits, e.Job.Line = rendezvous.StateWaits, "GPUs are taken: spark1 by job bbbb", 2
	e.Nodes[1].State, e.Nodes[1].Why = "drained", "by ada"
	e.Nodes[2].State, e.Nodes[2].Since = "away", now.Add(-90*time.Second)
	want := []wire.WhyFinding{{Code: "waits", Sure: 90, Text: "it has not started: GPUs are taken: spark1 by job bbbb",
		Evidence: []string{"it is number 2 of those that wait", "it wants 3 of 3 machines",
			"spark1: has job bbbb (llm) of bob, for 1h0m0s",
			"spark2: drained: by ada", "spark3: away for 1m30s"},
		Remedy: "sparkrun node resume spark2"}}
	if d := cmp.Diff(want, Rank(e)); d != "" {
		t.Error(d)
	}
}

func TestReadStacks(t *testing.T) {
	since := time.Unix(1000, 0)
	const spy = `[{"pid":7,"thread_name":"Thread-1","os_thread_id":9,"frames":[]},{"pid":7,"thread_name":"MainThread",` +
		`"os_thread_id":7,"frames":[{"name":"barrier","short_filename":"c10d.py","line":9},{"name":"<module>\u001b[2J","short_filename":"t.py","line":3}]}]`
	for text, want := range map[string][3]string{
		"dump 2000 /tmp/nccl_trace_rank_1\ndump 10 /tmp/old1\n" + spy: {"/tmp/nccl_trace_rank_1",
			"barrier (c10d.py:9)|<module>?[2J (t.py:3)", ""},
		"none\n":                      {"", "", "py-spy is neither in PATH nor beside its program (pip install py-spy)"},
		"Permission Denied: try sudo": {"", "", "py-spy: Permission Denied: try sudo"},
		"":                            {"", "", "py-spy: it did not answer"},
	} {
		dumps, stack, unseen := readStacks([]byte(text), since)
		got := [3]string{strings.Join(dumps, "|"), strings.Join(stack, "|"), unseen}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", text, d)
		}
	}
}

// What follows from a cable that is out is evidence of it; the words say how often, and who waits.
func TestWordsOfFindings(t *testing.T) {
	cut := func(e *Evidence) {
		each(e, -1, idles("lock"))
		e.Looks[0].Ranks[0].Conns[0].Tries = 5
		e.Looks[1].Links = flap(9 * time.Second)[:1]
		e.Looks[1].Links[0].Text = "lost its link"
		e.Fabric = []envgen.Finding{{Code: "no-link", Text: "port 0 of spark2 has no link", Host: "spark2", Port: "enp1s0f0np0",
			Severity: envgen.SeverityError}}
	}
	for name, tt := range map[string]struct {
		change func(*Evidence)
		want   string // of the first finding: its text, and the first words of its evidence
	}{
		"a cable that is out": {cut,
			"port 0 of spark2 lost its link 9s ago|what its ranks send|rank 0, 10.0|port 0 of spark2 has"},
		"a link that came back": {func(e *Evidence) { e.Looks[1].Links = flap(time.Minute) },
			"port 0 of spark2 has lost its link once; it has one again since 59s"},
		"rank 0 has the address where ranks meet": {func(e *Evidence) {
			each(e, -1, func(r *wire.RankLook) {
				idles("network")(r)
				r.Port, r.Conns = 29500, nil
			})
			e.Looks[0].Ranks[0].Conns = []wire.Conn{{Local: netip.MustParseAddrPort("10.0.0.1:29500")}}
			e.Looks[2].Ranks[0].Conns = []wire.Conn{{Remote: netip.MustParseAddrPort("10.0.0.1:29500")}}
			idles("sleep")(&e.Looks[1].Ranks[0])
			goOn(e, 1)
		},
			"rank 1 on spark2 has not come to 10.0.0.1:29500, where ranks meet: 2 of 3 are there, and wait|rank 1|rank 0|rank 2"},
		"a child that was killed at a limit": {func(e *Evidence) {
			r := &e.Looks[1].Ranks[0]
			r.Dead, r.Group = []wire.DeadChild{{PID: 7, Name: "Engine", End: "killed by SIGKILL (9)"}}, wire.Cgroup{Limit: 40 << 20,
				Killed: 2, LimitFile: "/g/memory.max"}
		}, "rank 1 on spark2 goes on without Engine (pid 7)|python3 (pid 101)|at its cgroup's limit of 40 MiB (/g/memory.max)"},
		"a crash loop": {loops, "attempt 3 of 21 ended, and it is to start again; its last end: rank 1 on spark2: exit 1|" +
			"it has ended so 3 times in a row|it starts in 1m0s"},
		"the next attempt of a crash loop runs": {func(e *Evidence) {
			loops(e)
			e.Job.State, e.Job.Last, e.Job.Plan.Generation, e.Job.Plan.Restarts = rendezvous.StateRuns, nil, 3, 2
		}, "attempt 2 of 21 ended 1m0s ago: rank 1 on spark2: exit 1|it has ended so 2 times in a row"},
		"a service can open no more files": {opensNoMore, "rank 0 on spark1 has 64 of 64 files open (60 are sockets), and can open " +
			"no more, nor take connections: vllm (pid 100)|it has been unhealthy for 1m0s"},
		"a child is locked up": {childLocked, "rank 1 on spark2 has a process, pt_data_worker (pid 93), that is locked up|" +
			"rank 1 on spark2 (pid 101)|meanwhile these ranks wait: 0, 2|fork copies"},
		"a file server does not answer": {reads, "rank 1 on spark2 waits for /tmp/nas/x, which its file system, fuse.sshfs at /tmp/nas, " +
			"does not give: python3 (pid 219)"},
		"a rank waits for its input": {questions("input", ""), "rank 1 on spark2 waits for its standard input, and ranks 0, 2 wait for it"},
		"a rank waits for what it has started": {questions("sleep", "python3"), "rank 1 on spark2 waits for upload (pid 101), which " +
			"python3 has started, and ranks 0, 2 wait for it"},
		"a rank had ended with 0": {left, "rank 2 on spark3 had ended with 0, and others still wanted it: rank 0 on spark1: exit 1"},
		"a service reads from a client that sends nothing": {ill, "rank 0 on spark1 takes no connections: its main thread waits for " +
			"bytes of a client, 10.0.0.3:54610 (python3, pid 7 on spark3), for 2m0s|6 connections wait"},
		"a packet filter": {filtered, "spark1 takes no connection at port 4711, where a rank listens, and its agent answers"},
		"a debugger": {func(e *Evidence) {
			r := &e.Looks[1].Ranks[0]
			r.Tracer, r.TracerName, r.Main.State = 352, "gdb", "t"
		}, "rank 1 on spark2 is stopped by gdb (pid 352), which traces it as debuggers do|python3 (pid 101)"},
	} {
		e := running()
		tt.change(&e)
		found := Rank(e)
		if len(found) == 0 {
			t.Errorf("%s: nothing found", name)
			continue
		}
		got := append([]string{found[0].Text}, found[0].Evidence...)
		for i, want := range strings.Split(tt.want, "|") {
			if i >= len(got) || !strings.HasPrefix(got[i], want) {
				t.Errorf("%s: %q, want %q", name, got, want)
				break
			}
		}
	}
}
