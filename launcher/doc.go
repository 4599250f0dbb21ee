// Package launcher holds the words of a launch: what is asked for (Spec), what
// one node is told (Order, Assignment), what it answers (Event, LedgerEntry),
// and the states a rank passes through. It decides which order is stale, how a
// value with references is resolved, and which exit of an attempt is the cause.
//
// It must not do anything: no process, file, clock or socket is touched here,
// and nothing but the standard library is imported.
package launcher
