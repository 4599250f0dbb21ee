// Package mpi is what an MPI program needs of its launcher: which family of MPI
// a program is linked to, PMI-1 towards ranks of the MPICH family (the key-value
// space, its barriers, their part that spans nodes), and Open MPI's daemons.
//
// It must not start ranks, know nodes by name, or open a connection to one: whoever
// serves a Space or joins a Meeting brings these. The road of a barrier is told in
// DESIGN.md.
package mpi
