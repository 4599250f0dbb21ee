// Package shim decides how the ranks of one attempt of one job on one node are exec'd,
// watched and ended, and how their output and exit codes are kept. One process, `sparkrun
// shim DIR`, owns one attempt; it outlives the agent that started it, and the agent finds
// it again through DIR.
//
// It must not know clusters, networks, leaders, or any generation but its own key: why an
// attempt is started or ended is decided by whoever holds the socket. It must not end an
// attempt because one of its ranks failed, unless Config.EndOnFailure is set, and it must
// never exec a rank twice.
//
// DESIGN.md has the path of an exit code, PROTOCOL.md the protocol.
package shim
