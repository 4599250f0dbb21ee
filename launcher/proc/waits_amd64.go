package proc

import "golang.org/x/sys/unix"

// The calls that younger architectures have only with a mask of signals.
const sysPoll, sysSelect, sysEpollWait = unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_EPOLL_WAIT
