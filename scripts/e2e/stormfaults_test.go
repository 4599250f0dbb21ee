package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

// What breaks in a storm.

// everything happens in a storm of seconds; stormy is what one of minutes has besides.
var (
	everything = []act{
		{"launch", 6, false, launches}, {"launch what a host refuses", 1, false, refused}, {"stop", 2, false, stops},
		{"launch and wait", 2, false, waits}, {"launch with files", 1, false, launchesFiles}, {"launch as torchrun does", 1, false, launchesTorchrun},
		{"kill an agent", 2, true, killsAgent}, {"kill the leader's agent", 2, true, killsLeader},
		{"take a host's power", 1, true, losesPower}, {"cut a network", 2, true, cuts}, {"stop an agent", 1, true, stopsAgent},
	}
	stormy = []act{
		{"launch in containers", 1, false, launchesContainers}, {"MPI", 1, false, launchesMPI}, {"pull a model", 1, false, pulls}, {"serve", 1, false, serves}, {"ask the gateway", 2, false, requests},
		{"launch, and cut a host of it", 2, true, cutsOff}, {"kill an agent that has prepared", 4, true, killsPrepared},
		{"kill all agents", 1, true, killsAll}, {"take all power", 1, true, losesAllPower}, {"starve an agent", 1, true, starves},
		{"drop what a host sends or gets", 2, true, dropsOneWay}, {"drop what two hosts send each other", 2, true, dropsBetween},
		{"lose some packets", 2, true, losesSome}, {"delay packets", 1, true, delays},
		{"slow a link", 1, true, slowsLink}, {"spoil a disk", 3, true, spoilsDisk}, {"upgrade", 1, true, upgrades},
	}
)

// lasts waits for as long as something is to be broken: mostly far less than what is the most.
func (p *player) lasts() {
	x := p.rng.Float64()
	p.about(time.Second + time.Duration(x*x*float64(p.most)))
}

func killsAgent(p *player) { p.agentDown(p.host()) }

func killsLeader(p *player) {
	if l := p.leader(p.host()); l != "" {
		p.agentDown(l)
	}
}

func (p *player) agentDown(hosts ...string) {
	p.broken(witness.Agent, hosts, "its agent is killed", func() {
		for _, h := range hosts {
			p.killAgent(h)
		}
		p.about(time.Second)
		for _, h := range hosts {
			p.do("start", h, "--agent")
		}
	})
	p.about(time.Second)
}

// cutsOff launches while all hosts are there, and has one of them out of reach until it is given up: its ranks go on, and
// the next attempt waits.
func cutsOff(p *player) {
	if p.on("spark1", "sparkrun", "status", "--wait-nodes", strconv.Itoa(p.nodes), "--timeout", "20s").code != 0 {
		return
	}
	p.launch(p.host(), []string{"--nodes", "1:" + strconv.Itoa(p.nodes), "--max-restarts", "2", "--node-timeout", "2s"}, nil)
	p.about(3 * time.Second)
	host := p.pick(other(p.nodes, p.leader("spark1"))...)
	p.broken(witness.Network, []string{host}, "cables are pulled, for long", func() {
		p.do("cut", host, "all")
		p.about(30 * time.Second) // the leader gives it up after some 13 s: it asks at all addresses, and waits for the dials
		p.do("heal", host)
	})
	p.about(2 * time.Second)
}

// killsPrepared kills an agent that has prepared its ranks, and waits for another one to do so before they start.
func killsPrepared(p *player) {
	leader := p.leader(p.host())
	rest := other(p.nodes, leader)
	if leader == "" || len(rest) < 2 {
		return
	}
	p.rng.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	p.broken(witness.Agent, rest[:1], "its agent is stopped while a job is prepared", func() {
		before := p.outputs(rest[1])
		p.signal(rest[0], syscall.SIGSTOP)
		p.launch(leader, []string{"--nodes", strconv.Itoa(p.nodes), "--start-timeout", "15s"}, []string{"--life", "2s"})
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end) && len(p.outputs(rest[1])) <= len(before); {
			time.Sleep(50 * time.Millisecond)
		}
		p.about(time.Second) // it may have been another job's
		p.agentDown(rest[1])
		p.signal(rest[0], syscall.SIGCONT)
	})
	p.about(time.Second)
}

