// Package logs decides how the output that a shim keeps of its ranks is read: by offset,
// from a time or a number of last lines on, followed while it grows, with lost parts named;
// and which old output is removed first.
//
// It must not write output, end a rank, or know what an attempt is: its caller knows
// whether more can come.
package logs
