package why

import (
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// goOn has all ranks have used as much as now in so many past minutes.
func goOn(e *Evidence, minutes int) {
	for i := range e.Looks {
		l := &e.Looks[i]
		r := l.Ranks[0]
		of := func(ago time.Duration) usage.Machine {
			return usage.Machine{At: now.Add(-ago), Ranks: []usage.Rank{{Job: "aaaa", Rank: r.Rank, CPU: new(r.CPU),
				CPUTime: time.Hour - time.Duration(float64(ago)*r.CPU)}}}
		}
		l.Machine.Ranks = of(0).Ranks
		for k := range minutes {
			l.Past = append(l.Past, of(time.Duration(minutes-k)*time.Minute+5*time.Second))
		}
	}
}

// tenTimes has one rank work ten times as much as the others, which meet it in each step.
func tenTimes(e *Evidence, one int) {
	each(e, -1, func(r *wire.RankLook) {
		r.CPU, r.Mean, r.Top, r.Main = 0.03, 0.03, 0.03, wire.ThreadLook{State: "S", In: "network", At: "wait_woken", Ran: 40}
	})
	e.Looks[one].Ranks[0].CPU, e.Looks[one].Ranks[0].Mean = 0.3, 0.3
	e.Looks[2].Ranks[0].Main = wire.ThreadLook{State: "R", Ran: 40} // it has just been woken
}

func stacks(frames ...string) func(*wire.RankLook) {
	return func(r *wire.RankLook) { r.Stacks = frames }
}

// forEver has rank 1 use a core while others wait.
func forEver(e *Evidence) {
	each(e, 1, idles("lock"))
	r := &e.Looks[1].Ranks[0]
	r.CPU, r.Top, r.Main = 1, 1, wire.ThreadLook{State: "R"}
}

// offGPU has one use a core, and the others the GPUs.
func offGPU(e *Evidence, one int) {
	forEver(e)
	goOn(e, 1)
	for i := range e.Looks {
		m := &e.Looks[i].Machine
		m.GPUs = []usage.GPU{{}}
		if i != one {
			m.Ranks[0].GPUMemory = new(int64(2 << 30))
		}
	}
}

// saves has rank 0 write for a minute, while others wait for it.
func saves(e *Evidence, rate, waits float64) {
	each(e, 0, idles("lock"))
	r := &e.Looks[0].Ranks[0]
	idles("sleep")(r)
	if r.Disk = waits; waits == 1 {
		idles("disk")(r)
		r.Main.Ran = 9
	}
	r.Moves = wire.Moves{Written: rate, File: "/ckpt/7.pt"}
	goOn(e, 1)
}

// waitRows are of ranks that wait for others, or may.
var waitRows = map[string]rankRow{
	"one works ten times as much":    {func(e *Evidence) { tenTimes(e, 1) }, "slowest-rank:1:spark2"},
	"rank 0 works ten times as much": {func(e *Evidence) { tenTimes(e, 0) }, ""},
	"one works ten times as much for a moment": {func(e *Evidence) {
		tenTimes(e, 1)
		each(e, 1, func(r *wire.RankLook) { r.Mean = 0.7 })
	}, ""},
	"one sleeps, by the kernel": {func(e *Evidence) {
		each(e, 2, idles("lock"))
		idles("sleep")(&e.Looks[2].Ranks[0])
	}, "later waits-for-rank:2:spark3"},
	"one sleeps, and has worked within the minute": {func(e *Evidence) {
		goOn(e, 2)
		each(e, 2, idles("lock"))
		idles("sleep")(&e.Looks[2].Ranks[0])
	}, ""},
	"torch looks after those of which one sleeps": {func(e *Evidence) {
		each(e, 2, idles("lock"))
		idles("sleep")(&e.Looks[2].Ranks[0])
		each(e, -1, func(r *wire.RankLook) {
			r.Port, r.Conns[0].Idle, r.Conns[1].Idle = int(r.Conns[0].Local.Port()), time.Second, time.Second
		})
		for i := range e.Looks { // all meet at rank 0
			e.Looks[i].Ranks[0].Conns = e.Looks[i].Ranks[0].Conns[:1]
		}
		goOn(e, 1)
	}, "waits-for-rank:2:spark3"},
	"one writes a checkpoint in small pieces":     {func(e *Evidence) { saves(e, 5e6, 0.2) }, ""},
	"one writes next to nothing":                  {func(e *Evidence) { saves(e, 1e3, 0) }, "waits-for-rank:0:spark1"},
	"one gets next to nothing of its disk":        {func(e *Evidence) { saves(e, 2e5, 1) }, "disk-slow:0:spark1"},
	"one waits for a disk that gives what it can": {func(e *Evidence) { saves(e, 9e6, 1) }, ""},
	"one loads while a third one sleeps": {func(e *Evidence) {
		each(e, 2, idles("lock"))
		idles("sleep")(&e.Looks[2].Ranks[0])
		e.Looks[0].Ranks[0].Moves.Read = 1e6
		goOn(e, 1)
	}, "waits-for-rank:2:spark3"},
	"they chat from time to time": {func(e *Evidence) {
		each(e, 0, idles("network"))
		idles("sleep")(&e.Looks[0].Ranks[0])
		each(e, -1, func(r *wire.RankLook) {
			for i := range r.Conns {
				r.Conns[i].Idle = 20 * time.Second
			}
		})
		goOn(e, 9)
	}, ""},
	"one computes for ever": {func(e *Evidence) {
		forEver(e)
		goOn(e, 5)
	}, "computes:1:spark2"},
	"one computes for some minutes": {func(e *Evidence) {
		forEver(e)
		goOn(e, 4)
	}, ""},
	"one computes for ever, and others do not wait": {func(e *Evidence) {
		forEver(e)
		e.Looks[2].Ranks[0].CPU = 0.7
		goOn(e, 9)
	}, ""},
	"one is not on its GPU": {func(e *Evidence) { offGPU(e, 1) }, "off-gpu:1:spark2"},
	"one is not on its GPU, nor another": {func(e *Evidence) {
		offGPU(e, 1)
		e.Looks[2].Machine.Ranks[0].GPUMemory = nil
	}, ""},
	"one is not on its GPU, and does nothing": {func(e *Evidence) {
		offGPU(e, 1)
		e.Looks[1].Ranks[0].CPU, e.Looks[1].Ranks[0].Top = 0.2, 0.2
	}, ""},
	"one is not on its GPU, and talks to the others": {func(e *Evidence) {
		offGPU(e, 1)
		each(e, -1, func(r *wire.RankLook) {
			for i := range r.Conns {
				r.Conns[i].Idle = 100 * time.Millisecond
			}
		})
	}, ""},
	"one sleeps, and none is connected to another": {func(e *Evidence) {
		each(e, 2, idles("poll"))
		idles("sleep")(&e.Looks[2].Ranks[0])
		each(e, -1, func(r *wire.RankLook) { r.Conns = nil })
	}, ""},
	"one sleeps, by stacks": {func(e *Evidence) {
		each(e, 2, func(r *wire.RankLook) { r.CPU = 1 }) // NCCL spins
		each(e, 2, stacks("synchronize (cuda.py:4)", "barrier (distributed_c10d.py:9)"))
		idles("sleep")(&e.Looks[2].Ranks[0])
		e.Looks[2].Ranks[0].Stacks = []string{"load (data.py:7)"}
	}, "later waits-for-rank:2:spark3"},
	"one sleeps, and NCCL of the others spins": {func(e *Evidence) {
		each(e, 2, func(r *wire.RankLook) { r.CPU, r.Top, r.Main = 1.02, 1, wire.ThreadLook{State: "R", Ran: 30} })
		idles("sleep")(&e.Looks[2].Ranks[0])
	}, "later waits-for-rank:2:spark3"},
	"one looks from time to time at those that work": {func(e *Evidence) {
		each(e, 0, func(r *wire.RankLook) { r.CPU, r.Top, r.Main = 1.02, 1, wire.ThreadLook{State: "R", Ran: 30} })
		idles("sleep")(&e.Looks[0].Ranks[0])
		e.Looks[0].Ranks[0].Main.Ran = 2
	}, ""},
	"one waits for its loader, by stacks": {func(e *Evidence) {
		each(e, 2, idles("lock"))
		each(e, 2, stacks("all_reduce (d.py:1)"))
		idles("poll")(&e.Looks[2].Ranks[0])
		e.Looks[2].Ranks[0].Stacks = []string{"recv (multiprocessing/connection.py:5)", "load (a.py:7)"}
	}, "later waits-for-rank:2:spark3"},
	"a service has no requests": {func(e *Evidence) {
		e.Job.Spec.Service, e.Job.Service = &launcher.Service{}, &launcher.ServiceSeen{State: launcher.ServiceReady}
		each(e, -1, idles("poll"))
		each(e, -1, stacks("recv (shm_broadcast.py:4)"))
		e.Looks[0].Ranks[0].Stacks = []string{"select (selectors.py:5)"}
	}, ""},
	"Ray's head sleeps": {func(e *Evidence) {
		e.Job.Spec.Stages = append([]launcher.Stage{{Name: "head"}}, e.Job.Spec.Stages...)
		each(e, -1, idles("poll"))
		idles("sleep")(&e.Looks[0].Ranks[0])
	}, ""},
	"NCCL gave up waiting": {func(e *Evidence) {
		e.Looks[1].Ranks[0].Dumps = []string{"/tmp/nccl_trace_rank_1"}
	}, "gave-up-waiting:1:spark2"},
	"they wait in different calls": {func(e *Evidence) {
		each(e, -1, idles("lock"))
		each(e, 0, stacks("all_reduce (d.py:1)"))
		e.Looks[0].Ranks[0].Stacks = []string{"barrier (d.py:2)"}
	}, "later wait-apart::"},
	"one has not come, and torch's rank 0 looks again and again": {func(e *Evidence) {
		each(e, -1, func(r *wire.RankLook) {
			idles("poll")(r)
			r.Port, r.Conns = 29500, []wire.Conn{{Remote: netip.MustParseAddrPort("10.0.0.1:29500")}}
		})
		idles("sleep")(&e.Looks[0].Ranks[0])
		idles("sleep")(&e.Looks[1].Ranks[0])
		e.Looks[1].Ranks[0].Conns = nil
	}, "later not-come:1:spark2"},
	"one loads before it comes, and torch's rank 0 looks again and again": {func(e *Evidence) {
		each(e, -1, func(r *wire.RankLook) {
			idles("poll")(r)
			r.Port, r.Conns = 29500, []wire.Conn{{Remote: netip.MustParseAddrPort("10.0.0.1:29500")}}
		})
		idles("sleep")(&e.Looks[0].Ranks[0])
		idles("sleep")(&e.Looks[1].Ranks[0])
		e.Looks[1].Ranks[0].Conns, e.Looks[1].Ranks[0].Moves.Read = nil, 9e6
		goOn(e, 1)
	}, ""},
	"one has not come": {func(e *Evidence) {
		each(e, -1, func(r *wire.RankLook) {
			idles("network")(r)
			r.Port, r.Conns = 29500, []wire.Conn{{Remote: netip.MustParseAddrPort("10.0.0.1:29500")}}
		})
		idles("sleep")(&e.Looks[1].Ranks[0])
		e.Looks[1].Ranks[0].Conns = nil
	}, "later not-come:1:spark2"},
}
