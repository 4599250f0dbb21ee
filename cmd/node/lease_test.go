package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A node hears no leader any more, for its agent is gone: its ranks end by their
// lease, and only then the job goes on elsewhere, by itself. A job without a lease runs
// on there. The ranks bear witness in a file that all append to.
func TestLeaseRunsOutWithTheAgent(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	one, lost := c.hosts[0], c.hosts[1]
	one.waitVoters(3)
	witness := filepath.Join(t.TempDir(), "witness")
	lines := func() string {
		b, _ := os.ReadFile(witness)
		return strings.Join(strings.Fields(string(b)), " ")
	}
	plain := command(1, 1, "sleep 600")
	plain.On = []string{"spark2"}
	plain.NodeTimeout = launcher.Never
	followed := make(chan *rendezvous.Outcome, 1)
	go func() { followed <- one.run(plain) }()
	leased := command(2, 1, `[ $TRY = 1 ] && echo again >>`+witness+` && exit 0
		[ $HOST = spark2 ] || exec sleep 600
		trap "echo end >>`+witness+`; exit 0" TERM
		echo start >>`+witness+`
		while :; do sleep 0.05; done`)
	leased.On, leased.Spare, leased.MaxRestarts = []string{"spark2", "spark1", "spark3"}, 1, 1
	leased.OnPartition, leased.NodeTimeout = launcher.EndOnPartition, 8*time.Second
	main := leased.MainStage()
	main.Env = append(main.Env, launcher.Var{Name: "TRY", Value: launcher.Of(launcher.RestartCount), Source: "test"})

	done := make(chan *rendezvous.Outcome, 1)
	go func() { done <- one.run(leased) }()
	one.eventually("the first try runs", func() bool { return lines() == "start" })
	one.eventually("the job without a lease runs", func() bool {
		j, known := one.now().record.Job(plain.ID)
		return known && j.Plan.Generation == 1 && len(lost.now().agent.Ledger()) == 2
	})
	time.Sleep(leased.NodeTimeout + time.Second) // renewed, it outlives its lease
	if got := lines(); got != "start" {
		t.Fatalf("with a leader that is heard: %s", got)
	}
	lost.crash()
	out := <-done
	if got := lines(); got != "start end again again" || out.End != rendezvous.Completed {
		t.Errorf("witness: %s; outcome %+v", got, out)
	}
	lost.start()
	lost.wait(3)
	one.eventually("the first try is forgotten, and the job without a lease runs on", func() bool {
		ledger := lost.now().agent.Ledger()
		return len(ledger) == 1 && ledger[0].Job == plain.ID && ledger[0].Phase == launcher.PhaseStarted
	})
	cl := one.client()
	defer cl.Close()
	if _, err := wire.Stop.Call(t.Context(), cl, wire.StopRequest{Job: string(plain.ID), Grace: new(time.Duration)}); err != nil {
		t.Fatal(err)
	}
	if out := <-followed; out.End != rendezvous.Stopped {
		t.Errorf("the job without a lease: %+v", out)
	}
}