func killsAll(p *player) { p.agentDown(other(p.nodes)...) }

// killAgent kills an agent that may have ended by itself.
func (s *storm) killAgent(host string) {
	if out, err := s.command("kill", host, "--agent").CombinedOutput(); err != nil && !strings.Contains(string(out), "has no agent") {
		s.t.Errorf("lab kill %s --agent: %v\n%s", host, err, out)
	}
}

func losesPower(p *player) { p.powerDown(p.host()) }

func losesAllPower(p *player) { p.powerDown(other(p.nodes)...) }

func (p *player) powerDown(hosts ...string) {
	p.broken(witness.Power, hosts, "its power is gone", func() {
		for _, h := range hosts {
			p.do("kill", h)
			p.unwatch(h)
		}
		p.lasts()
		for _, h := range hosts {
			p.do("start", h)
			if p.engines {
				p.do("engine", h)
			}
			p.watch(h)
		}
	})
	p.about(time.Second)
}

func cuts(p *player) {
	host, what := p.host(), p.pick("mgmt", "all", "all", "fabric")
	p.broken(witness.Network, []string{host}, "cables are pulled: "+what, func() {
		p.do("cut", host, what)
		p.lasts()
		p.do("heal", host)
	})
	p.about(500 * time.Millisecond)
}

// agents finds the processes of a host's agent.
func (s *storm) agents(host string) []int { return s.find(host, "sparkrun agent", "") }

func (s *storm) signal(host string, sig syscall.Signal) {
	for _, pid := range s.agents(host) {
		_ = syscall.Kill(pid, sig) // it may have ended
	}
}

func stopsAgent(p *player) {
	host := p.host()
	p.broken(witness.Agent, []string{host}, "its agent is stopped", func() {
		p.signal(host, syscall.SIGSTOP)
		p.lasts()
		p.signal(host, syscall.SIGCONT)
	})
}

// starves lets an agent run for a tenth of the time, in pieces, as a quota of processor time does.
func starves(p *player) {
	host := p.host()
	p.broken(witness.Agent, []string{host}, "its agent is starved", func() {
		pids, run := p.agents(host), 10*time.Millisecond
		end := make(chan struct{})
		go func() { p.lasts(); close(end) }() // ends with this
		for !isClosed(end) {
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
			time.Sleep(9 * run)
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
			time.Sleep(run)
		}
	})
}

// filtered has the switch between the hosts follow some rules of nftables: both ends of a cable see a link.
func (p *player) filtered(hosts []string, how string, rules ...string) {
	p.broken(witness.Network, hosts, how, func() {
		table := fmt.Sprintf("bridge f%d", p.rng.Uint32())
		ruleset := fmt.Sprintf("add table %s; add chain %s c { type filter hook forward priority 0; }", table, table)
		for _, r := range rules {
			ruleset += fmt.Sprintf("; add rule %s c %s", table, r)
		}
		p.on("switch", "nft", ruleset).must(p.t)
		p.lasts()
		p.on("switch", "nft", "delete table "+table).must(p.t)
	})
}

// on one's network or all of them.
func (p *player) nics() string { return p.pick("mgmt", "*", "*", "p*") }

func dropsOneWay(p *player) {
	host, way, nics := p.host(), p.pick("iifname", "oifname"), p.nics()
	p.filtered([]string{host}, fmt.Sprintf("nothing passes by %s of %s", way, nics), fmt.Sprintf("%s %q drop", way, host+"."+nics))
}

func dropsBetween(p *player) {
	a, nics, both := p.host(), p.nics(), p.one(2)
	b := p.pick(other(p.nodes, a)...)
	rules := []string{fmt.Sprintf("iifname %q oifname %q drop", a+"."+nics, b+"."+nics)}
	if both {
		rules = append(rules, fmt.Sprintf("iifname %q oifname %q drop", b+"."+nics, a+"."+nics))
	}
	p.filtered([]string{a}, fmt.Sprintf("nothing passes to %s by %s (back neither: %t)", b, nics, both), rules...)
}

