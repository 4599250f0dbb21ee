package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const hubAPI, hubCDN = "172.30.0.1:8080", "172.30.0.1:8081" // in the network between the hosts

// hubStandIn is what the agents of a lab take for the Hub: it runs in the network between the hosts.
type hubStandIn struct {
	l   *lab
	end func()
}

// upWithHub makes a lab, and a stand-in that begins with these arguments.
func upWithHub(t testing.TB, nodes int, standIn []string, flags ...string) (*lab, *hubStandIn) {
	t.Helper()
	hubForLabs(t)
	l := up(t, nodes, flags...)
	return l, l.hub(standIn)
}

// hubForLabs has the agents of labs that are made from now on take the stand-in for the Hub.
func hubForLabs(t testing.TB) { t.Setenv("HF_ENDPOINT", "http://"+hubAPI) }

// hub begins one.
func (l *lab) hub(standIn []string) *hubStandIn {
	l.t.Helper()
	program := filepath.Join(scratch(l.t), "hubstandin")
	if out, err := exec.Command("go", "build", "-o", program, "../../launcher/filesync/hub/hubtest/hubstandin").
		CombinedOutput(); err != nil {
		l.t.Fatalf("build hubstandin: %v: %s", err, out)
	}
	run := l.start("switch", append([]string{program, "--listen", hubAPI, "--cdn", hubCDN}, standIn...)...)
	h := &hubStandIn{l: l, end: sync.OnceFunc(func() {
		_ = run.cmd.Process.Signal(os.Interrupt)
		run.within(24 * time.Hour)
	})}
	l.t.Cleanup(h.end) // before the lab's
	repo, _, _ := strings.Cut(standIn[len(standIn)-1], "=")
	eventually(l.t, time.Minute, "the stand-in has "+repo, func() bool {
		return l.on("switch", "curl", "-sf", "http://"+hubAPI+"/api/models/"+repo+"/revision/main").code == 0
	})
	return h
}

// sent is how many bytes of files have left it.
func (h *hubStandIn) sent() (n int64) {
	var seen struct{ Sent int64 }
	_ = json.Unmarshal([]byte(h.l.on("switch", "curl", "-s", "http://"+hubAPI+"/_standin/seen").out), &seen)
	return seen.Sent
}
