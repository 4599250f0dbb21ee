// Package checkup asks all nodes how they are: what is wrong (doctor), what their
// devices counted, and the evidence for a report.
//
// It decides when each member is asked and when it runs its checks, what --fix may do to a
// machine, and where a load may run.
//
// It must not decide what a fact means (envgen/doctor does), keep anything, or need a
// leader.
package checkup

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/survey"
	"github.com/sparkrun/sparkrun/envgen/doctor"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous/dial"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// Config of a checkup.
type Config struct {
	Self    launcher.NodeID
	Host    string
	Boot    string
	Version string
	Began   time.Time // when this agent started
	// Management is an interface or address, as the user asked; see
	// envgen.Management. It is not touched.
	Management string
	Machine    *doctor.Reader // facts about this machine other than its NICs
	Survey     *survey.Survey
	Recent     *Recent // the end of this agent's log
	Dial       *dial.Dialer
	// Status lists the members; Listeners are the ports of all members' agents.
	Status    func(context.Context, wire.Caller, wire.StatusRequest) (wire.Status, error)
	Listeners func() []doctor.Listener
	// Usage is what this machine uses now, Ledger its ranks. Allow refuses users who may run nothing here.
	Usage  func(context.Context) (usage.Machine, error)
	Ledger func() []launcher.LedgerEntry
	Allow  func(ctx context.Context, user string) error
	Logger *slog.Logger
}

// Checkup asks all nodes, and answers for this one.
type Checkup struct {
	cfg     Config
	loading atomic.Bool // a load runs here
}

// New makes one.
func New(cfg Config) *Checkup { return &Checkup{cfg: cfg} }

// Calls are the procedures it answers.
func (u *Checkup) Calls() []wire.Call {
	return append(wire.Counters.Serve(u.cfg.Survey.Counters),
		wire.Report.Serve(u.Report), wire.Doctor.Serve(u.Doctor),
		wire.NodeReport.Serve(u.NodeReport), wire.Examine.Serve(u.Examine), wire.MendNode.Serve(u.Mend),
		wire.Load.Serve(u.Load), wire.NodeLoad.Serve(u.NodeLoad),
	)
}

// each runs fn for 0..k-1 side by side and waits for all.
func each(k int, fn func(i int)) {
	var wg sync.WaitGroup
	for i := range k {
		wg.Go(func() { fn(i) })
	}
	wg.Wait()
}
