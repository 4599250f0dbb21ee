//go:build !amd64

package proc

// There are none of these calls: no number is below 0.
const sysPoll, sysSelect, sysEpollWait = -1, -2, -3
