package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Pressure is for how long tasks have waited for memory since the boot: some of them, and all of them at once
// (Documentation/accounting/psi.rst).
type Pressure struct{ Some, Full time.Duration }

// MemoryPressure reads that of this machine. Kernels without PSI have none.
func (fs FS) MemoryPressure() (Pressure, error) {
	b, err := os.ReadFile(string(fs) + "/pressure/memory")
	if err != nil {
		return Pressure{}, err
	}
	return ParsePressure(string(b))
}

// ParsePressure reads lines such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=123", which is in microseconds.
func ParsePressure(text string) (p Pressure, err error) {
	seen := 0
	for l := range strings.Lines(text) {
		kind, rest, _ := strings.Cut(l, " ")
		_, total, _ := strings.Cut(rest, "total=")
		n, err := strconv.ParseInt(strings.TrimSpace(total), 10, 64)
		if err != nil {
			return Pressure{}, fmt.Errorf("pressure: no total in %q", l)
		}
		switch kind {
		case "some":
			p.Some = time.Duration(n) * time.Microsecond
			seen++
		case "full":
			p.Full = time.Duration(n) * time.Microsecond
			seen++
		}
	}
	if seen != 2 {
		return Pressure{}, errors.New("pressure: not both of some and full")
	}
	return p, nil
}

// FreeBlocks is how much memory of this machine is free in contiguous blocks of that size or more.
func (fs FS) FreeBlocks(least int64) (bytes int64, err error) {
	b, err := os.ReadFile(string(fs) + "/buddyinfo")
	if err != nil {
		return 0, err
	}
	return ParseFreeBlocks(string(b), int64(os.Getpagesize()), least)
}

// ParseFreeBlocks reads /proc/buddyinfo (proc(5)): for each zone, how many blocks of one page, of two, of four and so on
// are free.
func ParseFreeBlocks(text string, page, least int64) (bytes int64, err error) {
	zones := 0
	for l := range strings.Lines(text) {
		_, rest, ok := strings.Cut(l, "zone ")
		f := strings.Fields(rest)
		if !ok || len(f) < 2 {
			return 0, fmt.Errorf("buddyinfo: %q", l)
		}
		size := page
		for _, count := range f[1:] {
			n, err := strconv.ParseInt(count, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("buddyinfo: %q", l)
			}
			if size >= least {
				bytes += n * size
			}
			size *= 2
		}
		zones++
	}
	if zones == 0 {
		return 0, errors.New("buddyinfo has no zone")
	}
	return bytes, nil
}
