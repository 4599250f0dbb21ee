package why

import (
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/proc"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// proxy is a rank's connection to a proxy that does not answer.
func proxy(idle time.Duration) []wire.Await {
	return []wire.Await{{Local: netip.MustParseAddrPort("10.0.0.2:4711"), Remote: netip.MustParseAddrPort("10.0.0.9:3128"),
		Main: true, Idle: idle, Who: "outside the cluster; HTTPS_PROXY"}}
}

// fetches has rank 1 wait for an answer, and others for it.
func fetches(e *Evidence, change func(r *wire.RankLook)) {
	each(e, -1, idles("lock"))
	r := &e.Looks[1].Ranks[0]
	idles("network")(r)
	r.Awaits = proxy(2 * time.Minute)
	change(r)
}

// meets has all ranks wait at rank 0's port, as torch's do until all have come.
func meets(e *Evidence) {
	at := netip.MustParseAddrPort("10.0.0.1:29500")
	each(e, -1, func(r *wire.RankLook) {
		idles("network")(r)
		r.Port, r.Conns = 29500, []wire.Conn{{Local: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1").Next(),
			uint16(4000+r.Rank)), Remote: at, Idle: time.Hour}} //nolint:gosec // it is small
	})
	r := &e.Looks[0].Ranks[0]
	idles("sleep")(r)
	r.Main.Ran, r.Conns[0].Idle = 190, 8*time.Millisecond
	for i := range e.Looks {
		r.Conns = append(r.Conns, wire.Conn{Local: at, Remote: e.Looks[i].Ranks[0].Conns[0].Local, Idle: time.Hour})
	}
}

// late has rank 1 not come there.
func late(e *Evidence) *wire.RankLook {
	meets(e)
	idles("sleep")(&e.Looks[1].Ranks[0])
	e.Looks[1].Ranks[0].Conns = nil
	e.Looks[0].Ranks[0].Conns = slices.Delete(e.Looks[0].Ranks[0].Conns, 2, 3)
	return &e.Looks[1].Ranks[0]
}

// nobody has none come, and all sleep.
func nobody(e *Evidence) {
	each(e, -1, idles("sleep"))
	each(e, -1, func(r *wire.RankLook) { r.Port, r.Conns = 29500, nil })
}

// talk has ranks move so much in the look, to and fro: over the fabric, or management. GPUs have them use GPUs.
func talk(e *Evidence, moved uint64, fabric, gpus bool) {
	for i := range e.Looks {
		l := &e.Looks[i]
		at := e.Nodes[i].Addr
		if !fabric {
			at = netip.MustParseAddr("192.168.100.1")
		}
		e.Job.Plan.Nodes[i].Entry.Paths[0].Addr = at
		for k := range l.Ranks[0].Conns {
			l.Ranks[0].Conns[k].Moved = moved
		}
		if gpus {
			l.Machine.Ranks = []usage.Rank{{Job: "aaaa", GPUMemory: new(int64(1 << 30))}}
		}
		l.Machine.Ports = []usage.Port{{Name: "port 0", RDMAIn: new(0.0), RDMAOut: new(0.0), EtherIn: new(9e9)}}
	}
}

// workers are ranks without connections to each other, which all wait for a server, that has read what they sent or not.
func workers(e *Evidence, read bool) {
	each(e, -1, func(r *wire.RankLook) {
		idles("network")(r)
		r.Conns = nil
		r.Awaits = []wire.Await{{Remote: netip.MustParseAddrPort("10.0.0.9:6379"), Main: true, Idle: 2 * time.Minute,
			Who: "redis, pid 7 on spark3", Host: "spark3", End: &wire.End{PID: 7, Name: "redis", Read: read}}}
	})
}

