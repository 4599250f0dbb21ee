package why

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// torchPort is where torch's ranks meet that are told of no port.
const torchPort = 29500

// came are the ranks of a job by whether they have come to the address at which all meet.
type came struct {
	port int
	// hosts have it, and there have no connection of their own; guests do; late ones have not come.
	hosts, guests, late []wire.RankLook
	busy                bool // another one that has not come works
	counts, asked       bool // torch's rank 0, or a child of it, looks again and again who has come, and asks there
	formed              bool // ranks have connections to each other but there: they have come before
}

// meet tells who has come. A rank that works there has more to do than to wait: known is false.
func meet(all []wire.RankLook) (m came, known bool) {
	for _, r := range all {
		m.port = max(m.port, r.Port)
	}
	for _, r := range all {
		at := slices.IndexFunc(r.Conns, func(c wire.Conn) bool { return int(c.Remote.Port()) == m.port && !c.Connects })
		is := slices.ContainsFunc(r.Conns, func(c wire.Conn) bool { return int(c.Local.Port()) == m.port })
		switch {
		case at >= 0 && r.CPU < 2*quiet: // torch's rank 0 sleeps between two looks at who has come
			m.guests = append(m.guests, r)
			m.counts = m.counts || r.Main.In == "child" || r.Main.Ran >= often && (r.Main.In == "sleep" || r.Main.State == "R")
			m.asked = m.asked || slices.ContainsFunc(r.Conns, func(c wire.Conn) bool {
				return int(c.Remote.Port()) == m.port && c.Idle < window/often
			})
		case at >= 0:
			return m, false
		case is:
			if waitsForPeers(r) {
				m.hosts = append(m.hosts, r)
			}
		case r.CPU < 2*quiet:
			m.late = append(m.late, r)
		default:
			m.busy = true
		}
	}
	for c := range between(all) {
		m.formed = m.formed || int(c.Local.Port()) != m.port && int(c.Remote.Port()) != m.port
	}
	return m, m.port != 0
}

// often is how many times torch's rank 0 looks, at the least, while it is looked at: each 10 ms.
const often = 20

// missing are ranks that have not come to the address at which all meet, while others wait there: they are on their way,
// have ended, or nobody has started them.
func (e Evidence) missing(all []wire.RankLook) []wire.WhyFinding {
	st := e.Job.Spec.MainStage()
	m, known := meet(all)
	waiting := slices.Concat(m.hosts, m.guests)
	world := e.Job.Plan.World
	for _, r := range all {
		world = max(world, r.World)
	}
	switch {
	case st == nil || !st.UsesPort || !known:
		return nil
	case len(m.guests) == 0:
		return e.noneCame(m, len(all))
	case len(m.late) > 0 && len(m.guests)+len(m.late) >= len(all)-1:
		return e.onceLasted(e.notCome(m, waiting, world), m.late, waiting)
	case len(m.late) == 0 && !m.busy && len(waiting) == len(all) && m.counts && m.asked && !m.formed:
		return e.onceLasted(e.notThere(m, waiting, world), nil, waiting)
	}
	return nil
}

// notCome is about ranks that run.
func (e Evidence) notCome(m came, waiting []wire.RankLook, world int) wire.WhyFinding {
	f := waitFinding(e, m.late, waiting, 65, "")
	who := list(m.late) + " on " + f.Host + " has"
	if len(m.late) > 1 {
		who = list(m.late) + " have"
	}
	at := e.meetsAt(m)
	f.Code, f.Text = "not-come", fmt.Sprintf("%s not come to %s, where ranks meet: %s", who, at, of(len(waiting), world))
	tries, _ := e.tries(m, at, &f)
	f.Evidence = append(tries, f.Evidence...)
	return f
}

