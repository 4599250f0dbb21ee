// Package container decides what a container is asked to be in which a rank
// runs: Host finds out on a node what engine, image, mounts and GPU there are
// for it, and removes containers that were left. And it starts, watches and ends
// the container in the rank's place: for whoever forked it, its outer half is the rank.
//
// It must not know why a rank is started or ended, and must not remove a container
// of its own accord: whether a generation has ended is decided elsewhere.
//
// The road of a start and of an end is told in DESIGN.md.
package container
