package rendezvous

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// A backup is the record in a file of three lines of text: what the backup is of, the
// state, and the SHA-256 of these two lines, as `head -n 2 FILE | sha256sum` prints it.
// It has no keys and no tokens: a restored token that was used up since could be used
// again.

const (
	// BackupFormat names the form of the file.
	BackupFormat = "sparkrun-record/1"
	// MaxBackup is the largest file in bytes: twice MaxHistory jobs of MaxEntryBytes
	// each.
	MaxBackup = 256 << 20
)

// BackupHead says what a backup is of.
type BackupHead struct {
	Format  string         `json:"format"`
	Cluster string         `json:"cluster"`
	Epoch   launcher.Epoch `json:"epoch"`
	Index   uint64         `json:"index"`   // of the last entry in it
	Taken   time.Time      `json:"taken"`   // the leader's clock
	Host    string         `json:"host"`    // the host it was copied from: the leader
	Version string         `json:"version"` // of the sparkrun that wrote it
}

// ErrBackup: the file is not a whole backup that this version can read.
var ErrBackup = errors.New("not a snapshot to restore from")

// Backup renders the record for a file. The caller sets Host, Taken and Version.
func (r *Record) Backup(h BackupHead) ([]byte, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.s.Cluster == "" {
		return nil, errors.New("write snapshot: there is no cluster in the record yet")
	}
	h.Format, h.Cluster, h.Epoch, h.Index = BackupFormat, r.s.Cluster, r.s.Epoch, r.s.Index
	s := r.s
	s.Tokens = map[string]Token{}
	var b bytes.Buffer
	enc := json.NewEncoder(&b) // a line each
	enc.SetEscapeHTML(false)
	if err := errors.Join(enc.Encode(h), enc.Encode(s)); err != nil {
		return nil, fmt.Errorf("write snapshot: %w", err)
	}
	if b.Len() > MaxBackup-100 {
		return nil, fmt.Errorf("write snapshot: %d bytes, at most %d", b.Len(), MaxBackup-100)
	}
	fmt.Fprintf(&b, "%s\n", sumOf(b.Bytes()))
	return b.Bytes(), nil
}

func sumOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// Backup is a file that has been read and checked as a whole.
type Backup struct {
	BackupHead
	Size int64  // of the file, in bytes
	Sum  string // SHA-256 of its first two lines
	s    state
}

// ReadBackup reads a backup and checks all of it: size, sum, format, and that its first
// line describes its state. Its errors are ErrBackup, or the reader's.
func ReadBackup(r io.Reader) (Backup, error) {
	var b Backup
	all, err := io.ReadAll(io.LimitReader(r, MaxBackup+1))
	if err != nil {
		return b, err
	}
	bad := func(format string, args ...any) (Backup, error) {
		return Backup{}, fmt.Errorf("%w: %s", ErrBackup, fmt.Sprintf(format, args...))
	}
	lines := bytes.SplitAfter(all, []byte("\n"))
	switch {
	case len(all) > MaxBackup:
		return bad("it is over %d bytes", MaxBackup)
	case !bytes.HasPrefix(all, []byte(`{"format":"sparkrun-record/`)):
		return bad("it does not begin like one")
	case len(lines) != 4 || len(lines[3]) != 0:
		return bad("it is cut short, or something was added: %d lines, not 3", len(lines)-1)
	}
	content := all[:len(lines[0])+len(lines[1])]
	b.Size, b.Sum = int64(len(all)), sumOf(content)
	if got := string(bytes.TrimSpace(lines[2])); got != b.Sum {
		return bad("it is damaged: its SHA-256 is %s and should be %s", b.Sum, got)
	}
	if err := json.Unmarshal(lines[0], &b.BackupHead); err != nil {
		return bad("its first line: %v", err)
	}
	if b.Format != BackupFormat {
		return bad("its format is %q and this version reads %q: it was written by sparkrun %s", b.Format, BackupFormat,
			b.Version)
	}
	// A field that this version does not know would be lost silently.
	dec := json.NewDecoder(bytes.NewReader(lines[1]))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&b.s); err != nil {
		return bad("its state: %v: it was written by sparkrun %s", err, b.Version)
	}
	if why := b.wrong(); why != "" {
		return bad("%s", why)
	}
	return b, nil
}

// wrong says what in the state is inconsistent; empty if nothing is.
func (b Backup) wrong() string {
	s := b.s
	switch {
	case s.Nodes == nil || s.Tokens == nil || s.Jobs == nil:
		return "its state lacks nodes, tokens or jobs"
	case s.Cluster == "" || s.Cluster != b.Cluster || s.Epoch != b.Epoch || s.Index != b.Index || s.Index == 0:
		return "its first line does not match its state"
	case len(s.Nodes) == 0:
		return "it has no nodes"
	}
	for id, n := range s.Nodes {
		if id == "" || n.ID != id || n.Host == "" || n.Joined > s.Index {
			return fmt.Sprintf("node %q is inconsistent", id)
		}
	}
	for id, j := range s.Jobs {
		if id == "" || j.Spec.ID != id {
			return fmt.Sprintf("job %q is inconsistent", id)
		}
	}
	return ""
}

// Node gives one of its members.
func (b Backup) Node(id launcher.NodeID) (Node, bool) {
	n, ok := b.s.Nodes[id]
	return n, ok
}

// Hosts names the members, sorted.
func (b Backup) Hosts() []string {
	var hosts []string
	for _, n := range b.s.Nodes {
		hosts = append(hosts, n.Host)
	}
	slices.SortStableFunc(hosts, compareNatural)
	return hosts
}

// Jobs counts its jobs, and those of them that had not ended.
func (b Backup) Jobs() (all, open int) {
	for _, j := range b.s.Jobs {
		if j.Outcome == nil {
			open++
		}
	}
	return len(b.s.Jobs), open
}

// Restored is the state that a restored record begins with, as a snapshot. A job that had
// not ended is marked: only its ranks, if any are left, can tell what became of it since.
// One that waited for its first nodes, or slept, may have run in the meantime, so it counts
// as ended.
func (b Backup) Restored(at time.Time) ([]byte, error) {
	s := b.s
	s.Tokens, s.Jobs = map[string]Token{}, map[launcher.JobID]Job{}
	s.Notify.Queue = nil // it may have been told since
	for id, j := range b.s.Jobs {
		switch {
		case j.Outcome != nil:
		case j.Plan.Generation == 0, j.Verdict != nil && j.Verdict.Gone:
			j.Outcome = &Outcome{End: Failed, At: at, ExitCode: launcher.ExitOwnFailure, Cause: fmt.Sprintf(
				"the record was restored from a snapshot of %s, in which it had no machines: whether it has run since "+
					"is not known", stamp(b.Taken))}
			j.Restored = &b.Taken
		default:
			j.Restored = &b.Taken
		}
		s.Jobs[id] = j
	}
	return json.Marshal(s)
}

// stamp writes a time for a sentence.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// NoTrace is the cause of a restored job's end, where a node of its plan has no
// trace of it.
func (j Job) NoTrace(hosts string) string {
	return fmt.Sprintf("the record was restored from a snapshot of %s, in which it had not ended, and %s has no trace "+
		"of it: how it ended is not known", stamp(*j.Restored), hosts)
}
