package bootstrap

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// spark is what factsScript says on a bare Spark.
const spark = `kernel Linux
machine aarch64
host spark1
os Ubuntu 24.04.3 LTS
uid 1000
user zeta
systemd systemd 255 (255.4-1ubuntu8)
active inactive
enabled disabled
binary 
unit 
group 
free /usr/local/bin 1000000
free /etc/systemd/system 1000000
free /var/lib 1000000
tcp 0016
udp 0044
sudo yes
end yes
`

func TestEvaluate(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for name, c := range map[string]struct {
		old, new string
		skew     time.Duration
		upgrade  bool
		full     bool
		want     string // empty: fit
	}{
		"a bare Spark": {},
		"a Mac":        {old: "kernel Linux", new: "kernel Darwin", want: "it runs Darwin"},
		"a container": {old: "systemd systemd 255 (255.4-1ubuntu8)\n",
			want: "systemd is not its init system (Ubuntu"},
		"no sudo":                    {old: "sudo yes\n", want: "zeta is not root there, and there is no sudo"},
		"root, no sudo":              {old: "uid 1000", new: "uid 0"},
		"a clock ahead":              {skew: 2 * time.Hour, want: "its clock is 2h0m0s ahead of this machine's"},
		"a clock behind":             {skew: -40 * time.Second, want: "its clock is 40s behind this machine's"},
		"a clock that is near":       {skew: 20 * time.Second},
		"TCP port taken":             {old: "tcp 0016", new: "tcp 1F04", want: "TCP port 7940 is taken"},
		"UDP port taken":             {old: "udp 0044", new: "udp 1F05", want: "UDP port 7941 is taken"},
		"its own agent has the port": {old: "active inactive\n", new: "active active\ntcp 1F04\n"},
		"no room for the program": {old: "bin 1000000", new: "bin 1000",
			want: "its disk is full: /usr/local/bin has 0 MiB free, and 41 are needed"},
		"no room for the record": {old: "lib 1000000", new: "lib 1000", want: "its disk is full: /var/lib"},
		"no room for an upgrade": {old: "active inactive\n", new: "active active\n", full: true, upgrade: true,
			want: "its disk is full: /usr/local/bin"},
		"full, and no upgrade": {old: "active inactive\n", new: "active active\n", full: true},
		"full, and all is there": {old: "binary \nunit \ngroup \nfree /usr/local/bin 1000000",
			new: "binary ab\nfree /usr/local/bin 0"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(spark, c.old, c.new, 1)
			if c.old != "" && text == spark {
				t.Fatalf("%q is not in the text", c.old)
			}
			if c.full {
				text = strings.ReplaceAll(text, " 1000000\n", " 100\n")
			}
			f, err := parseFacts(fmt.Sprintf("now %d.5\n%s", now.Add(c.skew).Unix(), text), now, now.Add(time.Second))
			if err != nil {
				t.Fatal(err)
			}
			err = f.evaluate(Binary{Size: 40 << 20, SHA: "ab"}, c.upgrade, []int{7940, 7941}, now)
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestFactsThatEndEarly(t *testing.T) {
	_, err := parseFacts("This account is \x1b[31mcurrently not available.\n", time.Now(), time.Now())
	if err == nil || !strings.Contains(err.Error(), "This account is ?[31mcurrently not available.") {
		t.Errorf("%v, want what the host said, without its escape", err)
	}
}

// decide: who founds, who joins whom, who must not.
func TestDecide(t *testing.T) {
	type h struct {
		cluster string // "?": not looked at
		failed  bool
	}
	for name, c := range map[string]struct {
		own    string
		hosts  []h
		founds int // -1: nobody
		failed []int
		parts  string // of each: Member, Joins, Founds, Another, - for not known
	}{
		"bare hosts": {hosts: []h{{}, {}, {}}, founds: 0, parts: "FJJ"},
		"the first is unfit": {hosts: []h{{failed: true}, {}, {}}, founds: 1, failed: []int{0},
			parts: "-FJ"},
		"the first could not be looked at": {hosts: []h{{cluster: "?", failed: true}, {}, {}}, founds: -1,
			failed: []int{0, 1, 2}, parts: "---"},
		"another could not": {hosts: []h{{}, {cluster: "?", failed: true}, {}}, founds: 0,
			failed: []int{1}, parts: "F-J"},
		"a member is named": {hosts: []h{{}, {cluster: "a"}}, founds: -1, parts: "JM"},
		"a member is named, the first is silent": {hosts: []h{{cluster: "?", failed: true}, {cluster: "a"}, {}},
			founds: -1, failed: []int{0}, parts: "-MJ"},
		"two clusters": {hosts: []h{{cluster: "a"}, {cluster: "b"}, {}}, founds: -1,
			failed: []int{1}, parts: "MAJ"},
		"from a member": {own: "a", hosts: []h{{}, {cluster: "a"}}, founds: -1, parts: "JM"},
		"from a member of another": {own: "a", hosts: []h{{cluster: "b"}, {}}, founds: -1,
			failed: []int{0}, parts: "AJ"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &fleet{}
			if c.own != "" {
				r.cfg.Cluster = &Cluster{ID: c.own}
			}
			var hosts []*host
			for i, want := range c.hosts {
				x := &host{fleet: r, target: fmt.Sprint(i), looked: want.cluster != "?"}
				if want.cluster != "?" {
					x.facts.cluster = want.cluster
				}
				if want.failed {
					x.result.Error = "unfit"
				}
				hosts = append(hosts, x)
			}
			r.decide(hosts)
			parts := ""
			for _, x := range hosts {
				parts += map[Part]string{Member: "M", Joins: "J", Founds: "F", Another: "A", "": "-"}[x.result.Part]
			}
			if parts != c.parts {
				t.Errorf("they are %s to the cluster, want %s", parts, c.parts)
			}
			for i, x := range hosts {
				wantFailed := false
				for _, f := range c.failed {
					wantFailed = wantFailed || f == i
				}
				if x.founds != (i == c.founds) || (x.result.Error != "") != wantFailed {
					t.Errorf("host %d: founds %v, error %q; want host %d to found, %v to fail", i, x.founds,
						x.result.Error, c.founds, c.failed)
				}
			}
		})
	}
}
