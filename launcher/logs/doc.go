// Package logs decides how the output that a shim keeps of its ranks is read: by offset, from a time or a number of
// last lines on, followed while it grows, with what was lost named; and whose old output goes first.
//
// It must not write output, end a rank, or know what an attempt is: whether more can come it is told.
package logs
