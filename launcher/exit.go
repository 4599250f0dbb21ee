package launcher

import (
	"cmp"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// Exit codes with a meaning of their own. All others are codes of ranks.
const (
	ExitTimedOut    = 124 // the job's time limit passed; as timeout(1)
	ExitOwnFailure  = 125 // sparkrun could not do what was asked; as docker run
	ExitInterrupted = 130 // the user pressed Ctrl-C
	exitSignalBase  = 128 // 128+n: ended by signal n; as a shell, srun and mpirun
)

// Exit is how one rank ended.
type Exit struct {
	Code   int `json:"code"`             // 0..255, meaningless when Signal is set
	Signal int `json:"signal,omitempty"` // that killed it, or 0
	// ByUs: sparkrun had begun to end the attempt before this rank ended, so that its code
	// says nothing about the cause.
	ByUs bool `json:"by_us,omitempty"`
	// Error is set when the rank never ran: exec itself was refused.
	Error string `json:"error,omitempty"`
	// Cause is set when the node itself decided to end the rank, and says why. ByUs is then
	// false: Cause explains the failure.
	Cause string `json:"cause,omitempty"`
	// Deliberate: an MPI rank that left by its own decision between MPI_Init and
	// MPI_Finalize, by MPI_Abort or an exit of its own. Peers may crash as its connections
	// close.
	Deliberate bool `json:"deliberate,omitempty"`

	// What the node found out about a rank that failed by itself, bounded as below. Except
	// for LostPeer all of it is for people.
	Words string `json:"words,omitempty"` // why, in a sentence: out of memory, an Xid, an exception
	Trace string `json:"trace,omitempty"` // of the exception, from TORCHELASTIC_ERROR_FILE
	Last  string `json:"last,omitempty"`  // the last lines that it wrote
	// LostPeer: it only reports that another rank has gone, so that one is the cause, if
	// anything is known about it.
	LostPeer bool `json:"lost_peer,omitempty"`
}

// Bounds on the texts about one failed rank; what is longer is cut.
const (
	MaxWordsBytes = 400
	MaxTraceBytes = 6 << 10 // its end: the innermost frames and the exception
	MaxLastLines  = 10
	MaxLineBytes  = 300
)

// Bare leaves out the long texts for people.
func (e Exit) Bare() Exit {
	e.Trace, e.Last = "", ""
	return e
}

// Status is the exit code that a shell would give: 128+n for signal n. A rank that the node
// decided to end has not completed, whatever its code.
func (e Exit) Status() int {
	switch {
	case e.Error != "":
		return ExitOwnFailure
	case e.Signal != 0:
		return exitSignalBase + e.Signal
	case e.Cause != "" && e.Code == 0: // it was ended, and exited normally
		return ExitOwnFailure
	}
	return e.Code
}

// Failed reports whether the rank ended otherwise than by exit 0.
func (e Exit) Failed() bool { return e.Status() != 0 }

// String describes it: "exit 7", "killed by SIGKILL (9)", "exit 1: RuntimeError: out of
// luck".
func (e Exit) String() string {
	if e.Words != "" && e.Error == "" {
		return e.how() + ": " + e.Words
	}
	return e.how()
}

func (e Exit) how() string {
	switch {
	case e.Error != "":
		return e.Error
	case e.Cause != "":
		return e.Cause
	case e.Signal != 0:
		return fmt.Sprintf("killed by %s (%d)", signalName(e.Signal), e.Signal)
	}
	return fmt.Sprintf("exit %d", e.Code)
}

var signalNames = map[int]string{
	1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
	9:  "SIGKILL",
	10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU",
	25: "SIGXFSZ", 31: "SIGSYS",
}

func signalName(n int) string {
	if s, ok := signalNames[n]; ok {
		return s
	}
	return syscall.Signal(n).String()
}

// RankExit is an exit with its rank and time.
type RankExit struct {
	Rank int    `json:"rank"`
	Host string `json:"host"`
	// Time is by the leader's clock: the node's time, less the measured difference of the
	// two clocks. The error is at most half a round trip between them.
	Time time.Time `json:"time"`
	Exit Exit      `json:"exit"`
}

// atOnce is how far apart two exits must be for their order to mean something. A death is
// seen when its shim is scheduled, on a busy machine up to 50 ms after the rank had closed
// its connections; by then the others had noticed that, and exited within 2 ms.
const atOnce = 100 * time.Millisecond

// crashWithin is how long before an MPI rank's deliberate exit a crash of a peer may be
// seen and still be its effect. A deliberate exit is known once all that the rank has sent
// its process manager was read, which takes its shim one more turn than a death.
const crashWithin = time.Second

// RootCause picks the exit that explains an attempt's failure: the earliest failure among
// the ranks that ended by themselves, those that only report a lost peer coming last; nil
// if there is none. Of those that failed at the same time as the earliest, the first rule
// that applies decides:
//   - a signal that no program sends itself over a lost peer;
//   - an exit unlike all the others, which are alike: the others only noticed it;
//   - the time, then the rank, so that every observer picks the same.
//
// A crash by such a signal gives way to the first MPI rank that left deliberately within
// crashWithin: with MPICH 5 those that lose a peer die of SIGSEGV. A reaction to a lost
// peer is no such decision.
func RootCause(exits []RankExit) *RankExit {
	var failed []RankExit
	for _, e := range exits {
		if e.Exit.Failed() && !e.Exit.ByUs {
			failed = append(failed, e)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	slices.SortStableFunc(failed, func(a, b RankExit) int {
		switch {
		case a.Exit.LostPeer && !b.Exit.LostPeer:
			return 1
		case b.Exit.LostPeer && !a.Exit.LostPeer:
			return -1
		}
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Rank, b.Rank))
	})
	root := failed[0]
	within := func(e RankExit, d time.Duration) bool {
		return e.Exit.LostPeer == failed[0].Exit.LostPeer && e.Time.Sub(failed[0].Time) <= d
	}
	together := slices.DeleteFunc(slices.Clone(failed), func(e RankExit) bool { return !within(e, atOnce) })
	if i := slices.IndexFunc(together, func(e RankExit) bool { return e.Exit.struck() }); i >= 0 {
		root = together[i]
	} else if i := oddOneOut(together); i >= 0 {
		root = together[i]
	}
	if root.Exit.crashed() {
		if i := slices.IndexFunc(failed, func(e RankExit) bool {
			return e.Exit.Deliberate && within(e, crashWithin)
		}); i >= 0 {
			root = failed[i]
		}
	}
	return &root
}

// crashed reports whether a program failed by an error of its own.
func (e Exit) crashed() bool {
	switch syscall.Signal(e.Signal) {
	case syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGABRT, syscall.SIGPIPE:
		return e.Cause == "" && e.Error == ""
	}
	return false
}

// struck reports whether something outside the program ended it: a program that notices a
// lost peer exits or aborts.
func (e Exit) struck() bool {
	switch syscall.Signal(e.Signal) {
	case syscall.SIGKILL, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGILL, syscall.SIGFPE, syscall.SIGSYS:
		return true
	}
	return e.Cause != "" || e.Error != ""
}

// oddOneOut finds the one exit of three or more that is unlike the others, which are all
// alike; -1 if there is none.
func oddOneOut(exits []RankExit) int {
	if len(exits) < 3 {
		return -1
	}
	odd, alike := -1, map[string]int{}
	for _, e := range exits {
		alike[e.Exit.String()]++
	}
	for i, e := range exits {
		if alike[e.Exit.String()] == 1 {
			odd = i
		}
	}
	if len(alike) != 2 {
		return -1
	}
	return odd
}
