// Command hungfs is a file server that never answers: a process that reads a
// file of it waits in the kernel, in state D, and cannot be killed before this
// one is.
//
//	hungfs FOLDER
//
// It mounts itself on FOLDER, which then holds one file, `file`, and says so by
// a line on stdout, as it does of each read that waits from then on. It speaks as much of Linux's FUSE protocol
// (include/uapi/linux/fuse.h) as it takes to open that file, and nothing to
// whoever reads it: once a request has been taken over here the kernel waits for
// the answer, whatever signal comes. It needs root and /dev/fuse.
package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Requests, and the nodes they are about.
const (
	opLookup, opForget, opGetattr, opOpen, opRead        = 1, 2, 3, 14, 15
	opInit, opOpendir, opInterrupt, opReaddir            = 26, 27, 36, 28
	root, file                                    uint64 = 1, 2
)

var order = binary.NativeEndian

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: hungfs FOLDER")
		os.Exit(2)
	}
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "hungfs:", err)
		os.Exit(1)
	}
}

func serve(folder string) error {
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev)
	if err := unix.Mount("hungfs", folder, "fuse.hungfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount on %s: %w", folder, err)
	}
	fmt.Println("mounted on", folder)
	request := make([]byte, 1<<20)
	for {
		n, err := unix.Read(dev, request)
		switch {
		case err == unix.ENODEV: // unmounted
			return nil
		case err == unix.EINTR, err == unix.ENOENT:
			continue
		case err != nil:
			return fmt.Errorf("read request: %w", err)
		case n < 40:
			return fmt.Errorf("read request: %d bytes", n)
		}
		op, node := order.Uint32(request[4:]), order.Uint64(request[16:])
		body, errno, silent := answer(op, node, request[40:n])
		if silent {
			if op == opRead {
				fmt.Println("reading, process", order.Uint32(request[32:])) // as we see it
			}
			continue
		}
		head := order.AppendUint32(nil, uint32(16+len(body)))
		head = order.AppendUint32(head, uint32(-int32(errno)))
		head = append(head, request[8:16]...) // its number
		if _, err := unix.Write(dev, append(head, body...)); err != nil && err != unix.ENOENT {
			return fmt.Errorf("answer request %d: %w", op, err)
		}
	}
}

func answer(op uint32, node uint64, body []byte) (out []byte, errno syscall.Errno, silent bool) {
	switch op {
	case opInit:
		out = make([]byte, 64) // fuse_init_out
		order.PutUint32(out, 7)
		order.PutUint32(out[4:], min(order.Uint32(body[4:]), 31))
		copy(out[8:12], body[8:12])        // read ahead as the kernel likes
		order.PutUint32(out[20:], 128<<10) // the most that is written at once
		return out, 0, false
	case opGetattr:
		out = make([]byte, 16)
		order.PutUint64(out, 3600) // seconds for which it holds
		return append(out, attributes(node)...), 0, false
	case opLookup:
		if node != root || string(body) != "file\x00" {
			return nil, syscall.ENOENT, false
		}
		out = make([]byte, 40)
		order.PutUint64(out, file)
		order.PutUint64(out[16:], 3600)
		order.PutUint64(out[24:], 3600)
		return append(out, attributes(file)...), 0, false
	case opOpen, opOpendir:
		return make([]byte, 16), 0, false
	case opReaddir:
		return nil, 0, false
	case opRead, opForget, opInterrupt:
		return nil, 0, true
	}
	return nil, syscall.ENOSYS, false
}

// attributes is a fuse_attr.
func attributes(node uint64) []byte {
	out := make([]byte, 88)
	mode, links := uint32(syscall.S_IFDIR|0o755), uint32(2)
	if node == file {
		mode, links = syscall.S_IFREG|0o444, 1
		order.PutUint64(out[8:], 4096) // bytes
	}
	order.PutUint64(out, node)
	order.PutUint32(out[60:], mode)
	order.PutUint32(out[64:], links)
	order.PutUint32(out[80:], 4096)
	return out
}
