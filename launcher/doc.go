// Package launcher holds the types of a launch: what is asked for (Spec), what one node is
// told (Order, Assignment), what it answers (Event, LedgerEntry), and the states of a rank.
// It decides which order is stale, how a value with references is resolved, and which exit
// of an attempt is the cause.
//
// It must not do anything: it touches no process, file, clock or socket, and imports only
// the standard library.
package launcher
