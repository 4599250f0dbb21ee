// Package rendezvous decides which nodes are members, on which of them a job's
// ranks run and in what order, at which address they meet, and what the
// replicated record says of every job. All of it is pure: the record is a
// deterministic state machine, placement a function.
//
// It must not do I/O: gossip, raft, TLS, RPC and the leader's loop are its
// children's business, and starting ranks is the launcher's.
package rendezvous
