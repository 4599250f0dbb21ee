package e2e

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

var measureModels = struct {
	sections *string
	bytes    *int64
	file     *string
}{
	flag.String("measure-models", "", "what TestMeasureModels measures: sections, separated by blanks"),
	flag.Int64("measure-models-bytes", 2e9, "how large the model is"),
	flag.String("measure-models-file", "", "where TestMeasureModels writes its figures as JSON"),
}

// linkRate is what each link carries in one direction in those sections where neither processor nor disk are to be
// the measure.
const linkRate = "250mbit"

// modelFiles is how many files have the weights.
const modelFiles = 4

// modelBench is one run of scripts/bench_models.
type modelBench struct {
	bench
	hub   *hubStandIn
	bytes int64
}

var modelSections = []struct {
	name, title string
	hosts       int
	flags       []string
	run         func(*modelBench)
}{
	{"chain", "spark1 to spark4 in a row, every link " + linkRate, 4, []string{"--topology", "ring"}, (*modelBench).chain},
	{"ring", "the same, and spark4 cabled to spark1", 4, []string{"--topology", "ring"}, (*modelBench).ring},
	{"switch", "all on one switch, every link " + linkRate, 4, nil, (*modelBench).onSwitch},
	{"cost", "no link is slowed down: processor seconds a GB", 2, nil, (*modelBench).processors},
}

// TestMeasureModels is scripts/bench_models.
func TestMeasureModels(t *testing.T) {
	if *measureModels.sections == "" {
		t.Skip("takes a quiet machine: ./scripts/bench_models")
	}
	b := &modelBench{bytes: *measureModels.bytes}
	b.CPUs, b.rounds = runtime.NumCPU(), 4
	b.Date, b.Load[0] = time.Now().Format(time.DateTime), machineLoad()
	commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	b.Commit = strings.TrimSpace(string(commit))
	fmt.Printf("%s, commit %s, %d processors, a model of %.1f GB, load %s\n", b.Date, b.Commit, b.CPUs,
		float64(b.bytes)/1e9, b.Load[0])
	for _, s := range modelSections {
		if !slices.Contains(strings.Fields(*measureModels.sections), s.name) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			b.lab, b.hub = upWithHub(t, s.hosts, []string{"--made", fmt.Sprintf("org/big=%dx%d", modelFiles, b.bytes/modelFiles)}, s.flags...)
			b.hosts, b.section, b.group, b.dir = s.hosts, s.name, "", scratch(t)
			fmt.Printf("\n%s: %s\n  %-52s %5s %9s %9s %9s %8s\n", s.name, s.title, "", "N", "MIN", "MEDIAN", "MAX", "OURS/IT")
			s.run(b)
		})
		b.Load[1] = machineLoad()
		if *measureModels.file != "" {
			text, err := json.MarshalIndent(b, "", " ")
			check(t, errors.Join(err, os.WriteFile(*measureModels.file, text, 0o644)))
		}
	}
	fmt.Printf("\nload %s at the start, %s at the end\n", b.Load[0], b.Load[1])
}

func (b *modelBench) one(group, unit, name string, sample float64) {
	b.tell(figure{Group: group, Name: name, Unit: unit, Samples: []float64{sample}})
}

// slowDown gives each link one NIC at each end, and linkRate in each direction: a port's twins share one cable.
func (b *modelBench) slowDown() {
	b.t.Helper()
	for _, h := range other(b.hosts) {
		b.do("cut", h, "enP2p1s0f0np0")
		b.do("cut", h, "enP2p1s0f1np1")
		for nic, far := range map[string]string{"enP7s7": "mgmt", "enp1s0f0np0": "p0", "enp1s0f1np1": "p1"} {
			rate := []string{"root", "tbf", "rate", linkRate, "burst", "256k", "latency", "50ms"}
			b.on(h, append([]string{"tc", "qdisc", "replace", "dev", nic}, rate...)...).must(b.t)
			b.on("switch", append([]string{"tc", "qdisc", "replace", "dev", h + "." + far}, rate...)...).must(b.t)
		}
	}
}

// carried is what has gone over each link in each direction, and out of the stand-in.
func (b *modelBench) carried() map[string]float64 {
	b.t.Helper()
	var links []struct {
		Name  string                                   `json:"ifname"`
		Stats struct{ Rx, Tx struct{ Bytes float64 } } `json:"stats64"`
	}
	check(b.t, json.Unmarshal([]byte(b.on("switch", "ip", "-j", "-s", "link").must(b.t).out), &links))
	out := map[string]float64{}
	for _, l := range links {
		switch {
		case l.Name == "br-mgmt":
			out["outside"] = l.Stats.Tx.Bytes
		case strings.HasPrefix(l.Name, "spark"):
			out[l.Name+" to it"], out[l.Name+" from it"] = l.Stats.Tx.Bytes, l.Stats.Rx.Bytes
		}
	}
	return out
}

