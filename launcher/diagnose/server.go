package diagnose

import (
	"regexp"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// A server is several processes, of which the one that is waited for says at its end only that
// another has failed. What that one said stands in the log before, each line behind a prefix.

// Servers reads the logs of all servers that are known. Those of others say what any program's output says.
type Servers struct {
	prefix, elsewhere, died, vague, struck, dead func() *regexp.Regexp
	causes                                       []func() *regexp.Regexp
}

// NewServers takes what is known of each server that nodes may run.
func NewServers(servers []launcher.Server) *Servers {
	any := func(of func(launcher.ServerLog) string) func() *regexp.Regexp {
		var all []string
		for _, s := range servers {
			if p := of(s.Log); p != "" {
				all = append(all, "(?:"+p+")")
			}
		}
		if all == nil {
			return compiled(`[^\s\S]`) // nothing
		}
		return compiled(strings.Join(all, "|"))
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
			logs.causes = append(logs.causes, compiled(c))
		}
	}
	return logs
}

// unprefixed are the lines without a prefix, as the program meant them; some: there was one.
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

// struckDown finds what was struck in a log, where nothing more is known than what others noticed of it.
func (s *Servers) struckDown(lines []string, found string) string {
	if found != "" && !peerLost().MatchString(found) && !s.elsewhere().MatchString(found) {
		return ""
	}
	return s.struck().FindString(strings.Join(lines, "\n"))
}

// toldBy finds the cause in the end of what a rank wrote to standard error, and in that of the
// other stream, where servers log. Of another program's only what is certain counts there.
// lost: it says no more than that a peer has gone.
func (s *Servers) toldBy(lines, aside []string) (words string, lost bool) {
	lines, _ = s.unprefixed(lines)
	aside, server := s.unprefixed(aside)
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

// lastSign finds, from the end, the exception that says why, or that a process has died; else
// one that says no more than that.
func (s *Servers) lastSign(lines []string) (vague string) {
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
