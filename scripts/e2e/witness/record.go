// Package witness decides whether sparkrun kept its promises, from what the
// ranks of a test wrote down themselves: when each was exec'd, that it lives,
// which lines it printed, how it ended. Check holds such a History against the
// properties P1, P2, P3, P4, P6, P7, P9 and P10 of the reliability bar, and P11.
//
// It must not take sparkrun's word for anything but what is to be judged: its
// answers about states and its logs. It imports nothing of sparkrun.
package witness

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kind says what a Record tells.
type Kind uint32

const (
	Start  Kind = 1 + iota // a rank's process has begun: once in its life, before all else
	Beat                   // a process of a rank lives: the rank itself, or one that it forked
	Line                   // the rank is about to print line Number, of Hash
	Exit                   // the rank is about to exit with Code; nothing more is printed
	State                  // an observer asked at Boot, and was told at Until, that the job's state is State
	Gone                   // ... that the job, which had ended, is not there
	Answer                 // all of that answer is written, but for what had ended before: there were Number jobs
)

// Record is one fact, as the process that saw it wrote it down.
type Record struct {
	Kind       Kind
	Job        string // at most 31 bytes, as Host, Stage, State, Name and Doubts
	Generation uint64
	Stage      string // "" is the main one
	Rank       int32
	World      int32 // ranks in all
	Nodes      int32 // machines in all
	PID        int32 // as its host counts
	Host       string

	// The clocks, in ns. All hosts of a lab share them. Boot orders everything;
	// Real is for what only a file's birth tells.
	Boot, Mono, Real int64

	Number uint64 // Line: from 1; Answer: the jobs in it
	Hash   uint64 // Line: of its bytes, the newline included
	Code   int32  // Exit; State: the exit code, -1 while there is none
	State  string // Exit: Spares where the other ranks are left to themselves
	Name   string // State: that the job was launched with
	Doubts string // State: the hosts, with a blank between two, on which something may be left for all that sparkrun knows
	Until  int64  // State, Answer: when it had come, as Boot counts
}

// Spares is an exit that ends no other rank, whatever its code.
const Spares = "spares"

// Key names an attempt.
type Key struct {
	Job        string
	Generation uint64
}

func (k Key) String() string { return fmt.Sprintf("%s.%d", k.Job, k.Generation) }

// Key of the attempt that the record is of.
func (r Record) Key() Key { return Key{r.Job, r.Generation} }

// Stamp fills in the clocks.
func (r Record) Stamp() Record {
	r.Boot, r.Mono, r.Real = Now(), clock(unix.CLOCK_MONOTONIC), time.Now().UnixNano()
	return r
}

// Now is CLOCK_BOOTTIME in ns.
func Now() int64 { return clock(unix.CLOCK_BOOTTIME) }

func clock(which int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(which, &ts); err != nil {
		panic(err) // both clocks exist in every Linux since 2.6.39
	}
	return ts.Nano()
}

const (
	nameBytes   = 32
	recordBytes = 6*4 + 8*8 + 6*nameBytes + 4 // the last 4 are a checksum
)

// ErrRecord tells of bytes that are no record.
var ErrRecord = errors.New("no record of a witness")

// Encode gives the record's recordBytes bytes, or an error where a name is too long.
func (r Record) Encode() ([]byte, error) {
	b := make([]byte, 0, recordBytes)
	for _, n := range []uint32{uint32(r.Kind), uint32(r.Rank), uint32(r.World), uint32(r.Nodes), uint32(r.PID),
		uint32(r.Code)} {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	for _, n := range []uint64{r.Generation, uint64(r.Boot), uint64(r.Mono), uint64(r.Real), r.Number, r.Hash,
		uint64(r.Until), 0} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, s := range []string{r.Job, r.Host, r.Stage, r.State, r.Name, r.Doubts} {
		if len(s) >= nameBytes {
			return nil, fmt.Errorf("encode record: %q is longer than %d bytes", s, nameBytes-1)
		}
		b = append(append(b, s...), make([]byte, nameBytes-len(s))...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.ChecksumIEEE(b)), nil
}

// Decode reads one record of recordBytes bytes.
func Decode(b []byte) (Record, error) {
	if len(b) != recordBytes || crc32.ChecksumIEEE(b[:recordBytes-4]) != binary.LittleEndian.Uint32(b[recordBytes-4:]) {
		return Record{}, ErrRecord
	}
	u32 := func() (n uint32) { n, b = binary.LittleEndian.Uint32(b), b[4:]; return n }
	u64 := func() (n uint64) { n, b = binary.LittleEndian.Uint64(b), b[8:]; return n }
	name := func() string {
		s, _, _ := bytes.Cut(b[:nameBytes], []byte{0})
		b = b[nameBytes:]
		return string(s)
	}
	var r Record
	r.Kind, r.Rank, r.World, r.Nodes, r.PID, r.Code = Kind(u32()), int32(u32()), int32(u32()), int32(u32()),
		int32(u32()), int32(u32())
	r.Generation, r.Boot, r.Mono, r.Real, r.Number, r.Hash, r.Until = u64(), int64(u64()), int64(u64()), int64(u64()),
		u64(), u64(), int64(u64())
	u64()
	r.Job, r.Host, r.Stage, r.State, r.Name, r.Doubts = name(), name(), name(), name(), name(), name()
	return r, nil
}

// Book is the file that one process writes its records to. A record is one
// write(2) to the end of the file: KILL leaves it whole or leaves it out.
type Book struct{ f *os.File }

// Open makes the book of this process in a folder that all hosts share.
func Open(dir, name string) (*Book, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("open book: %w", err)
	}
	path := filepath.Join(dir, fmt.Sprintf("%s-%s-%d-%d%s", host, name, os.Getpid(), Now(), bookSuffix))
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open book: %w", err)
	}
	return &Book{f}, nil
}

const bookSuffix = ".witness"

// Write stamps a record and appends it.
func (b *Book) Write(r Record) error { return b.Append(r.Stamp()) }

// Append appends a record that has been stamped already.
func (b *Book) Append(r Record) error {
	data, err := r.Encode()
	if err == nil {
		_, err = b.f.Write(data)
	}
	if err != nil {
		return fmt.Errorf("write book: %w", err)
	}
	return nil
}

// Read gives what every book in a folder says. It may be called while they are
// written; the end of one that is no whole record is left for the next call.
func Read(dir string) ([]Record, error) {
	var all []Record
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, bookSuffix) {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for ; len(data) >= recordBytes; data = data[recordBytes:] {
			r, err := Decode(data[:recordBytes])
			if err != nil {
				return fmt.Errorf("read book %s: %w", path, err)
			}
			all = append(all, r)
		}
		return nil
	})
	return all, err
}
