package proc

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// waitsMost bounds the descriptors for which one call waits that are told of.
const waitsMost = 64

// WaitsOn are the descriptors from which a thread waits to read at this moment, or in which it waits to be connected;
// anyOf: for the first of several, as servers wait, and those that do many things at once.
func (fs FS) WaitsOn(pid, tid int) (fds []int, anyOf bool) {
	n, args, ok := fs.Call(pid, tid)
	if !ok {
		return nil, false
	}
	switch n {
	case unix.SYS_READ, unix.SYS_READV, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG, unix.SYS_CONNECT:
		return []int{int(int32(args[0]))}, false //nolint:gosec // it is one
	case unix.SYS_PPOLL, sysPoll:
		fds = polled(fs.memory(pid, args[0], 8*min(args[1], waitsMost)))
	case unix.SYS_PSELECT6, sysSelect:
		for _, at := range args[1:3] {
			fds = append(fds, selected(fs.memory(pid, at, (min(args[0], 1024)+7)/8))...)
		}
	case unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, sysEpollWait:
		b, _ := os.ReadFile(fs.path(pid, "fdinfo/"+strconv.Itoa(int(int32(args[0]))))) //nolint:gosec // the same
		return epolled(string(b)), true
	}
	return fds, len(fds) > 1
}

// memory reads of a process, which goes on meanwhile; empty: there is nothing, or it may not be read.
func (fs FS) memory(pid int, at, size uint64) []byte {
	f, err := os.Open(fs.path(pid, "mem"))
	if err != nil || at == 0 || at > 1<<62 {
		return nil
	}
	defer f.Close()
	b := make([]byte, size)
	n, _ := f.ReadAt(b, int64(at)) //nolint:gosec // it is bounded
	return b[:n]
}

// polled reads what poll(2) is given: eight bytes each, of which the first four are the descriptor, -1 for none.
func polled(b []byte) (fds []int) {
	for ; len(b) >= 8; b = b[8:] {
		if fd := int32(binary.NativeEndian.Uint32(b)); fd >= 0 { //nolint:gosec // it is one
			fds = append(fds, int(fd))
		}
	}
	return fds
}

// selected reads a set of select(2), by the byte: both architectures have the least first.
func selected(b []byte) (fds []int) {
	for i := range 8 * len(b) {
		if b[i/8]>>(i%8)&1 != 0 && len(fds) < waitsMost {
			fds = append(fds, i)
		}
	}
	return fds
}

// epolled reads the fdinfo of an epoll(7) descriptor: those of which it is to tell that they can be read.
func epolled(text string) (fds []int) {
	for line := range strings.Lines(text) { // tfd:        7 events:       19 data:  7  pos:0 ino:1a sdev:8
		f := strings.Fields(line)
		if len(f) < 4 || f[0] != "tfd:" || len(fds) == waitsMost {
			continue
		}
		fd, err := strconv.Atoi(f[1])
		events, _ := strconv.ParseUint(f[3], 16, 64)
		if err == nil && events&unix.EPOLLIN != 0 {
			fds = append(fds, fd)
		}
	}
	return fds
}
