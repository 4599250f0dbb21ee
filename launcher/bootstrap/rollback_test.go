package bootstrap

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
)

// fakeMembers are hosts of one cluster as far as an upgrade looks at them; scripts/up_test has real ones.
type fakeMembers struct {
	mu      sync.Mutex
	release map[string]Release // by program
	members []*fakeMember
	order   []string // whose agent was restarted
}

type fakeMember struct {
	all                       *fakeMembers
	name, role                string
	binary, agent, kept, next string // programs, by their SHA
	fails                     bool   // another program's agent does not start here
	armed                     bool   // it goes back by itself
}

func (m *fakeMember) answer(command, input string) (out, errs string, code uint32) {
	m.all.mu.Lock()
	defer m.all.mu.Unlock()
	version := func(program string) string {
		b, _ := json.Marshal(m.all.release[program])
		return string(b)
	}
	has := func(words string) bool { return strings.Contains(command, words) }
	switch {
	case has("sh -s"):
		return fmt.Sprintf("kernel Linux\nmachine x86_64\nhost %s\nuid 0\nuser root\nsystemd yes\nactive active\nenabled enabled\nbinary %s\nunit %s\nstate yes\ngroupthere yes\nend yes\n",
			m.name, m.binary, sumOf("unit")), "", 0
	case has("cat " + memberPath):
		return "the cluster", "", 0
	case has("sparkrun status --json"):
		return m.all.status(m.name), "", 0
	case has("put " + nextPath):
		m.next = sumOf(input)
		return version(m.next), "", 0
	case has("mv " + nextPath):
		m.binary = m.next
	case has("rm -f " + nextPath):
		m.next = ""
	case has(binaryPath + " version --json"):
		return version(m.binary), "", 0
	case has(`mkdir -m 700 "$d.new"`):
		m.kept = m.agent
	case has("sh "+previousPath+"/rollback") && !has("systemd-run"):
		m.binary, m.agent, m.armed = m.kept, m.kept, false
	case has("systemctl restart sparkrun"):
		m.all.order = append(m.all.order, m.name)
		if !has("systemd-run --quiet --collect --unit=" + rollbackUnit) {
			return "", "nothing is armed", 1
		}
		m.armed = true
		if m.fails {
			return "", "open the record: it is damaged", 1
		}
		m.agent = m.binary
	case has("systemctl stop " + rollbackUnit):
		if !has(m.agent) {
			return "", "its agent does not run the program that was installed", 1
		}
		m.armed = false
	case has("sha256sum"):
		return m.agent + "\n", "", 0
	default:
		return "", "what is " + command + "?", 1
	}
	return "", "", 0
}

func (all *fakeMembers) status(self string) string {
	st := standing{Cluster: "the cluster", Self: self}
	for _, m := range all.members {
		r := all.release[m.agent]
		st.Nodes = append(st.Nodes,
			peer{Host: m.name, State: "ready", Role: m.role, Version: r.Version, Protocol: r.Protocol})
		if m.role == "leader" {
			st.Leader = m.name
		}
	}
	b, _ := json.Marshal(st)
	return string(b)
}

func TestUpgradeGoesBack(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sparkrun")
	if err := os.WriteFile(program, []byte("next"), 0o755); err != nil {
		t.Fatal(err)
	}
	type want struct {
		order    string
		releases string // at the end, of the agents
		back     string // who was put back
		errors   []string
	}
	for name, c := range map[string]struct {
		next      Release
		fails     string // on whom its agent does not start
		halfway   string // an upgrade of whom was broken off: it has the release, and is to go back
		downgrade bool
		apart     bool
		want      want
	}{
		"all": {next: Release{"1.0.1", 2}, want: want{"c b a", "1.0.1 1.0.1 1.0.1", "", []string{"", "", ""}}},
		"one was broken off": {next: Release{"1.0.1", 2}, halfway: "c",
			want: want{"b a", "1.0.1 1.0.1 1.0.1", "", []string{"", "", ""}}},
		"one in the middle does not start": {next: Release{"1.0.1", 2}, fails: "b",
			want: want{"c b", "1.0.0 1.0.0 1.0.1", "b", []string{
				"failed: nothing was changed here", "it is damaged: release 1.0.0 is back in its place, and ready", ""}}},
		"an older one": {next: Release{"0.9", 2}, want: want{"", "1.0.0 1.0.0 1.0.0", "", []string{
			"whose turn was before, failed", "whose turn was before, failed",
			"it has release 1.0.0 (protocol 2), and 0.9 (protocol 2) is older"}}},
		"an older one, with consent": {next: Release{"0.9", 1}, downgrade: true,
			want: want{"c b a", "0.9 0.9 0.9", "", []string{"", "", ""}}},
		"too far apart": {next: Release{"3.0", 4}, apart: true, want: want{"", "1.0.0 1.0.0 1.0.0", "", []string{
			"whose turn was before, failed", "whose turn was before, failed",
			"release 3.0 would not work together with a, which has 1.0.0: too far apart"}}},
	} {
		t.Run(name, func(t *testing.T) {
			all := &fakeMembers{release: map[string]Release{sumOf("old"): {"1.0.0", 2}, sumOf("next"): c.next}}
			h := home(t)
			cfg := Config{
				SSH: SSH{Home: h, User: "root"}, Unit: "unit",
				Binary:    func(string) (Binary, error) { return Binary{Path: program, SHA: sumOf("next"), Size: 4}, nil },
				ClusterOf: func(b []byte) (string, error) { return string(b), nil },
				Upgrade: &Upgrade{Downgrade: c.downgrade, Together: func(int, int) error {
					if c.apart {
						return fmt.Errorf("too far apart")
					}
					return nil
				}},
			}
			login, known := loginKey(t, h, "id_ed25519"), ""
			for i, role := range []string{"leader", "voter", ""} {
				m := &fakeMember{all: all, name: string(rune('a' + i)), role: role, binary: sumOf("old"), agent: sumOf("old")}
				m.fails = m.name == c.fails
				if m.name == c.halfway {
					m.binary, m.agent, m.armed = sumOf("next"), sumOf("next"), true
				}
				all.members = append(all.members, m)
				key := ed25519Key(t)
				s := serve(t, serverConfig{keys: []ssh.Signer{key}, login: login, answer: m.answer})
				known += line(s.addr, key)
				cfg.Targets = append(cfg.Targets, "root@"+s.addr)
			}
			write(t, h, "known_hosts", known)
			got, err := Up(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			releases, back := "", ""
			for i, r := range got {
				releases += " " + all.release[all.members[i].agent].Version
				if r.RolledBack {
					back += all.members[i].name
				}
				if w := c.want.errors[i]; (r.Error == "") != (w == "") || !strings.Contains(r.Error, w) {
					t.Errorf("%s: error %q, want %q", r.Host, r.Error, w)
				}
				if r.Part != Member || r.Release != all.release[all.members[i].agent].Version || r.Ready != (r.Error == "") {
					t.Errorf("%s: %+v", r.Host, r)
				}
				if all.members[i].armed {
					t.Errorf("%s: it will go back", r.Host)
				}
				if all.members[i].binary != all.members[i].agent {
					t.Errorf("%s: another program lies there than its agent is", r.Host)
				}
			}
			if diff := cmp.Diff([]string{c.want.order, c.want.releases, c.want.back},
				[]string{strings.Join(all.order, " "), strings.TrimSpace(releases), back}); diff != "" {
				t.Errorf("order, releases, put back (-want +got):\n%s", diff)
			}
		})
	}
}
