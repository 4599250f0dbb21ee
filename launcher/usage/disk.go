package usage

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// disks reads file systems. One that hangs, as a server's can, keeps no reader: it is absent until it answers.
type disks struct {
	sys     string
	folders []string // of Reader

	mu   sync.Mutex
	busy map[string]bool
}

// diskPatience is how long a reading waits for file systems.
const diskPatience = 100 * time.Millisecond

// found is a file system, and how many bytes its device has moved.
type found struct {
	Disk
	device        uint64
	fixed         bool // it cannot be written to
	read, written *uint64
}

// elsewhere reads what Disks is asked for: a folder whose file system hangs is asked about once, however many ask.
var elsewhere = disks{busy: map[string]bool{}}

// Disks are the file systems of folders that can be written to, without rates.
func Disks(folders ...string) (all []Disk) {
	for _, f := range elsewhere.now(folders) {
		if !f.fixed {
			all = append(all, f.Disk)
		}
	}
	return all
}

func (d *disks) now(folders []string) (all []found) {
	answers := make(chan found, len(folders))
	asked := 0
	d.mu.Lock()
	for _, dir := range folders {
		if d.busy[dir] {
			continue
		}
		d.busy[dir] = true
		asked++
		go func() { // statfs cannot be ended; the answer of one that comes late is dropped
			f := d.of(dir)
			d.mu.Lock()
			delete(d.busy, dir)
			d.mu.Unlock()
			answers <- f
		}()
	}
	d.mu.Unlock()
	late := time.NewTimer(diskPatience)
	defer late.Stop()
	for ; asked > 0; asked-- {
		select {
		case f := <-answers:
			same := func(other found) bool { return other.device == f.device }
			if f.Total > 0 && !slices.ContainsFunc(all, same) {
				all = append(all, f)
			}
		case <-late.C:
			asked = 1
		}
	}
	slices.SortFunc(all, func(a, b found) int { return cmp.Compare(a.Mount, b.Mount) })
	return all
}

// of is the file system of a folder; without a size it is none.
func (d *disks) of(dir string) (f found) {
	var fs unix.Statfs_t
	var st unix.Stat_t
	if unix.Statfs(dir, &fs) != nil || unix.Stat(dir, &st) != nil {
		return found{}
	}
	size := fs.Bsize
	f = found{device: st.Dev, fixed: fs.Flags&unix.ST_RDONLY != 0, Disk: Disk{Mount: mountOf(dir, st.Dev),
		Total: int64(fs.Blocks) * size, Free: int64(fs.Bavail) * size}}
	if fs.Files > 0 {
		f.Inodes, f.InodesFree = &fs.Files, &fs.Ffree
	}
	if text, ok := line(fmt.Sprintf("%s/dev/block/%d:%d/stat", d.sys, unix.Major(st.Dev), unix.Minor(st.Dev))); ok {
		f.read, f.written = ParseBlockStat(text)
	}
	return f
}

// mountOf is the folder where the device begins.
func mountOf(dir string, device uint64) string {
	for dir != "/" {
		var st unix.Stat_t
		up := filepath.Dir(dir)
		if unix.Stat(up, &st) != nil || st.Dev != device {
			break
		}
		dir = up
	}
	return dir
}

// sector is what the kernel counts in, whatever the device's own are (Documentation/block/stat.rst).
const sector = 512

// ParseBlockStat reads /sys/dev/block/N:N/stat: the third field is what was read, the seventh what was written.
func ParseBlockStat(text string) (read, written *uint64) {
	f := strings.Fields(text)
	if len(f) < 7 {
		return nil, nil
	}
	r, err := strconv.ParseUint(f[2], 10, 64)
	w, err2 := strconv.ParseUint(f[6], 10, 64)
	if err != nil || err2 != nil {
		return nil, nil
	}
	return new(r * sector), new(w * sector)
}
