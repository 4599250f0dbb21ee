// Package readiness decides whether a step's ranks are ready, and whether a service works,
// is slow or is stuck: by what they answer, print and count.
//
// It must not end, start or restart anything, and keeps nothing: it reports what it sees.
package readiness
