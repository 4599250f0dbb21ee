// Package bootstrap decides how a bare host becomes a node over SSH, and how a node becomes
// bare again: which user it logs in as, which hosts it refuses and why, and in which order
// binary, unit, group, membership and agent come.
//
// It must not keep keys or passwords beyond one run, must not copy a key to any host, and
// must not talk to a host whose key nobody has confirmed. It knows nothing of raft or
// certificates: sparkrun init and sparkrun join on the host make it a member, and the token
// comes from Cluster.
//
// DESIGN.md has the order of the steps.
package bootstrap
