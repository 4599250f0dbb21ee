package shim

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Stamp says when output came: the stream's bytes from Offset on at Time or later, those
// before it earlier.
type Stamp struct {
	Time   time.Time
	Offset int64
}

// stampBytes is the size of a Stamp: two big-endian numbers of 64 bits, milliseconds since
// 1970 and the offset.
const stampBytes = 16

// StampsName is the file beside a stream's first part that has its Stamps.
func StampsName(path string) string { return path + ".times" }

// StampEvery is how long after a stamp the next one is made, if there is output then. It
// grows with the age of the first one, so that a month's output, where an hour is searched
// for rather than a second, has half a megabyte of them.
func StampEvery(first, last time.Time) time.Duration {
	return max(time.Second, last.Sub(first)/4096)
}

// stamper writes a stream's Stamps. It opens the file for each, as they are rare. A stamp
// that cannot be written is left out: output matters more.
type stamper struct {
	path        string // of the stream's first part
	count       int64
	first, last time.Time
}

// goOn counts the existing stamps.
func (s *stamper) goOn() {
	there, err := ReadStamps(s.path, 0)
	if err != nil || len(there) == 0 {
		return
	}
	s.count, s.first, s.last = int64(len(there)), there[0].Time, there[len(there)-1].Time
}

// mark notes that the bytes from offset on have come at now.
func (s *stamper) mark(now time.Time, offset int64) {
	if !s.last.IsZero() && now.Sub(s.last) < StampEvery(s.first, s.last) {
		return
	}
	f, err := os.OpenFile(StampsName(s.path), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	b := binary.BigEndian.AppendUint64(make([]byte, 0, stampBytes), uint64(now.UnixMilli()))
	b = binary.BigEndian.AppendUint64(b, uint64(offset))
	if _, err := f.WriteAt(b, s.count*stampBytes); err != nil {
		return
	}
	s.count, s.last = s.count+1, now
	if s.first.IsZero() {
		s.first = now
	}
}

// ReadStamps reads the stamps of the stream whose first part is path, without the first
// skip, in the order of their offsets. A stream without stamps gives none.
func ReadStamps(path string, skip int) ([]Stamp, error) {
	f, err := os.Open(StampsName(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, int64(skip)*stampBytes, math.MaxInt64>>1))
	if err != nil {
		return nil, err
	}
	var stamps []Stamp
	for ; len(b) >= stampBytes; b = b[stampBytes:] {
		ms, offset := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
		stamps = append(stamps, Stamp{time.UnixMilli(int64(ms)), int64(offset)})
	}
	return stamps, nil
}
