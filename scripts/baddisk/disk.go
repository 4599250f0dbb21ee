package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// kind is of an operation: write is all that needs room, or would.
type kind string

var kinds = []kind{"read", "write", "sync"}

// fault is what an operation meets; the zero fault is none.
type fault struct {
	hang  chan struct{} // closed when it is over
	errno syscall.Errno
	slow  time.Duration
}

// disk is what a mounted folder stands on.
type disk struct {
	keeper *keeper
	mu     sync.Mutex
	faults map[kind]fault
}

func (d *disk) order(line string) error {
	words := strings.Fields(line)
	if len(words) == 0 {
		return errors.New("an empty order")
	}
	verb, args := words[0], words[1:]
	var f fault
	switch verb {
	case "well":
		d.well()
		return nil
	case "hang":
		f.hang = make(chan struct{})
	case "fail", "slow":
		if len(args) < 2 {
			return fmt.Errorf("%s: want KIND... and what", verb)
		}
		last := args[len(args)-1]
		args = args[:len(args)-1]
		var err error
		if verb == "slow" {
			f.slow, err = time.ParseDuration(last)
		} else if f.errno = map[string]syscall.Errno{"ENOSPC": unix.ENOSPC, "EIO": unix.EIO, "EROFS": unix.EROFS}[last]; f.errno == 0 {
			err = fmt.Errorf("fail: %s is none of ENOSPC, EIO, EROFS", last)
		}
		if err != nil {
			return err
		}
	default:
		return fmt.Errorf("%s: want hang, fail, slow or well", verb)
	}
	if len(args) == 0 {
		return fmt.Errorf("%s: want one of %v", verb, kinds)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range args {
		if !slices.Contains(kinds, kind(a)) {
			return fmt.Errorf("%s: want one of %v", a, kinds)
		}
		d.faults[kind(a)] = f
	}
	return nil
}

func (d *disk) well() {
	d.mu.Lock()
	defer d.mu.Unlock()
	ended := map[chan struct{}]bool{}
	for _, f := range d.faults {
		if f.hang != nil && !ended[f.hang] { // one order may be of several kinds
			ended[f.hang] = true
			close(f.hang)
		}
	}
	clear(d.faults)
}

// meet has an operation meet its fault. It goes by no ctx: the kernel cancels that
// when the caller is killed, and a disk that hangs does not care.
func (d *disk) meet(k kind) syscall.Errno {
	d.mu.Lock()
	f := d.faults[k]
	d.mu.Unlock()
	if f.hang != nil {
		<-f.hang
	}
	time.Sleep(f.slow)
	return f.errno
}

// mount puts the disk over a folder.
func (d *disk) mount(folder string) (*fuse.Server, error) {
	root := &fs.LoopbackRoot{Path: d.keeper.shown}
	n := &node{LoopbackNode: fs.LoopbackNode{RootData: root}, d: d}
	root.RootNode = n
	second := time.Second
	server, err := fs.Mount(folder, n, &fs.Options{
		EntryTimeout: &second, AttrTimeout: &second,
		MountOptions: fuse.MountOptions{AllowOther: true, DirectMountStrict: true, FsName: "baddisk", Name: "baddisk",
			DisableXAttrs: true},
	})
	if err != nil {
		return nil, fmt.Errorf("mount on %s: %w", folder, err)
	}
	return server, nil
}

// node is a file or folder.
type node struct {
	fs.LoopbackNode
	d *disk
}

// WrapChild makes what is found below this node ours.
func (n *node) WrapChild(_ context.Context, _ fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{LoopbackNode: fs.LoopbackNode{RootData: n.RootData}, d: n.d}
}

func (n *node) name() string { return n.Path(n.Root()) } // below the root; empty for itself

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, fuseFlags, errno := n.LoopbackNode.Open(ctx, flags)
	return n.open(h, flags, errno), fuseFlags, errno
}

func (n *node) open(h fs.FileHandle, flags uint32, errno syscall.Errno) fs.FileHandle {
	if errno != 0 {
		return nil
	}
	if flags&unix.O_TRUNC != 0 {
		n.d.keeper.wrote(n.name(), 0, whole)
	}
	return &file{LoopbackFile: h.(*fs.LoopbackFile), n: n}
}

