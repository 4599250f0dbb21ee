// Command baddisk is a disk that hangs, fails, is slow, and forgets what was not
// fsynced.
//
//	baddisk FOLDER
//
// It mounts itself over FOLDER, and shows what that held. It is healthy until
// orders come on stdin, a line each, answered by `done`:
//
//	hang KIND...          operations of these kinds (read, write, sync) wait for `well`
//	fail KIND... ERRNO    they are refused: ENOSPC, EIO, EROFS
//	slow KIND... DURATION they take so much longer: 300ms
//	well                  all is well again
//
// A process that waits in a hung disk is in state D and cannot be killed before the
// disk is. Killing the disk is the power failing: FOLDER then holds what was fsynced
// (see keep.go). It needs root and /dev/fuse; afterwards the folder is unmounted by
// `umount -l`.
package main

import (
	"bufio"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: baddisk FOLDER")
		os.Exit(2)
	}
	if err := serve(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "baddisk:", err)
		os.Exit(1)
	}
}

func serve(folder string) error {
	// By its descriptor the folder below the mount stays within reach.
	below, err := unix.Open(folder, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", folder, err)
	}
	shown, err := os.MkdirTemp("", "baddisk-")
	if err != nil {
		return fmt.Errorf("make a folder for what is not fsynced: %w", err)
	}
	k, err := newKeeper(shown, fmt.Sprintf("/proc/self/fd/%d", below))
	if err != nil {
		return err
	}
	d := &disk{keeper: k, faults: map[kind]fault{}}
	server, err := d.mount(folder)
	if err != nil {
		return err
	}
	fmt.Println("mounted on", folder)
	orders := bufio.NewScanner(os.Stdin)
	for orders.Scan() {
		if err := d.order(orders.Text()); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("done")
	}
	server.Wait() // nobody gives orders any more
	return nil
}