// netRows are of connections to others than ranks, and of networks.
var netRows = map[string]rankRow{
	"a proxy does not answer": {func(e *Evidence) { fetches(e, func(*wire.RankLook) {}) }, "awaits-answer:1:spark2"},
	"a proxy has not answered for a moment": {func(e *Evidence) {
		fetches(e, func(r *wire.RankLook) { r.Awaits[0].Idle = 50 * time.Second })
	}, ""},
	"a download is slow, and all others wait": {func(e *Evidence) {
		silentFor(3*time.Minute, func(*wire.RankLook) {})(e)
		e.Looks[1].Ranks[0].Awaits = []wire.Await{{Remote: netip.MustParseAddrPort("10.0.0.9:3128"), Main: true, Idle: 4 * time.Second}}
	}, ""},
	"a download is slow": {func(e *Evidence) {
		fetches(e, func(r *wire.RankLook) { r.Awaits[0].Idle = 9 * time.Second })
	}, ""},
	"one of several downloads goes on": {func(e *Evidence) {
		fetches(e, func(r *wire.RankLook) {
			r.Conns = append(r.Conns, wire.Conn{Remote: netip.MustParseAddrPort("10.0.0.9:3128"), Moved: 10})
		})
	}, ""},
	"ranks wait for work": {func(e *Evidence) { workers(e, true) }, ""},
	"ranks wait for one that does not read what they ask": {func(e *Evidence) { workers(e, false) }, "awaits-answer:0:spark1"},
	"ranks that talk to each other wait for another": {func(e *Evidence) {
		workers(e, true)
		each(e, -1, func(r *wire.RankLook) { r.Conns = []wire.Conn{conn(r.Rank, (r.Rank+1)%3), conn(r.Rank, (r.Rank+2)%3)} })
	}, "awaits-answer:0:spark1"},
	"it waits for a rank of its job": {func(e *Evidence) {
		fetches(e, func(r *wire.RankLook) { r.Awaits[0].Own = true })
	}, ""},
	"it works while it waits": {func(e *Evidence) { fetches(e, func(r *wire.RankLook) { r.CPU = 0.5 }) }, ""},
	"another thread has asked, and it may wait for ranks": {func(e *Evidence) {
		fetches(e, func(r *wire.RankLook) { r.Awaits[0].Main = false })
	}, ""},
	"another thread has asked, and no rank is connected": {func(e *Evidence) {
		fetches(e, func(r *wire.RankLook) { r.Awaits[0].Main = false })
		each(e, -1, func(r *wire.RankLook) { r.Conns = nil })
	}, "awaits-answer:1:spark2"},
	"a service that is ready has asked": {func(e *Evidence) {
		e.Job.Spec.Service, e.Job.Service = &launcher.Service{}, &launcher.ServiceSeen{State: launcher.ServiceReady}
		fetches(e, func(*wire.RankLook) {})
	}, ""},
	"nothing takes its connection": {func(e *Evidence) {
		fetches(e, func(r *wire.RankLook) { r.Awaits[0].Connects, r.Awaits[0].Idle = true, 40*time.Second })
	}, "not-connected:1:spark2"},
	"a rank that others wait for asks": {func(e *Evidence) {
		fetches(e, func(*wire.RankLook) {})
		each(e, -1, stacks("all_reduce (d.py:1)"))
		e.Looks[1].Ranks[0].Stacks = []string{"readinto (socket.py:700)"}
		goOn(e, 1)
	}, "awaits-answer:1:spark2"},
	"a DNS server does not answer one that has not come": {func(e *Evidence) {
		r := late(e)
		r.Awaits = []wire.Await{{Remote: netip.MustParseAddrPort("10.0.0.53:53"), Main: true, Asks: true}}
		goOn(e, 1)
	}, "awaits-answer:1:spark2"},
	"rank 0 does not listen where others come": {func(e *Evidence) {
		nobody(e)
		e.Looks[2].Refused = []wire.Refused{{At: netip.MustParseAddrPort("10.0.0.1:29500"), Count: 3}}
	}, "later not-come:0:spark1"},
	"none comes to where they could meet": {func(e *Evidence) {
		nobody(e)
		goOn(e, 1)
	}, ""},
	"a child of rank 0 looks who has come": {func(e *Evidence) {
		meets(e)
		e.Looks[0].Ranks[0].Main = wire.ThreadLook{State: "S", In: "child", At: "do_wait"}
	}, "later not-come::"},
	"rank 0 looks at this moment who has come": {func(e *Evidence) {
		meets(e)
		e.Looks[0].Ranks[0].Main = wire.ThreadLook{State: "R", Ran: 190}
	}, "later not-come::"},
	"all have come, and wait for more": {meets, "later not-come::"},
	"one has ended before it came": {func(e *Evidence) {
		late(e)
		e.Job.Done, e.Looks = []int{1}, slices.Delete(e.Looks, 1, 2)
	}, "later not-come:1:"},
	"all have come before, and rank 0 steps in small sleeps": {func(e *Evidence) {
		meets(e)
		for i := range e.Looks[:2] {
			c := conn(i, 1-i)
			c.Idle = time.Second
			e.Looks[i].Ranks[0].Conns = append(e.Looks[i].Ranks[0].Conns, c)
		}
		goOn(e, 1)
	}, ""},
	"all have come, and rank 0 works": {func(e *Evidence) {
		meets(e)
		e.Looks[0].Ranks[0].CPU = 0.7
		goOn(e, 1)
	}, ""},
	"by TCP in place of RDMA":     {func(e *Evidence) { talk(e, 1e8, true, true) }, "no-rdma::spark1 no-rdma::spark2 no-rdma::spark3"},
	"by TCP, and it uses no GPUs": {func(e *Evidence) { talk(e, 1e8, true, false) }, ""},
	"over management":             {func(e *Evidence) { talk(e, 4e6, false, false) }, "not-by-fabric::spark1"},
	"over management, a little":   {func(e *Evidence) { talk(e, 1e5, false, true) }, ""},
	"over management, where ranks meet": {func(e *Evidence) {
		talk(e, 4e6, false, false)
		e.Job.Plan.Network = string(envgen.NetworkManagement)
	}, ""},
	"over management, and by RDMA": {func(e *Evidence) {
		talk(e, 4e6, false, true)
		for i := range e.Looks {
			e.Looks[i].Machine.Ports[0].RDMAOut = new(9e9)
		}
	}, ""},
}