func losesSome(p *player) {
	host, nics, percent := p.host(), p.nics(), p.pick("2", "10", "40")
	p.filtered([]string{host}, fmt.Sprintf("%s %% of packets are lost on %s", percent, nics),
		fmt.Sprintf("iifname %q numgen random mod 100 < %s drop", host+"."+nics, percent),
		fmt.Sprintf("oifname %q numgen random mod 100 < %s drop", host+"."+nics, percent))
}

// slowsLink lets little through, and what waits for it waits for long.
func slowsLink(p *player) {
	host, nic, rate := p.host(), p.pick("mgmt", "p0"), p.pick("100kbit", "1mbit", "10mbit")
	p.broken(witness.Network, []string{host}, "its link is slow: "+nic+" "+rate, func() {
		p.on("switch", "tc", "qdisc", "replace", "dev", host+"."+nic, "root", "tbf", "rate", rate, "burst", "16k", "latency", "2s").must(p.t)
		p.lasts()
		p.on("switch", "tc", "qdisc", "del", "dev", host+"."+nic, "root").must(p.t)
	})
}

// delays has what comes to a host come later, and out of order.
func delays(p *player) {
	host, delay, jitter := p.host(), p.pick("5ms", "100ms", "1s"), p.pick("1ms", "100ms")
	p.broken(witness.Network, []string{host}, fmt.Sprintf("what comes to it comes %s to %s later", delay, jitter), func() {
		args := []string{"exec", "switch", "--", tool(p.t, "badwire"), delay, jitter}
		for _, nic := range []string{"mgmt", "p0", "p0t"} {
			args = append(args, host+"."+nic)
		}
		cmd := p.command(args...)
		cmd.Stderr = os.Stderr
		end, err := cmd.StdinPipe()
		check(p.t, err)
		check(p.t, cmd.Start())
		p.lasts()
		check(p.t, end.Close())
		check(p.t, cmd.Wait())
	})
}

// spoilsDisk has an agent's raft folder lie on a disk that does something else than a disk should, and in the end
// forgets what was not fsynced.
func spoilsDisk(p *player) {
	host := p.host()
	how := p.pick("slow sync 300ms", "slow write sync 1s", "fail write sync ENOSPC", "fail write sync EROFS", "fail sync EIO", "hang sync", "hang read write sync")
	p.broken(witness.Agent, []string{host}, "its disk is to "+how, func() {
		p.killAgent(host)
		d := &badDisk{l: p.lab, host: host}
		d.mount()
		p.do("start", host, "--agent")
		p.about(time.Second)
		d.order(how)
		p.lasts()
		d.order("well")
		p.about(time.Second)
		p.killAgent(host)
		for _, pid := range p.find(host, "baddisk "+raftFolder, "") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			reaped(p.t, pid)
		}
		p.on(host, "sh", "-c", "umount --lazy "+raftFolder+" && rm -r /tmp/baddisk-*").must(p.t)
		p.do("start", host, "--agent")
	})
}

// upgrades has all agents but one, whose power is gone, become those of the next release, one after the other.
func upgrades(p *player) {
	p.mu.Lock()
	next := p.next
	p.mu.Unlock()
	if next == "" {
		killsLeader(p)
		return
	}
	dead := p.leader(p.host())
	if dead == "" {
		dead = p.host()
	}
	p.broken(witness.Power, []string{dead}, "its power is gone, for an upgrade of all others", func() {
		p.do("kill", dead)
		p.unwatch(dead)
		replace(p.t, next, filepath.Join("/var/tmp/sparkrun-lab", p.lab.name, "bin/sparkrun"))
		p.mu.Lock()
		p.next = ""
		p.mu.Unlock()
		for _, h := range slices.Backward(other(p.nodes, dead)) {
			p.agentDown(h)
		}
		p.do("start", dead)
		if p.engines {
			p.do("engine", dead)
		}
		p.watch(dead)
	})
}
