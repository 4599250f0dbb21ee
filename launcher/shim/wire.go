package shim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
)

// protocolVersion is 1 for ever: additions are new ops, or new fields that an old shim
// ignores.
const protocolVersion = 1

// maxRequest bounds one request line: launcher's limits for the most ranks would be more,
// but no kernel would exec such ranks on one node.
const maxRequest = 64 << 20

// Errors of a shim, or of a folder without one.
var (
	ErrGone       = errors.New("no shim lives here")
	ErrAlive      = errors.New("its shim still lives")
	ErrStuck      = errors.New("killed in vain")
	ErrMayHaveRun = errors.New("an earlier shim of this attempt may have started its ranks: replay its journal, " +
		"and reap")
	ErrEnded     = errors.New("the attempt was ended before it was started")
	ErrRunning   = errors.New("the attempt has not ended")
	ErrNoRank    = errors.New("no such rank is running")
	ErrRequest   = errors.New("the shim did not understand the request")
	ErrUnknownOp = errors.New("the shim is older than this request")
	ErrRefused   = errors.New("the shim could not do it")
)

// codes are the protocol's names of errors.
var codes = []struct {
	code string
	err  error
}{
	{"may-have-run", ErrMayHaveRun},
	{"ended", ErrEnded},
	{"running", ErrRunning},
	{"no-rank", ErrNoRank},
	{"bad-request", ErrRequest},
	{"unknown-op", ErrUnknownOp},
	{"gone", ErrGone},
	{"no-fence", launcher.ErrNoBarrier},
	{"refused", ErrRefused}, // any other
}

type request struct {
	V     int            `json:"v"`
	ID    int64          `json:"id"`
	Op    string         `json:"op"`
	Ranks []Rank         `json:"ranks,omitempty"`    // start, contain, start-more, contain-more, again
	Grace time.Duration  `json:"grace_ns,omitempty"` // end
	Cause string         `json:"cause,omitempty"`    // end, lease
	Rank  *int           `json:"rank,omitempty"`     // signal; AllRanks = all
	Sig   syscall.Signal `json:"signal,omitempty"`   // signal; end: INT, to begin with
	From  int            `json:"from,omitempty"`     // events

	Until launcher.Uptime `json:"until_ns,omitempty"` // lease

	Offset int64            `json:"offset,omitempty"` // input
	Data   []byte           `json:"data,omitempty"`   // input
	End    bool             `json:"end,omitempty"`    // input
	Window *launcher.Window `json:"window,omitempty"` // resize

	Session string           `json:"guest,omitempty"` // exec, and the ops that begin with it
	Argv    []text           `json:"argv,omitempty"`  // exec
	Env     []text           `json:"env,omitempty"`   // exec
	Stdin   bool             `json:"stdin,omitempty"` // exec
	TTY     *launcher.Window `json:"tty,omitempty"`   // exec

	Barrier *mpi.Barrier `json:"fence,omitempty"` // fence, fence-pass
}

// The ops.
const (
	opHello   = "hello"
	opHold    = "hold"
	opStart   = "start"
	opContain = "contain" // a start by another name: an older shim, which knows no containers, would exec on the host
	opEnd     = "end"
	opSignal  = "signal"
	opInput   = "input"
	opInputAt = "input-at"
	opResize  = "resize"
	opEvents  = "events"
	opRelease = "release"
	opLease   = "lease"

	opStartMore   = "start-more"
	opContainMore = "contain-more"
	opAgain       = "again" // for ranks on the host and in containers

	opExec       = "exec"
	opExecInput  = "exec-input"
	opExecSignal = "exec-signal"
	opExecResize = "exec-resize"

	opBarrier     = "fence"
	opBarrierLast = "fence-last"
	opBarrierPass = "fence-pass"
)

type response struct {
	V     int    `json:"v"`
	ID    int64  `json:"id"`
	OK    bool   `json:"ok,omitempty"`
	Error *fault `json:"error,omitempty"`
	Hello *hello `json:"hello,omitempty"`
	Event *Event `json:"event,omitempty"` // of events: many, before the ok
	At    *int64 `json:"at,omitempty"`    // of input-at

	Began   *began         `json:"began,omitempty"`  // of exec: the first line
	Output  *output        `json:"output,omitempty"` // of exec: many, before the ok
	Exit    *launcher.Exit `json:"exit,omitempty"`   // of exec: beside the ok
	Barrier *mpi.Barrier   `json:"fence,omitempty"`  // of fence, fence-last
}

type began struct {
	PID int `json:"pid"`
}

type output struct {
	Stream string `json:"stream"`
	Data   []byte `json:"data"`
}

type hello struct {
	Key   launcher.Key `json:"key"`
	PID   int          `json:"pid"`
	Phase string       `json:"phase"`
	// Cgroup is the ranks' group of cgroup v2, as a path in the mounted tree.
	Cgroup string `json:"cgroup,omitempty"`
}

