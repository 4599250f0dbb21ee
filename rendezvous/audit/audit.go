// Package audit keeps one node's audit log of who did what: a JSON line for each event
// that matters to trust, in a file that only grows until it is rotated.
//
// It decides how a line looks, which errors of a call are not an outcome, how fast unauthenticated callers may fill
// the log, and when the file is rotated. It must not decide which calls get a line, must not be given a secret, and
// must never delay what it records: a line that cannot be written is reported in the agent's log.
package audit

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Outcome of an attempted action.
type Outcome string

// OK: it was done. Refused: it was not allowed. Failed: it was allowed but did not work.
const (
	OK      Outcome = "ok"
	Refused Outcome = "refused"
	Failed  Outcome = "failed"
)

// Line is one entry. Empty fields are left out.
type Line struct {
	Time    time.Time `json:"time"`
	What    string    `json:"what"`             // join, launch, ...
	Who     string    `json:"who,omitempty"`    // a user, a member's host, a newcomer's claim
	UID     *uint32   `json:"uid,omitempty"`    // of a user
	From    string    `json:"from,omitempty"`   // the host on which it was requested, or an address
	Client  string    `json:"client,omitempty"` // id of the client that a user called from
	On      string    `json:"on,omitempty"`     // the job, host or token it is about
	Outcome Outcome   `json:"outcome"`
	Why     string    `json:"why,omitempty"`
	// Dropped counts lines left out since the last one of this source, or of any unauthenticated caller.
	Dropped int `json:"dropped,omitempty"`
	// Again counts equal events without a line of their own since the last line of this kind; see Often.
	Again int `json:"again,omitempty"`
}

// Config of a Log. Zero numbers mean the default named.
type Config struct {
	Path string // of the file, 0600; older ones are Path.1, Path.2 ...
	// MaxBytes is the size at which the file is rotated; default 8 MiB.
	MaxBytes int64
	// Keep is how many rotated files are kept; default 4.
	Keep int
	// Unauthenticated is how many lines of unauthenticated callers are written in a burst, default 20; Again is the
	// time after which one more is, default 1 s. So at most 86,400 lines of 300 bytes a day come from outside.
	Unauthenticated int
	Again           time.Duration
	// SourceBytes is how many bytes one member or user may write in a burst, default 1 MiB; SourceBps how many more
	// per second, default 24 (2 MB a day). Beyond that their lines are counted, not written, so that a flood does
	// not rotate the others' lines away: to fill MaxBytes times Keep takes one source two weeks.
	SourceBytes int64
	SourceBps   int64
	// Often is how long an event that got a line by Log.Often gets no other; default 1 min.
	Often  time.Duration
	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil discards
}

// Log is the open audit log. Its methods may be called from any goroutine.
type Log struct {
	cfg Config

	mu      sync.Mutex
	file    *os.File
	size    int64
	failing bool

	tokens  int // lines that unauthenticated callers may still write
	refill  time.Time
	dropped int

	often   map[kind]*often
	sources map[string]*bucket // by Line.Who
}

// kind is what lines have in common that Often treats as equal.
type kind struct {
	what, who, from, client, on string
	outcome                     Outcome
}

type often struct {
	since time.Time // of the line that was written
	more  int       // events since then
}

// maxKinds is how many kinds are remembered before expired ones are removed.
const maxKinds = 4096

// Open opens the log, or creates it.
func Open(cfg Config) (*Log, error) {
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 8 << 20
	}
	if cfg.Keep == 0 {
		cfg.Keep = 4
	}
	if cfg.Unauthenticated == 0 {
		cfg.Unauthenticated = 20
	}
	if cfg.Again == 0 {
		cfg.Again = time.Second
	}
	if cfg.SourceBytes == 0 {
		cfg.SourceBytes = 1 << 20
	}
	if cfg.SourceBps == 0 {
		cfg.SourceBps = 24
	}
	if cfg.Often == 0 {
		cfg.Often = time.Minute
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{cfg: cfg, tokens: cfg.Unauthenticated, refill: cfg.Now(), often: map[kind]*often{},
		sources: map[string]*bucket{}}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("open audit log %s: %w", cfg.Path, err)
	}
	return l, nil
}

