// Package mpi is what an MPI program needs of its launcher. It decides which family of MPI
// a program is linked with, and serves PMI-1 to ranks of the MPICH family (the key-value
// space, its barriers, their part that spans nodes) and Open MPI's daemons.
//
// It must not start ranks, know nodes by name, or connect to one: whoever serves a Space or
// joins a Meeting does that. DESIGN.md has the steps of a barrier.
package mpi