// noneCame is about ranks of which none is there: they are refused there, as rank 0 does not listen, or elsewhere.
func (e Evidence) noneCame(m came, count int) []wire.WhyFinding {
	if len(m.late) < count || count < 2 {
		return nil
	}
	at, first, rest := e.meetsAt(m), m.late[0], m.late[1:]
	f := waitFinding(e, m.late[:1], rest, 65, "")
	f.Code, f.Text = "not-come", fmt.Sprintf("no rank has come to %s, where ranks meet", at)
	tries, elsewhere := e.tries(m, at, &f)
	f.Evidence = append(tries, f.Evidence...)
	if elsewhere {
		return e.onceLasted(f, nil, m.late)
	}
	f.Text = fmt.Sprintf("rank %d on %s does not listen at %s, where ranks meet: others try to come, and are refused",
		first.Rank, first.Host, at)
	refused := slices.ContainsFunc(e.Looks, func(l wire.NodeLook) bool {
		return slices.ContainsFunc(l.Refused, func(c wire.Refused) bool { return c.At == at })
	})
	if first.Rank != 0 || !refused {
		return nil // they may not mean to meet
	}
	return e.onceLasted(f, m.late[:1], rest)
}

func (e Evidence) meetsAt(m came) netip.AddrPort {
	return netip.AddrPortFrom(e.Job.Plan.Head, uint16(m.port)) //nolint:gosec // it is one
}

// tries says where ranks that have not come try to; and whether that is elsewhere.
func (e Evidence) tries(m came, at netip.AddrPort, f *wire.WhyFinding) (out []string, away bool) {
	for _, r := range m.late[:min(len(m.late), 4)] {
		elsewhere := netip.AddrPort{}
		for _, a := range r.Awaits {
			if !a.Own && (a.Main || a.Asks || a.Connects) {
				out = append(out, fmt.Sprintf("rank %d on %s %s", r.Rank, r.Host, words(a)))
			}
			if a.Connects && a.Remote != at && int(a.Remote.Port()) == m.port {
				elsewhere = a.Remote
			}
		}
		for _, l := range e.Looks {
			for _, c := range l.Refused {
				if l.Host != r.Host || int(c.At.Port()) != m.port && len(out) > 0 {
					continue
				}
				if text := fmt.Sprintf("on %s connections to %s fail, %d in %s", r.Host, c.At, c.Count, window); !slices.Contains(out,
					text) {
					out = append(out, text)
				}
				if c.At != at && int(c.At.Port()) == m.port {
					elsewhere = c.At
				}
			}
		}
		if elsewhere.IsValid() && !away {
			away = true
			f.Text += fmt.Sprintf("; rank %d tries %s", r.Rank, elsewhere)
			f.Remedy = fmt.Sprintf("grep -rn MASTER_ADDR .   # the program sets another than %s, which it was given", at.Addr())
		}
	}
	return out, away
}

// of says how many wait.
func of(there, world int) string {
	if there == 1 {
		return fmt.Sprintf("1 of %d is there, and waits", world)
	}
	return fmt.Sprintf("%d of %d are there, and wait", there, world)
}

// notThere is about ranks of which there is no process: all that there are have come, and wait for more.
func (e Evidence) notThere(m came, waiting []wire.RankLook, world int) wire.WhyFinding {
	f := wire.WhyFinding{Code: "not-come", Sure: 65, Remedy: "sparkrun logs " + string(e.Job.Spec.ID)}
	at := fmt.Sprintf("%s:%d, where ranks meet", e.Job.Plan.Head, m.port)
	var gone []wire.RankLook // that have ended, or nobody has started
	for n := range world {
		if !slices.ContainsFunc(waiting, func(r wire.RankLook) bool {
			return r.Rank == n && r.World < world || r.World == world && slices.Contains(r.Has, n)
		}) {
			gone = append(gone, wire.RankLook{Rank: n})
		}
	}
	there := world - len(gone)
	switch {
	case len(gone) == 0:
		f.Text = fmt.Sprintf("all %d ranks have come to %s, and wait for more: their program counts on more than WORLD_SIZE=%d",
			there, at, world)
	case slices.Contains(e.Job.Done, gone[0].Rank):
		f.Text = fmt.Sprintf("%s ended with 0, and did not come to %s: %s", list(gone), at, of(there, world))
		f.Rank, f.Remedy = new(gone[0].Rank), fmt.Sprintf("%s --rank %d", f.Remedy, gone[0].Rank)
	default:
		f.Text = fmt.Sprintf("nobody has started %s: of those that meet at %s:%d %s", list(gone), e.Job.Plan.Head, m.port,
			of(there, world))
	}
	for _, r := range waiting[:min(len(waiting), 4)] {
		f.Evidence = append(f.Evidence, where(r))
	}
	return f
}