const copied = "/var/lib/sparkrun/copied" // on a host's own disk

// copyOnce brings the model to spark1 as one would by hand: all of it in one file.
func (b *modelBench) copyOnce() float64 {
	b.t.Helper()
	return b.on("spark1", "sh", "-c", `exec curl -sfL "$0" >"$1"`,
		fmt.Sprintf("http://%s/org/big/resolve/main/model-[00001-%05d].safetensors", hubAPI, modelFiles), copied).
		must(b.t).took.Seconds()
}

func (b *modelBench) remove() {
	b.t.Helper()
	b.on("spark1", "sparkrun", "model", "rm", "org/big").must(b.t)
}

// pulled has a host asked for it for all, and tells how long that took, what went where, and what agents held.
func (b *modelBench) pulled(host string) (took float64) {
	b.t.Helper()
	before := b.carried()
	over, held := make(chan struct{}), make(chan [2]float64)
	go func() { held <- b.memory(over) }()
	r := b.start(host, "sparkrun", "model", "pull", "org/big", "--all").within(time.Hour)
	close(over)
	memory := <-held
	r.must(b.t)
	busiest, on := 0.0, ""
	after := b.carried()
	for link, n := range after {
		if n -= before[link]; link != "outside" && n > busiest {
			busiest, on = n, link
		}
	}
	size := float64(b.bytes)
	went, largest := "asked on "+host+": bytes that went, through the model's", "asked on "+host+": the largest agent"
	b.one(went, "x", "out of the Hub", (after["outside"]-before["outside"])/size)
	b.one(went, "x", "over the busiest link: "+on, busiest/size)
	b.one(largest, "MB", "resident", memory[0])
	b.one(largest, "MB", "of it not a file's", memory[1])
	return r.took.Seconds()
}

