// Package bootstrap decides how a bare host becomes a node over SSH, and how a
// node becomes bare again: whom it logs in to and as whom, which hosts it refuses
// and why, in which order binary, unit, group, membership and agent come.
//
// It must not keep keys or passwords beyond one run, must not copy a key to any
// host, and must not talk to a host whose key nobody has vouched for. It knows
// nothing of raft or certificates: what makes a member of a host is sparkrun init
// and sparkrun join there, and the token is one that Cluster gives.
//
// The road is told in DESIGN.md.
package bootstrap
