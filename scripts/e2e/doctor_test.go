package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// diagnosis is what `doctor --json` says.
type diagnosis struct {
	Nodes []struct {
		Host  string          `json:"host"`
		Error string          `json:"error"`
		Facts json.RawMessage `json:"facts"`
	} `json:"nodes"`
	Findings []finding `json:"findings"`
	Mended   []struct {
		Host    string `json:"host"`
		Command string `json:"command"`
		Error   string `json:"error"`
	} `json:"mended"`
}

type finding struct {
	Code     string `json:"code"`
	Severity string `json:"severity"`
	Host     string `json:"host"`
	Device   string `json:"device"`
	Text     string `json:"text"`
	Evidence string `json:"evidence"`
	Remedy   string `json:"remedy"`
}

// find gives the finding of a code; nil where there is none.
func (d diagnosis) find(code string) *finding {
	for _, f := range d.Findings {
		if f.Code == code {
			return &f
		}
	}
	return nil
}

func (l *lab) doctor(host string, flags ...string) (diagnosis, result) {
	l.t.Helper()
	r := l.on(host, append([]string{"sparkrun", "doctor", "--json"}, flags...)...)
	var d diagnosis
	if err := json.Unmarshal([]byte(r.out), &d); err != nil {
		l.t.Fatalf("doctor --json: %v\n%s", err, r)
	}
	return d, r
}

// The doctor, from one machine: what packets show and no inventory does, what
// --fix mends, and what it says of machines that are away.
func TestDoctor(t *testing.T) {
	l := up(t, 3)
	// The probe needs some seconds to see every cable from both ends.
	var last result
	sound := func() bool {
		last = l.on("spark1", "sparkrun", "doctor", "--quiet")
		return last.code == 0
	}
	eventually(t, time.Minute, "three sound machines", sound)
	if last.out != "" {
		t.Errorf("--quiet says of sound machines: %s", last)
	}
	d, _ := l.doctor("spark2")
	for _, n := range d.Nodes {
		if n.Error != "" || len(n.Facts) == 0 {
			t.Errorf("%s was not examined: %q", n.Host, n.Error)
		}
	}
	if len(d.Nodes) != 3 {
		t.Errorf("%d machines were examined", len(d.Nodes))
	}

	// The switch's port takes less than the NICs say, and a stranger on the
	// switch has spark3's address.
	l.on("switch", "ip", "link", "set", "spark2.p0", "mtu", "1500").must(t)
	l.on("switch", "ip", "addr", "add", "192.168.101.13/24", "dev", "br-fabric").must(t)
	d, r := l.doctor("spark1")
	f := d.find("path-mtu")
	if r.code != 1 || f == nil || f.Host != "spark2" || f.Device != "enp1s0f0np0" || f.Severity != "error" ||
		!strings.Contains(f.Text, "spark1") || !strings.Contains(f.Text, "spark3") || !strings.Contains(f.Remedy, "8972") {
		t.Errorf("a switch with a small MTU: exit %d, %+v", r.code, f)
	}
	if f := d.find("address-taken"); f == nil || f.Host != "spark3" || f.Device != "enP2p1s0f0np0" || f.Severity != "error" {
		t.Errorf("a stranger's address: %+v", f)
	}
	l.on("switch", "ip", "link", "set", "spark2.p0", "mtu", "9000").must(t)
	l.on("switch", "ip", "addr", "del", "192.168.101.13/24", "dev", "br-fabric").must(t)

	// One machine's own MTU, a NIC that is set down: named, and mended by root alone.
	l.on("spark2", "ip", "link", "set", "enP2p1s0f0np0", "mtu", "1500").must(t)
	l.on("spark3", "ip", "link", "set", "enp1s0f0np0", "down").must(t)
	eventually(t, 30*time.Second, "the NIC that is set down is named", func() bool {
		d, r = l.doctor("spark1")
		f := d.find("twin-down")
		return f != nil && f.Host == "spark3" && strings.Contains(f.Remedy, "enp1s0f0np0 up")
	})
	if f := d.find("path-mtu"); f == nil || f.Host != "spark2" || f.Device != "enP2p1s0f0np0" || f.Severity != "warning" ||
		!strings.Contains(f.Text, "spark1") || !strings.Contains(f.Remedy, "mtu 9000") {
		t.Errorf("a NIC with a small MTU: %+v", f)
	}
	d, r = l.doctor("spark1", "--fix")
	mended := map[string]bool{}
	for _, m := range d.Mended {
		mended[m.Host+": "+m.Command+m.Error] = true
	}
	if r.code != 0 || !mended["spark3: ip link set dev enp1s0f0np0 up"] || !mended["spark2: ip link set dev enP2p1s0f0np0 mtu 9000"] || len(mended) != 2 {
		t.Errorf("doctor --fix: exit %d, mended %v, findings %+v", r.code, mended, d.Findings)
	}
	l.on("spark3", "sh", "-c", "ip -o link show enp1s0f0np0 | grep -q LOWER_UP").must(t)

	// A machine whose agent is away is a finding; on it, the doctor looks alone.
	l.do("kill", "spark3", "--agent")
	if r := l.on("spark1", "sparkrun", "doctor", "--node", "spark3", "-q"); r.code != 1 || !strings.Contains(r.out, "node-away  spark3") {
		t.Errorf("a machine without its agent, from another: %s", r)
	}
	if r := l.on("spark3", "sparkrun", "doctor"); r.code != 1 || !strings.Contains(r.out, "no-agent") || !strings.Contains(r.err, "this machine alone") {
		t.Errorf("a machine without its agent, by itself: %s", r)
	}
	if r := l.on("spark1", "sparkrun", "doctor", "--node", "spark9"); r.code != 1 || !strings.Contains(r.err, "spark9") {
		t.Errorf("a machine that is no member: %s", r)
	}
	if r := l.on("spark1", "sparkrun", "doctor", "--explain", "no-such-code"); r.code != 2 {
		t.Errorf("a code that is none: %s", r)
	}
}
