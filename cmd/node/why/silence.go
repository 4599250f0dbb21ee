package why

import (
	"fmt"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// dns is the port of DNS servers, which UDP is asked at.
const dns = 53

// words say in which connection a rank waits, for whom, and since when.
func words(a wire.Await) string {
	at := fmt.Sprintf("%s (%s)", a.Remote, a.Who)
	since := a.Idle.Round(time.Second).String()
	switch {
	case a.Asks && a.Remote.Port() == dns:
		return "asks the DNS server " + at + ", which does not answer"
	case a.Asks:
		return "asks " + at + ", which does not answer"
	case a.Connects:
		return fmt.Sprintf("tries to connect to %s, which has not answered for %s or more", at, since)
	}
	return fmt.Sprintf("waits for %s: no byte for %s", at, since)
}

// silence is the connection in which a rank waits for one that is no rank of its job, if that has lasted: with its main
// thread, or with another one while it is known not to wait for other ranks. Of several to one machine none may move.
// To be connected takes no half a minute. One that works is not held up, and a service that is well has nothing to do.
func (e Evidence) silence(r wire.RankLook) (wire.Await, bool) {
	if r.CPU >= 2*quiet || e.serves(r.Job) {
		return wire.Await{}, false
	}
	alone := func() bool {
		return e.Job != nil && r.Main.In != "sleep" && r.Main.In != "terminal" && meeting(r.Stacks) == "" &&
			(len(r.Stacks) > 0 || !e.talks(r))
	}
	for _, a := range r.Awaits {
		lasted := a.Idle >= lasts || a.Connects && a.Idle >= lasts/2
		if a.Asks || a.Connects { // it asks and tries anew
			cores, known := e.lately(r)
			lasted = lasted || known && cores < 2*quiet
		}
		moves := slices.ContainsFunc(r.Conns, func(c wire.Conn) bool {
			return c.Moved > 0 && c.Remote.Addr() == a.Remote.Addr()
		})
		joins := a.Connects && int(a.Remote.Port()) == r.Port // of that its own rule speaks
		if lasted && !a.Own && !a.Client && !joins && !moves && (a.Main || alone()) && !e.forWork(r, a) {
			return a, true
		}
	}
	return wire.Await{}, false
}

// forWork reports whether a rank for which no other one waits has asked a member's process that has read all of it: that may
// have no work for it.
func (e Evidence) forWork(r wire.RankLook, a wire.Await) bool {
	return a.End != nil && a.End.Read && !e.talks(r)
}

// serves tells of a job whether it is a service that is ready.
func (e Evidence) serves(job launcher.JobID) bool {
	is := func(j rendezvous.JobStatus) bool {
		return j.Spec.ID == job && j.Service != nil && j.Service.State == launcher.ServiceReady
	}
	return e.Job != nil && is(*e.Job) || slices.ContainsFunc(e.Open, is)
}

// talks reports whether a rank has connections to others of its job.
func (e Evidence) talks(r wire.RankLook) bool {
	for _, of := range between(append(e.rest(r), r)) {
		if of.Rank == r.Rank {
			return true
		}
	}
	return false
}

// awaits is a rank that waits in a connection in which nothing comes.
func (e Evidence) awaits(r wire.RankLook, add func(code string, sure int, text, remedy string, evidence ...string)) {
	a, found := e.silence(r)
	if !found {
		return
	}
	code, text, remedy := "awaits-answer", words(a), fmt.Sprintf("sparkrun logs %s --rank %d", r.Job, r.Rank)
	switch {
	case a.Connects:
		code = "not-connected"
	case a.Asks && a.Remote.Port() == dns:
		remedy = fmt.Sprintf("sparkrun exec %s --rank %d -- cat /etc/resolv.conf", r.Job, r.Rank)
	case !a.Asks:
		text = fmt.Sprintf("has waited for an answer of %s (%s) for %s: it is connected, nothing comes", a.Remote, a.Who,
			a.Idle.Round(time.Second))
	}
	if a.End != nil && a.End.PID != 0 && a.End.Job == "" {
		remedy = fmt.Sprintf("ps -fp %d   # on %s", a.End.PID, a.Host)
	}
	r.Awaits = nil // that is said
	add(code, 86, text, remedy, where(r), e.others(r))
}

// servesOne is a service that is ill, as its main thread waits for bytes of a client, and nobody else's connection is taken.
func (e Evidence) servesOne(r wire.RankLook, add func(code string, sure int, text, remedy string, evidence ...string)) {
	if e.Job == nil || e.Job.Service == nil || e.Job.Service.State != launcher.ServiceUnhealthy || r.Backlog == 0 {
		return
	}
	for _, a := range r.Awaits {
		if a.Client && a.Main && a.Idle >= window {
			remedy := "sparkrun service restart " + string(r.Job)
			if a.End != nil && a.End.PID != 0 {
				remedy = fmt.Sprintf("ps -fp %d   # on %s: the client", a.End.PID, a.Host)
			}
			add("serves-one", 86, fmt.Sprintf("takes no connections: its main thread waits for bytes of a client, %s (%s), for %s",
				a.Remote, a.Who, a.Idle.Round(time.Second)), remedy,
				fmt.Sprintf("%d connections wait until it takes them", r.Backlog))
			return
		}
	}
}

// bySelf leaves out what follows from a rank that does not go on by itself, as it waits for what is no rank of its job, a
// process of its own is locked up, or it can open no file: that others wait for it, that all do, that its service is ill.
func bySelf(found []wire.WhyFinding) []wire.WhyFinding {
	causes := []string{"awaits-answer", "not-connected", "child-locked", "files-full", "file-silent", "serves-one"}
	i := slices.IndexFunc(found, func(f wire.WhyFinding) bool { return slices.Contains(causes, f.Code) })
	if i < 0 {
		return found
	}
	rank, code := *found[i].Rank, found[i].Code
	return under(found, i, func(f wire.WhyFinding) bool {
		switch f.Code {
		case code:
			return *f.Rank != rank // other ranks have the same trouble
		case "waits-for-rank", "not-come":
			return f.Rank != nil && *f.Rank == rank
		case "fell-silent", "all-wait", "gave-up-waiting":
			return true
		case "service-unhealthy", "service-wedged":
			return code == "files-full" || code == "serves-one"
		}
		return false
	})
}