type fault struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

func faultOf(err error) *fault {
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return &fault{c.code, err.Error()}
		}
	}
	return &fault{"refused", err.Error()}
}

// err restores the sentinel on the client's side, with the shim's text.
func (f fault) err() error {
	for _, c := range codes {
		if c.code == f.Code {
			return &remoteError{f.Text, c.err}
		}
	}
	return &remoteError{f.Text, ErrRefused}
}

type remoteError struct {
	text string
	kind error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.kind }

// decodeRequest reads one line. The request that it returns with an error has the id to
// answer under, as far as it could be read.
func decodeRequest(line []byte) (request, error) {
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return r, fmt.Errorf("read request: %w: %w", ErrRequest, err)
	}
	if r.V != protocolVersion {
		return r, fmt.Errorf("read request: %w: version %d, this shim speaks %d", ErrRequest, r.V, protocolVersion)
	}
	switch r.Op {
	case opHello, opHold, opEvents, opRelease:
	case opStart, opContain, opStartMore, opContainMore:
		if err := validRanks(r.Ranks); err != nil {
			return r, fmt.Errorf("%s: %w: %w", r.Op, ErrRequest, err)
		}
		if hasContainer(r.Ranks) != (r.Op == opContain || r.Op == opContainMore) {
			return r, fmt.Errorf("%s: %w: ops for ranks in containers are %s and %s", r.Op,
				ErrRequest, opContain, opContainMore)
		}
	case opAgain:
		if err := validRanks(r.Ranks); err != nil {
			return r, fmt.Errorf("again: %w: %w", ErrRequest, err)
		}
		if slices.ContainsFunc(r.Ranks, func(r Rank) bool { return r.Again == 0 }) {
			return r, fmt.Errorf("again: %w: want how many incarnations each rank has had", ErrRequest)
		}
	case opEnd:
		if r.Grace < 0 {
			return r, fmt.Errorf("end: %w: grace %s is below zero", ErrRequest, r.Grace)
		}
	case opLease:
		if r.Until <= 0 || r.Cause == "" {
			return r, fmt.Errorf("lease: %w: want the moment that it runs out, and a cause", ErrRequest)
		}
	case opSignal:
		if r.Rank == nil || *r.Rank < AllRanks || r.Sig < 1 || r.Sig > 64 {
			return r, fmt.Errorf("signal: %w: want a rank, or %d for all, and a signal from 1 to 64", ErrRequest, AllRanks)
		}
	case opInput:
		if r.Rank == nil || *r.Rank < 0 || r.Offset < 0 {
			return r, fmt.Errorf("input: %w: want a rank, and an offset of 0 or more", ErrRequest)
		}
	case opInputAt:
		if r.Rank == nil || *r.Rank < 0 {
			return r, fmt.Errorf("input-at: %w: want a rank", ErrRequest)
		}
	case opResize:
		if r.Rank == nil || *r.Rank < 0 || r.Window == nil {
			return r, fmt.Errorf("resize: %w: want a rank, and a window", ErrRequest)
		}
	case opBarrier, opBarrierLast:
	case opBarrierPass:
		if r.Barrier == nil || r.Barrier.Number < 1 {
			return r, fmt.Errorf("fence-pass: %w: want a barrier from 1 up", ErrRequest)
		}
	case opExec, opExecInput, opExecSignal, opExecResize:
		return r, r.validSession()
	default:
		return r, fmt.Errorf("op %q: %w", r.Op, ErrUnknownOp)
	}
	return r, nil
}

// validSession checks what an op about an exec session needs.
func (r request) validSession() error {
	want := ""
	switch {
	case r.Session == "" || len(r.Session) > 64:
		want = "an exec session's name of 1 to 64 bytes"
	case r.Op == opExec && (r.Rank == nil || *r.Rank < 0 || len(r.Argv) == 0 || r.Argv[0] == ""):
		want = "a rank and a command"
	case r.Op == opExec && (hasNUL(untexts(r.Argv)) || hasNUL(untexts(r.Env))):
		want = "no NUL byte in command and environment"
	case r.Op == opExecInput && r.Offset < 0:
		want = "an offset of 0 or more"
	case r.Op == opExecSignal && (r.Sig < 1 || r.Sig > 64):
		want = "a signal from 1 to 64"
	case r.Op == opExecResize && r.Window == nil:
		want = "a window"
	}
	if want != "" {
		return fmt.Errorf("%s: %w: want %s", r.Op, ErrRequest, want)
	}
	return nil
}

// readLine reads up to a newline, and no more than most bytes.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > most:
			return nil, fmt.Errorf("read request: %w: longer than %d bytes", ErrRequest, most)
		case err == nil:
			return line, nil
		case err != bufio.ErrBufferFull:
			return nil, err
		}
	}
}

func writeLine(w io.Writer, v any) error {
	line, err := marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
