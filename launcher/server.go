package launcher

// Server describes a kind of server: by it an agent reads the server's metrics and log.
// Patterns are RE2's; an empty one matches nothing.
type Server struct {
	Metrics ServerMetrics
	Log     ServerLog
}

// ServerMetrics are names of Prometheus series.
type ServerMetrics struct {
	Running    string // requests under way; empty: it has no metrics
	Generated  string // tokens since its start
	Throughput string // tokens a second, if the server reports that itself; else empty
	// Progress are metrics that only work changes: another value of any is a sign of work.
	// MaxProgress at most.
	Progress []string
}

// MaxProgress bounds ServerMetrics.Progress.
const MaxProgress = 8

// ServerLog is how a server of several processes logs which of them has failed, and why.
type ServerLog struct {
	// Prefix is at the start of each line: the process, level, time and place.
	Prefix string
	// Elsewhere are exceptions whose cause another of its processes has logged.
	Elsewhere string
	// Died is logged about a process that ended without a message of its own: it was
	// killed, or it crashed. Vague is the part of that which says neither which process,
	// nor how it ended.
	Died, Vague string
	// Struck is logged about a process that something outside the program has ended.
	Struck string
	// Dead is logged if the server exits because one of its processes has failed, even with
	// 0.
	Dead string
	// Causes name a cause better than the exception that carries them.
	Causes []string
}
