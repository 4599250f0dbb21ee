// Package audit keeps one node's list of who did what: a line of JSON for each
// thing that matters to trust, in a file that only grows until it is put aside.
//
// It decides how a line looks, which ends of a call are no outcome, how fast the
// unauthenticated may fill the list, and when the file is put aside. It must not decide which calls are
// worth a line, must not be given a secret, and must never hold up what it tells of: a line that cannot be written
// is counted, and the log says so.
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

// Outcome of what was tried.
type Outcome string

// OK: it was done. Refused: trust or the rules said no. Failed: it was allowed and did not work.
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
	From    string    `json:"from,omitempty"`   // the host on which it was asked, or an address
	Client  string    `json:"client,omitempty"` // id of the client that a user called from
	On      string    `json:"on,omitempty"`     // the job, host or token it is about
	Outcome Outcome   `json:"outcome"`
	Why     string    `json:"why,omitempty"`
	// Dropped counts lines that were left out since the last one of this source, or of anybody unauthenticated.
	Dropped int `json:"dropped,omitempty"`
	// Again counts what was the same, and got no line of its own, since the last one of its kind; see Often.
	Again int `json:"again,omitempty"`
}

// Config of a Log. Zero numbers take the default named.
type Config struct {
	Path string // of the file, 0600; older ones are Path.1, Path.2 ...
	// MaxBytes is the size at which a file is put aside; default 8 MiB.
	MaxBytes int64
	// Keep is how many files put aside are kept; default 4.
	Keep int
	// Unauthenticated is how many lines of the unauthenticated are taken at once, default 20; Again is the time after which one more is, default 1 s.
	// At worst 86,400 lines of 300 bytes a day come from outside.
	Unauthenticated int
	Again           time.Duration
	// SourceBytes is how much one member or user may write at once, default 1 MiB; SourceBps how much more a second, default
	// 24 (2 MB a day). Beyond it their lines are counted, not written, so that a flood of theirs does not have the others'
	// put aside: by all of MaxBytes and Keep it takes one of them two weeks.
	SourceBytes int64
	SourceBps   int64
	// Often is how long what has got a line by Log.Often gets no other; default 1 min.
	Often  time.Duration
	Now    func() time.Time // nil means time.Now
	Logger *slog.Logger     // nil discards
}

// Log is the open list. Its methods may be called from anywhere.
type Log struct {
	cfg Config

	mu      sync.Mutex
	file    *os.File
	size    int64
	failing bool

	tokens  int // lines that the unauthenticated may still write
	refill  time.Time
	dropped int

	often   map[kind]*often
	sources map[string]*bucket // by Line.Who
}

// kind is what lines have in common that Often takes for the same.
type kind struct {
	what, who, from, client, on string
	outcome                     Outcome
}

type often struct {
	since time.Time // of the line that was written
	more  int       // have come since
}

// maxKinds is how many kinds are kept in mind before those that are over are looked for.
const maxKinds = 4096

// Open opens the list, or begins it.
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

// open is called with l.mu held, or before anybody else has l.
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

// bucket is what a source may still write: a user, on whichever machine and by whichever client, or a member.
type bucket struct {
	left    int64 // bytes; below zero after a line that was longer
	at      time.Time
	dropped int
}

// Of writes a line of somebody who may call, unless they have written too much: see Config.SourceBytes. What is left
// out is counted, and told by their next line.
func (l *Log) Of(line Line) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.cfg.Now()
	b := l.sources[line.Who]
	if b == nil {
		if len(l.sources) >= maxKinds { // whoever is full again need not be remembered
			maps.DeleteFunc(l.sources,
				func(_ string, b *bucket) bool { return b.dropped == 0 && l.refilled(b, now) == l.cfg.SourceBytes })
		}
		b = &bucket{left: l.cfg.SourceBytes, at: now}
		l.sources[line.Who] = b
	}
	if full := l.refilled(b, now); full > b.left || now.Before(b.at) { // else it has grown by less than a byte
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
	passed := max(0, now.Sub(b.at)) // below zero: the clock was set back
	return min(l.cfg.SourceBytes, b.left+int64(passed.Seconds()*float64(l.cfg.SourceBps)))
}

// Often writes a line of what is done again and again, as looking at the state is: a display that is left on would have the
// lines that matter put aside within days. Of those that differ in time, port and reason alone one in Config.Often is written,
// and the next one tells how many were not.
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

// Unauthenticated writes a line of somebody who has proven nothing, unless too many have come: they are counted instead, and the
// next line that is written tells how many.
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

const maxWhy = 500 // bytes of a reason; the unauthenticated may have chosen part of it

// write gives how many bytes the line takes.
func (l *Log) write(line Line) int64 {
	line.Time = l.cfg.Now().UTC()
	for _, s := range []*string{&line.Why, &line.Who, &line.From, &line.Client, &line.On} {
		if len(*s) > maxWhy {
			*s = (*s)[:maxWhy]
		}
	}
	text, err := json.Marshal(line) // escapes line breaks: a line stays one
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

// putAside makes Path.1 of Path, Path.2 of Path.1 and so on; the last goes.
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

// Close closes the file. Lines that come later open it again: nothing that is being ended at the same time is lost.
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
