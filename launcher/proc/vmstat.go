package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// SwappedIn is how much was read back from swap since the boot, in bytes. What is only written there (pswpout) tells
// little: the kernel puts cold pages away to keep more of files.
func (fs FS) SwappedIn() (int64, error) {
	b, err := os.ReadFile(string(fs) + "/vmstat")
	if err != nil {
		return 0, err
	}
	return ParseSwappedIn(string(b), int64(os.Getpagesize()))
}

// ParseSwappedIn reads /proc/vmstat (proc(5)): "pswpin" counts pages.
func ParseSwappedIn(text string, page int64) (int64, error) {
	_, rest, found := strings.Cut("\n"+text, "\npswpin ")
	if !found {
		return 0, errors.New("vmstat has no pswpin")
	}
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("vmstat: pswpin %q", line)
	}
	return n * page, nil
}
