package launcher

// Server is a kind of server by what it calls things: an agent reads its metrics and its log by this.
// Patterns are RE2's; an empty one matches nothing.
type Server struct {
	Metrics ServerMetrics
	Log     ServerLog
}

// ServerMetrics are names of Prometheus series.
type ServerMetrics struct {
	Running    string // requests that it is at; empty: it has no metrics
	Generated  string // tokens since its start
	Throughput string // tokens a second, where the server says so itself; else empty
	// Progress grow, or change, with work alone: another value of any is a sign of it. MaxProgress
	// at most.
	Progress []string
}

// MaxProgress bounds ServerMetrics.Progress.
const MaxProgress = 8

// ServerLog is how a server of several processes tells which of them has failed, and why.
type ServerLog struct {
	// Prefix stands before each line: the process, level, time and place.
	Prefix string
	// Elsewhere are exceptions whose cause another of its processes has told.
	Elsewhere string
	// Died is said of a process that ended without a word of its own: it was killed, or it crashed.
	// Vague is the part of that which does not say which process, nor how it ended.
	Died, Vague string
	// Struck is said of a process that something outside the program has ended.
	Struck string
	// Dead is said where the server leaves because one of its processes has failed, though it exits with 0.
	Dead string
	// Causes name a cause better than the exception that carries them.
	Causes []string
}
