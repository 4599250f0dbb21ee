package diagnose

import (
	"regexp"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// A server has several processes; the one whose exit is seen only says that another has
// failed. What that one said is earlier in the log, with a prefix on each line.

// Servers reads the logs of all known servers. For other programs only the common patterns
// apply.
type Servers struct {
	prefix, elsewhere, died, vague, struck, dead func() *regexp.Regexp
	causes                                       []func() *regexp.Regexp
}

// NewServers compiles what is known of each server that nodes may run.
func NewServers(servers []launcher.Server) *Servers {
	any := func(of func(launcher.ServerLog) string) func() *regexp.Regexp {
		var all []string
		for _, s := range servers {
			if p := of(s.Log); p != "" {
				all = append(all, "(?:"+p+")")
			}
		}
		if all == nil {
			return plain.Pattern(`[^\s\S]`) // matches nothing
		}
		return plain.Pattern(strings.Join(all, "|"))
	}
	logs := &Servers{
		prefix:    any(func(l launcher.ServerLog) string { return l.Prefix }),
		elsewhere: any(func(l launcher.ServerLog) string { return l.Elsewhere }),
		died:      any(func(l launcher.ServerLog) string { return l.Died }),
		vague:     any(func(l launcher.ServerLog) string { return l.Vague }),
		struck:    any(func(l launcher.ServerLog) string { return l.Struck }),
		dead:      any(func(l launcher.ServerLog) string { return l.Dead }),
	}
	for _, s := range servers {
		for _, c := range s.Log.Causes {
			logs.causes = append(logs.causes, plain.Pattern(c))
		}
	}
	return logs
}

// unprefixed are the lines without their prefix, as the process wrote them; some: a line
// had one.
func (s *Servers) unprefixed(lines []string) (out []string, some bool) {
	out = make([]string, len(lines))
	for i, l := range lines {
		n := 0
		if at := s.prefix().FindStringIndex(l); at != nil && at[0] == 0 {
			n = at[1]
		}
		out[i], some = l[n:], some || n > 0
	}
	return out, some
}

// killedProcess finds the process that was killed in a log, if otherwise only its peers'
// errors are known.
func (s *Servers) killedProcess(lines []string, found string) string {
	if found != "" && !peerLost().MatchString(found) && !s.elsewhere().MatchString(found) {
		return ""
	}
	return s.struck().FindString(strings.Join(lines, "\n"))
}

// causeIn finds the cause in the end of a rank's stderr, and in that of its stdout, where
// servers log. For other programs stdout counts only where it is certain. lost: the words
// only say that a peer has gone.
func (s *Servers) causeIn(lines, aside []string, e launcher.Exit) (words string, lost bool) {
	lines, _ = s.unprefixed(lines)
	aside, server := s.unprefixed(aside)
	lines, aside = fitting(lines, e), fitting(aside, e)
	if words, lost = s.recognise(lines); words != "" && !s.elsewhere().MatchString(words) {
		return words, lost
	}
	if server {
		if more, gone := s.recognise(aside); more != "" {
			return more, gone || s.elsewhere().MatchString(more)
		}
	} else if known := s.causeAside(aside); known != "" {
		return known, lost
	}
	return words, lost || s.elsewhere().MatchString(words)
}

// lastException searches from the end for the exception that says why, or that a process has
// died; else for one that says no more than that.
func (s *Servers) lastException(lines []string) (vague string) {
	for i := len(lines) - 1; i >= 0; i-- {
		m := exception().FindString(lines[i])
		if m == "" {
			m = s.died().FindString(lines[i])
		}
		switch {
		case m == "" || childFailed().MatchString(m):
		case s.vague().MatchString(m), s.elsewhere().MatchString(m) && vague == "":
			vague = m
		case !s.elsewhere().MatchString(m):
			return m
		}
	}
	return vague
}