func (n *node) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*fs.Inode,
	fs.FileHandle, uint32, syscall.Errno) {
	if errno := n.d.meet("write"); errno != 0 {
		return nil, nil, 0, errno
	}
	in, h, fuseFlags, errno := n.LoopbackNode.Create(ctx, name, flags, mode, out)
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return in, &file{LoopbackFile: h.(*fs.LoopbackFile), n: in.Operations().(*node)}, fuseFlags, 0
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if errno := n.d.meet("write"); errno != 0 {
		return nil, errno
	}
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Unlink(ctx context.Context, name string) syscall.Errno {
	n.d.keeper.unlinks(n.name(), name)
	return n.LoopbackNode.Unlink(ctx, name)
}

func (n *node) Rmdir(ctx context.Context, name string) syscall.Errno {
	n.d.keeper.unlinks(n.name(), name)
	return n.LoopbackNode.Rmdir(ctx, name)
}

func (n *node) Rename(ctx context.Context, name string, parent fs.InodeEmbedder, newName string,
	flags uint32) syscall.Errno {
	n.d.keeper.unlinks(parent.(*node).name(), newName)
	return n.LoopbackNode.Rename(ctx, name, &parent.(*node).LoopbackNode, newName, flags)
}

func (n *node) Setattr(ctx context.Context, h fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	_, resized := in.GetSize()
	if resized {
		if errno := n.d.meet("write"); errno != 0 {
			return errno
		}
	}
	if f, ok := h.(*file); ok {
		h = f.LoopbackFile
	}
	errno := n.LoopbackNode.Setattr(ctx, h, in, out)
	if resized && errno == 0 {
		n.d.keeper.wrote(n.name(), 0, whole)
	}
	return errno
}

// OpendirHandle gives an open folder a sync of its own: the library's is of the
// shown folder, and the keeper would not hear of it.
func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	h, opened, errno := n.LoopbackNode.OpendirHandle(ctx, flags)
	if errno != 0 {
		return nil, 0, errno
	}
	return &folder{dirHandle: h.(dirHandle), n: n}, opened, 0
}

// dirHandle is what the library's handle of a folder can do.
type dirHandle interface {
	fs.FileReaddirenter
	fs.FileSeekdirer
	fs.FileReleasedirer
}

// folder is an open one.
type folder struct {
	dirHandle
	n *node
}

func (f *folder) Fsyncdir(_ context.Context, _ uint32) syscall.Errno {
	if errno := f.n.d.meet("sync"); errno != 0 {
		return errno
	}
	return fs.ToErrno(f.n.d.keeper.sync(f.n.name()))
}

// file is an open one.
type file struct {
	*fs.LoopbackFile
	n *node
}

// PassthroughFd would let the kernel pass by here.
func (f *file) PassthroughFd() (int, bool) { return 0, false }

func (f *file) Read(ctx context.Context, buf []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := f.n.d.meet("read"); errno != 0 {
		return nil, errno
	}
	return f.LoopbackFile.Read(ctx, buf, off)
}

func (f *file) Write(ctx context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := f.n.d.meet("write"); errno != 0 {
		return 0, errno
	}
	n, errno := f.LoopbackFile.Write(ctx, data, off)
	f.n.d.keeper.wrote(f.n.name(), off, int64(n))
	return n, errno
}

// Writev is Write where the library has the data in pieces.
func (f *file) Writev(ctx context.Context, data [][]byte, off int64) (uint32, syscall.Errno) {
	if errno := f.n.d.meet("write"); errno != 0 {
		return 0, errno
	}
	n, errno := f.LoopbackFile.Writev(ctx, data, off)
	f.n.d.keeper.wrote(f.n.name(), off, int64(n))
	return n, errno
}

func (f *file) Allocate(ctx context.Context, off, size uint64, mode uint32) syscall.Errno {
	if errno := f.n.d.meet("write"); errno != 0 {
		return errno
	}
	errno := f.LoopbackFile.Allocate(ctx, off, size, mode)
	f.n.d.keeper.wrote(f.n.name(), int64(off), int64(size))
	return errno
}

func (f *file) Fsync(_ context.Context, _ uint32) syscall.Errno {
	if errno := f.n.d.meet("sync"); errno != 0 {
		return errno
	}
	return fs.ToErrno(f.n.d.keeper.sync(f.n.name()))
}
