// Package container decides what the container of a rank looks like: Host finds out which
// engine, image, mounts and GPU a node has for it, and removes containers that were left.
// It also starts, watches and ends the container in the rank's place: its outer half is the
// rank for the process that forked it.
//
// It must not know why a rank is started or ended, and must not remove a container on its
// own: whether a generation has ended is decided elsewhere.
//
// DESIGN.md has the steps of a start and of an end.
package container