// The words say who is waited for and since when, who has come and who has not and where it tries, and what chose a
// network.
func TestWordsOfNetworks(t *testing.T) {
	for name, tt := range map[string]struct {
		change             func(*Evidence)
		text, part, remedy string // of the first finding: its text, a part of what was seen, its remedy
	}{
		"a proxy": {func(e *Evidence) { fetches(e, func(*wire.RankLook) {}) },
			"rank 1 on spark2 has waited for an answer of 10.0.0.9:3128 (outside the cluster; HTTPS_PROXY) for 2m0s: it is " +
				"connected, nothing comes",
			"waits for the network in network", "sparkrun logs aaaa --rank 1"},
		"a program of a member": {func(e *Evidence) {
			fetches(e, func(r *wire.RankLook) {
				r.Awaits[0].End, r.Awaits[0].Host = &wire.End{PID: 7, Name: "squid"}, "spark3"
				e.call(*r, &r.Awaits[0])
			})
		}, "rank 1 on spark2 has waited for an answer of 10.0.0.9:3128 (squid, pid 7 on spark3) for 2m0s: it is connected, " +
			"nothing comes", "", "ps -fp 7   # on spark3"},
		"a DNS server": {func(e *Evidence) {
			late(e).Awaits = []wire.Await{{Remote: netip.MustParseAddrPort("10.0.0.53:53"), Main: true, Asks: true,
				Who: "outside the cluster"}}
		}, "rank 1 on spark2 asks the DNS server 10.0.0.53:53 (outside the cluster), which does not answer",
			"rank 1 on spark2 has not come to 10.0.0.1:29500, where ranks meet: 2 of 3 are there, and wait",
			"sparkrun exec aaaa --rank 1 -- cat /etc/resolv.conf"},
		"another address": {func(e *Evidence) {
			late(e)
			e.Looks[1].Refused = []wire.Refused{{At: netip.MustParseAddrPort("127.0.0.1:29500"), Count: 4}}
		}, "rank 1 on spark2 has not come to 10.0.0.1:29500, where ranks meet: 2 of 3 are there, and wait; rank 1 tries " +
			"127.0.0.1:29500",
			"on spark2 connections to 127.0.0.1:29500 fail, 4 in 2s",
			"grep -rn MASTER_ADDR .   # the program sets another than 10.0.0.1, which it was given"},
		"another address, of all": {func(e *Evidence) {
			nobody(e)
			e.Looks[0].Refused = []wire.Refused{{At: netip.MustParseAddrPort("10.0.0.3:29500"), Count: 3}}
		}, "no rank has come to 10.0.0.1:29500, where ranks meet; rank 0 tries 10.0.0.3:29500",
			"on spark1 connections to 10.0.0.3:29500 fail, 3 in 2s",
			"grep -rn MASTER_ADDR .   # the program sets another than 10.0.0.1, which it was given"},
		"one that is not answered": {func(e *Evidence) {
			late(e).Awaits = []wire.Await{{Remote: netip.MustParseAddrPort("10.9.9.9:29500"), Main: true, Connects: true,
				Idle: time.Minute, Who: "outside the cluster"}}
		}, "rank 1 on spark2 has not come to 10.0.0.1:29500, where ranks meet: 2 of 3 are there, and wait; rank 1 tries " +
			"10.9.9.9:29500",
			"tries to connect to 10.9.9.9:29500 (outside the cluster), which has not answered for 1m0s or more",
			"grep -rn MASTER_ADDR .   # the program sets another than 10.0.0.1, which it was given"},
		"a world of more": {meets, "all 3 ranks have come to 10.0.0.1:29500, where ranks meet, and wait for more: their " +
			"program counts on more than WORLD_SIZE=3", "", "sparkrun logs aaaa"},
		"a world of four processes, of which three were started": {func(e *Evidence) {
			meets(e)
			each(e, -1, func(r *wire.RankLook) { r.World, r.Has = 4, []int{r.Rank} })
		}, "nobody has started rank 3: of those that meet at 10.0.0.1:29500 3 of 4 are there, and wait", "", "sparkrun logs aaaa"},
		"one that ended": {func(e *Evidence) {
			late(e)
			e.Job.Done, e.Looks = []int{1}, slices.Delete(e.Looks, 1, 2)
		}, "rank 1 ended with 0, and did not come to 10.0.0.1:29500, where ranks meet: 2 of 3 are there, and wait", "",
			"sparkrun logs aaaa --rank 1"},
		"a variable": {func(e *Evidence) {
			talk(e, 1e7, false, false)
			for i := range e.Looks {
				e.Looks[i].Ranks[0].Network = []string{"GLOO_SOCKET_IFNAME=enP7s7", "NCCL_SOCKET_IFNAME==enp1s0f0np0"}
				e.Nodes[i].Inventory.NICs = []envgen.NIC{{Name: "enP7s7", Addresses: []netip.Prefix{netip.PrefixFrom(e.Nodes[i].Addr, 24)}}}
			}
		}, "its ranks talk over enP7s7 (management) of spark1, spark2, spark3, though the " +
			"fabric joins them: GLOO_SOCKET_IFNAME=enP7s7 in its environment",
			"enP7s7 (management) of spark2: its ranks' connections 10 MB/s", "sparkrun help nccl"},
	} {
		e := running()
		tt.change(&e)
		goOn(&e, 1)
		found := Rank(e)
		if len(found) != 1 {
			t.Errorf("%s: %+v", name, found)
			continue
		}
		if d := cmp.Diff([]string{tt.text, tt.remedy}, []string{found[0].Text, found[0].Remedy}); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if all := strings.Join(found[0].Evidence, "\n"); !strings.Contains(all, tt.part) {
			t.Errorf("%s: %q is not in %s", name, tt.part, all)
		}
	}
}