// memory is the most that an agent has resident, and has of its own, until over.
func (b *modelBench) memory(over chan struct{}) (peak [2]float64) {
	of := regexp.MustCompile(`(?m)^(VmRSS|RssAnon):\s+(\d+) kB`)
	var files []string
	for _, h := range other(b.hosts) {
		for _, pid := range b.find(h, "sparkrun agent", "") {
			files = append(files, fmt.Sprintf("/proc/%d/status", pid))
		}
	}
	for {
		for _, file := range files {
			text, _ := os.ReadFile(file)
			for _, m := range of.FindAllStringSubmatch(string(text), -1) {
				var kb float64
				_, _ = fmt.Sscan(m[2], &kb)
				i := map[string]int{"VmRSS": 0, "RssAnon": 1}[m[1]]
				peak[i] = max(peak[i], kb*1024/1e6)
			}
		}
		select {
		case <-over:
			return peak
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// toAll tells what a pull to all took, beside one copy.
func (b *modelBench) toAll(once float64, host string, took float64) {
	group := fmt.Sprintf("asked on %s, to %d hosts", host, b.hosts)
	b.one(group, "s", own+"model pull --all", took)
	b.one(group, "s", "one copy, by curl to spark1", once)
}

func (b *modelBench) chain() {
	b.do("unplug", "spark4", "0")
	b.slowDown()
	once := b.copyOnce()
	b.on("spark1", "rm", copied).must(b.t)
	b.toAll(once, "spark1", b.pulled("spark1"))
	b.remove()
	b.toAll(once, "spark2", b.pulled("spark2"))
}

func (b *modelBench) ring() {
	b.slowDown()
	once := b.copyOnce()
	b.on("spark1", "rm", copied).must(b.t)
	b.toAll(once, "spark2", b.pulled("spark2"))
}

// onSwitch has what others do beside it: a copy to the first host, then from there to each other one in turn.
func (b *modelBench) onSwitch() {
	b.sshd()
	b.slowDown()
	took := b.pulled("spark2")
	b.remove()
	once := b.copyOnce()
	b.toAll(once, "spark2", took)
	for _, way := range []string{"rsync", "scp"} {
		sum := once
		for _, h := range other(b.hosts, "spark1") {
			sum += b.sentTo(h, way)
			b.on(h, "rm", copied).must(b.t)
		}
		b.one(b.group, "s", "that, then "+way+" over ssh to each in turn", sum)
	}
}

// sentTo copies from spark1 to a host over the fabric.
func (b *modelBench) sentTo(host, way string) (seconds float64) {
	b.t.Helper()
	to := "192.168.100.1" + strings.TrimPrefix(host, "spark") + ":" + copied
	command := map[string][]string{
		"rsync": {"rsync", "--whole-file", "--inplace", "-e", b.dir + "/ssh", copied, to},
		"scp":   {"scp", "-q", "-S", b.dir + "/ssh", copied, to},
	}[way]
	return b.on("spark1", command...).must(b.t).took.Seconds()
}

// sshd has all hosts let spark1 in.
func (b *modelBench) sshd() {
	b.t.Helper()
	cmd := exec.Command("sh", "-euc", `cd "$0"
		for key in login host; do ssh-keygen -q -t ed25519 -N "" -f $key; done
		printf '%s\n' "HostKey $0/host" "AuthorizedKeysFile $0/login.pub" 'StrictModes no' 'PidFile none' 'UsePAM no' \
			'PermitRootLogin yes' 'UseDNS no' "Subsystem sftp internal-sftp" >sshd_config
		printf '#!/bin/sh\nexec ssh -F none -i %s/login -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -q "$@"\n' \
			"$0" >ssh
		chmod 755 ssh`, b.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("make keys: %v: %s", err, out)
	}
	for _, h := range other(b.hosts) {
		b.on(h, "sh", "-c", `mkdir -p /run/sshd; exec /usr/sbin/sshd -f "$0/sshd_config"`, b.dir).must(b.t)
	}
}

// processors is what a GB costs each host: all that it does, beside nothing.
func (b *modelBench) processors() {
	b.sshd()
	gb := float64(b.bytes) / 1e9
	spent := func(do func()) (first, second float64) {
		one, two := b.usedBy("spark1"), b.usedBy("spark2")
		do()
		return (b.usedBy("spark1") - one) / gb, (b.usedBy("spark2") - two) / gb
	}
	pull := func(host string, flags ...string) func() {
		return func() {
			b.on(host, append([]string{"sparkrun", "model", "pull", "org/big"}, flags...)...).must(b.t)
		}
	}
	outside, _ := spent(pull("spark1"))
	hands, takes := spent(pull("spark2"))
	b.remove()
	head, tail := spent(pull("spark1", "--all"))
	b.remove()
	curl, _ := spent(func() { b.copyOnce() })
	var sends, receives [2]float64
	for i, way := range []string{"rsync", "scp"} {
		sends[i], receives[i] = spent(func() { b.sentTo("spark2", way) })
		b.on("spark2", "rm", copied).must(b.t)
	}
	const unit = "s/GB"
	b.one("the host that hands on what it has", unit, own+"model pull", hands)
	b.one("the host that hands on what it has", unit, "rsync over ssh", sends[0])
	b.one("the host that hands on what it has", unit, "scp", sends[1])
	b.one("the host that takes it", unit, own+"model pull", takes)
	b.one("the host that takes it", unit, "rsync over ssh", receives[0])
	b.one("the host that takes it", unit, "scp", receives[1])
	b.one("the host that fetches from outside", unit, own+"model pull", outside)
	b.one("the host that fetches from outside", unit, "curl, which verifies nothing", curl)
	b.one("both at once, the second while the first fetches", unit, own+"model pull --all: the first", head)
	b.one("both at once, the second while the first fetches", unit, own+"model pull --all: the second", tail)
	b.inProcess("launcher/filesync/relay", "Stages", "4x", "by stage, in one process", "cpu-s/GB",
		[2]string{"/sha256", "SHA-256 of the whole, where it is fetched from outside"},
		[2]string{"/blake3", "BLAKE3 of the chunks"}, [2]string{"/write_and_sync", "written, and synced"},
		[2]string{"/read", "read"}, [2]string{"/tcp", "TCP, both ends"}, [2]string{"/tls", "TCP and TLS, both ends"})
	const cores, link = 20, 25.0 // of a Spark, and GB/s of 200 Gb/s
	worst := max(takes+hands, outside+hands)
	b.one("what 20 cores would allow, were they like these", "GB/s", "by the busiest host of a chain, link 25", min(link, cores/worst))
	b.one("what 20 cores would allow, were they like these", "GB/s", "rsync, by its receiver and sender on one host",
		min(link, cores/(sends[0]+receives[0])))
}

// usedBy is a host's processor time in seconds.
func (b *modelBench) usedBy(host string) float64 {
	b.t.Helper()
	ms, err := b.used(host)
	check(b.t, err)
	return ms / 1000
}
