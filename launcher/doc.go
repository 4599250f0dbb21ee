// Package launcher holds the types of a launch: what is asked for (Spec), what one node is
// told (Order, Assignment), what it answers (Event, LedgerEntry), and the states of a rank.
// It decides which order is stale, how a value with references is resolved, and which exit
// of an attempt is the cause.
//
// What a user asks of each rank's process is a field of RankOptions, which is passed whole: its
// flag is bound in cmd/sparkrun/launch, and launcher/shim/confine.go sets it just before the
// exec; for a rank in a container launcher/container/outer.go does.
//
// It must not do anything: it touches no process, file, clock or socket, and imports only
// the standard library.
package launcher