// open is called with l.mu held, or before l is shared.
func (l *Log) open() error {
	f, err := os.OpenFile(l.cfg.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	l.file, l.size = f, info.Size()
	return nil
}

// Add writes a line. Time is set here.
func (l *Log) Add(line Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write(line)
}

// bucket is what a source may still write. A source is a user, on any machine and through any client, or a member.
type bucket struct {
	left    int64 // bytes; negative after a line that was longer
	at      time.Time
	dropped int
}

// Of writes a line of an authorized caller, unless that source has written too much: see Config.SourceBytes. Lines
// left out are counted in the source's next line.
func (l *Log) Of(line Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.cfg.Now()
	b := l.sources[line.Who]
	if b == nil {
		if len(l.sources) >= maxKinds { // a full bucket need not be remembered
			maps.DeleteFunc(l.sources,
				func(_ string, b *bucket) bool { return b.dropped == 0 && l.refilled(b, now) == l.cfg.SourceBytes })
		}
		b = &bucket{left: l.cfg.SourceBytes, at: now}
		l.sources[line.Who] = b
	}
	if full := l.refilled(b, now); full > b.left || now.Before(b.at) { // else it was refilled by less than a byte
		b.left, b.at = full, now
	}
	if b.left <= 0 {
		b.dropped++
		return
	}
	line.Dropped, b.dropped = b.dropped, 0
	b.left -= l.write(line)
}

func (l *Log) refilled(b *bucket, now time.Time) int64 {
	passed := max(0, now.Sub(b.at)) // negative: the clock was set back
	return min(l.cfg.SourceBytes, b.left+int64(passed.Seconds()*float64(l.cfg.SourceBps)))
}

// Often writes a line about something done again and again, such as reading the state: a display that is left on
// would rotate away the lines that matter within days. Of lines that differ only in time, port and reason, one per
// Config.Often is written; the next one says how many were not.
func (l *Log) Often(line Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.cfg.Now()
	fresh := func(o *often) bool { since := now.Sub(o.since); return since >= 0 && since < l.cfg.Often }
	k := kind{line.What, line.Who, line.From[:max(strings.LastIndexByte(line.From, ':'), 0)], line.Client, line.On,
		line.Outcome}
	o := l.often[k]
	switch {
	case o == nil && len(l.often) >= maxKinds:
		maps.DeleteFunc(l.often, func(_ kind, o *often) bool { return !fresh(o) })
	case o != nil && fresh(o):
		o.more++
		return
	case o != nil:
		line.Again = o.more
	}
	l.often[k] = &often{since: now}
	l.write(line)
}

// Unauthenticated writes a line of a caller without a certificate, unless there are too many: then they are
// counted, and the next line that is written says how many.
func (l *Log) Unauthenticated(line Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.cfg.Now()
	if passed := now.Sub(l.refill); passed < 0 {
		l.refill = now // the clock was set back
	} else if more := int(passed / l.cfg.Again); more > 0 {
		l.tokens = min(l.tokens+min(more, l.cfg.Unauthenticated), l.cfg.Unauthenticated)
		l.refill = now
	}
	if l.tokens == 0 {
		l.dropped++
		return
	}
	l.tokens--
	line.Dropped, l.dropped = l.dropped, 0
	l.write(line)
}

const maxWhy = 500 // bytes of a reason; an unauthenticated caller may have chosen part of it

// write writes the line and gives its size in bytes.
func (l *Log) write(line Line) int64 {
	line.Time = l.cfg.Now().UTC()
	for _, s := range []*string{&line.Why, &line.Who, &line.From, &line.Client, &line.On} {
		if len(*s) > maxWhy {
			*s = (*s)[:maxWhy]
		}
	}
	text, err := json.Marshal(line) // escapes line breaks, so that a line stays one line
	if err == nil {
		err = l.append(append(text, '\n'))
	}
	if err != nil && !l.failing {
		l.cfg.Logger.Error("write audit log", "path", l.cfg.Path, "what", line.What, "error", err)
	}
	l.failing = err != nil
	return int64(len(text)) + 1
}

func (l *Log) append(text []byte) error {
	if l.file != nil && l.size > 0 && l.size+int64(len(text)) > l.cfg.MaxBytes {
		if err := l.putAside(); err != nil {
			return err
		}
	}
	if l.file == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	n, err := l.file.Write(text)
	l.size += int64(n)
	return err
}

// putAside renames Path to Path.1, Path.1 to Path.2 and so on; the last one is deleted.
func (l *Log) putAside() error {
	err := l.file.Close()
	l.file = nil
	name := func(i int) string {
		if i == 0 {
			return l.cfg.Path
		}
		return l.cfg.Path + "." + strconv.Itoa(i)
	}
	for i := l.cfg.Keep; i > 0; i-- {
		if moved := os.Rename(name(i-1), name(i)); !errors.Is(moved, fs.ErrNotExist) {
			err = errors.Join(err, moved)
		}
	}
	return err
}

// Close closes the file. A later line opens it again, so that nothing that ends at the same time is lost.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