// What a job's own ranks move is told, by interface, and of no other job.
func TestOwnBytesAreTold(t *testing.T) {
	e := running()
	talk(&e, 4e7, true, true)
	want := "its ranks' connections over 10.0.0.1 (fabric) of spark1: 40 MB/s by TCP, though there is RDMA (sparkrun help nccl)"
	if looked := e.looked(); len(Rank(e)) > 0 || !slices.Contains(looked, want) {
		t.Errorf("%q, want %q", looked, want)
	}
	talk(&e, 0, true, true)
	if looked := e.looked(); slices.ContainsFunc(looked, func(s string) bool { return strings.Contains(s, "MB/s") }) {
		t.Errorf("of an idle job: %q", looked)
	}
}

// Where connections are refused is seen, though they are gone at once; those that are taken are not.
func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing is asked
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	r := watchRefusals(map[uint16]bool{at.Port(): true})
	dial := func() {
		if c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at.String()); err == nil {
			_ = c.Close()
		}
	}
	dial()
	_ = l.Close()
	dial()
	dial()
	time.Sleep(100 * time.Millisecond) // the kernel tells in its own time
	if d := cmp.Diff([]wire.Refused{{At: at, Count: 2}}, r.end(), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Error(d)
	}
	if more := r.end(); more != nil {
		t.Errorf("it tells again: %v", more)
	}
}

// Who listens is found, and has not taken a connection that waits there.
func TestEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // nothing is asked
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	at := netip.MustParseAddrPort(l.Addr().String())
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w := New(Config{Proc: proc.Here})
	asked := []wire.Ends{{Here: at, There: netip.MustParseAddrPort(c.LocalAddr().String())},
		{Here: netip.AddrPortFrom(at.Addr(), 1)}}
	got := w.ends(asked, connections())
	if got[0].PID != os.Getpid() || !got[0].Listens || got[1].PID != 0 {
		t.Errorf("%+v", got)
	}
	taken, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if got := w.ends(asked, connections()); got[0].PID != os.Getpid() || got[0].Listens {
		t.Errorf("once it is taken: %+v", got)
	}
}

// A connection that nothing has taken has no round trip: it is not called slow, and is told as what it is.
func TestUntakenConnectionHasNoRoundTrip(t *testing.T) {
	if got := leastRTT(&netlink.TCPInfo{Min_rtt: math.MaxUint32}); got != 0 {
		t.Errorf("%s of what has had no answer", got)
	}
	for tries, want := range map[uint8]string{1: "", 4: "rank 0, 10.0.0.1:4001 to 10.0.0.2:4010 (spark2): it tries to connect, 4 times so far"} {
		e := running()
		for i := range e.Looks {
			e.Looks[i].Ranks[0].Conns = nil
		}
		c := conn(0, 1)
		c.RTT, c.MinRTT, c.Sent, c.Tries = 0, 0, 0, tries
		e.Looks[0].Ranks[0].Conns = []wire.Conn{c}
		found := e.connections()
		if want == "" && len(found) > 0 || want != "" && (len(found) != 1 || !slices.Contains(found[0].Evidence, want)) {
			t.Errorf("%d tries: %+v", tries, found)
		}
	}
}
