package witness

import (
	"math"
	"slices"
	"strings"
)

// once is P2: each rank of each generation is exec'd at most once.
func (c *checker) once() {
	type place struct {
		stage string
		rank  int32
	}
	for _, k := range c.keys {
		by := map[place]Record{}
		for _, r := range c.lives[k].starts {
			s := place{r.Stage, r.Rank}
			if first, twice := by[s]; twice {
				c.broken("P2", r.Boot, "%s: rank %d was exec'd as %d on %s and as %d on %s", k, r.Rank, first.PID,
					first.Host, r.PID, r.Host)
				continue
			}
			by[s] = r
		}
	}
}

// apart is P3: no process of a generation lives when a rank of a later one
// starts.
func (c *checker) apart() {
	for i, earlier := range c.keys {
		for _, later := range c.keys[i+1:] {
			if later.Job != earlier.Job {
				break
			}
			start, began := c.lives[later].first()
			if last := c.lives[earlier].latest(); began && last.Boot >= start.Boot {
				c.broken("P3", start.Boot,
					"%s: rank %d started on %s, and process %d of rank %d of %s lived on %s, %s later at least",
					later, start.Rank, start.Host, last.PID, last.Rank, earlier, last.Host, span(last.Boot-start.Boot))
			}
		}
	}
}

// together is P9: no rank starts before all nodes of its attempt are prepared, and
// where not all ranks have started within the start time-out, none lives on.
func (c *checker) together() {
	births := map[Key]map[string]Birth{}
	for _, b := range c.Births {
		if births[b.Key] == nil {
			births[b.Key] = map[string]Birth{}
		}
		births[b.Key][b.Host] = b
	}
	for _, k := range c.keys {
		l := c.lives[k]
		first, began := l.first()
		if !began {
			continue
		}
		if n := len(births[k]); n < int(first.Nodes) {
			c.broken("P9", first.Boot, "%s: rank %d started on %s, and %d of %d nodes were ever prepared", k,
				first.Rank, first.Host, n, first.Nodes)
		}
		for _, b := range births[k] {
			// By the clock of the wall, as the file system's: it may be set between two
			// boots, not within a start.
			if b.Real > first.Real {
				c.broken("P9", first.Boot, "%s: rank %d started on %s %s before %s was prepared", k, first.Rank,
					first.Host, span(b.Real-first.Real), b.Host)
			}
		}
		c.complete(k, first)
	}
}

func (c *checker) complete(k Key, first Record) {
	l := c.lives[k]
	limit := c.calm(first.Boot, c.StartTimeout+c.Kill)
	started := map[int32]bool{}
	for _, r := range l.starts {
		if r.Boot <= limit {
			started[r.Rank] = true
		}
	}
	if last := l.latest(); len(started) < int(first.World) && last.Boot > limit {
		c.broken("P9", limit, "%s: %d of %d ranks had started %s after the first, and process %d of rank %d lived on %s",
			k, len(started), first.World, span(limit-first.Boot), last.PID, last.Rank, last.Host)
	}
}

// gone is P6: when sparkrun says that a job has ended, or goes on with another generation, no process is left, whatever
// is broken; and where it has its doubts of a host, none a while after that is in reach again.
func (c *checker) gone() {
	ends := map[string][]Record{}
	for _, o := range c.Overs {
		ends[o.Job] = append(ends[o.Job], Record{Generation: math.MaxUint64, State: "over", Until: o.At})
	}
	for _, r := range c.Records {
		if r.Kind == State {
			ends[r.Job] = append(ends[r.Job], r)
		}
	}
	for _, k := range c.keys {
		seen := map[process]bool{}
		for _, r := range ends[k.Job] {
			if r.Generation < k.Generation || r.Generation == k.Generation && rankOf(r.State) != ended {
				continue
			}
			for p, last := range c.lives[k].last {
				if last.Boot <= r.Until || seen[p] ||
					slices.Contains(strings.Fields(r.Doubts), p.host) && last.Boot <= c.calm(r.Until, c.Kill) {
					continue
				}
				seen[p] = true
				c.broken("P6", r.Until, "%s: process %d of rank %d lived on %s, %s after the job was told to be %s, in generation %d, in doubt of %q", k,
					last.PID, last.Rank, last.Host, span(last.Boot-r.Until), r.State, r.Generation, r.Doubts)
			}
		}
	}
}

// heard is P10: where a rank fails the others are ended, when all have exited the job is not told to go on, and what is
// being ended ends.
func (c *checker) heard() {
	states, ends := map[Key][]Record{}, map[Key]int64{}
	for _, r := range c.Records {
		if r.Kind != State {
			continue
		}
		switch at := rankOf(r.State); {
		case r.State == "ending":
			if ends[r.Key()] == 0 || r.Until < ends[r.Key()] {
				ends[r.Key()] = r.Until
			}
			fallthrough
		case at == starting || at == running:
			states[r.Key()] = append(states[r.Key()], r)
		}
	}
	for k, since := range ends {
		limit := c.calm(since, c.Tell+c.Kill)
		if i := slices.IndexFunc(states[k], func(r Record) bool { return r.Boot > limit }); i >= 0 {
			c.broken("P10", limit, "%s: it was being ended, and still was %s later, as %s was told", k, span(states[k][i].Boot-since), states[k][i].Host)
		}
	}
	for _, k := range c.keys {
		l := c.lives[k]
		var all int64 // when the last one exited
		for _, e := range l.exits {
			all = max(all, e.Boot)
			if e.Code == 0 || e.State == Spares {
				continue
			}
			limit := c.calm(e.Boot, c.Tell)
			if last := l.latest(); last.Boot > limit {
				c.broken("P10", limit, "%s: rank %d exited with %d on %s, and process %d of rank %d lived on %s, %s later", k, e.Rank, e.Code, e.Host,
					last.PID, last.Rank, last.Host, span(last.Boot-e.Boot))
			}
		}
		first, began := l.first()
		if !began || len(l.exits) < int(first.World) {
			continue
		}
		limit := c.calm(all, c.Tell)
		if i := slices.IndexFunc(states[k], func(r Record) bool { return r.Boot > limit }); i >= 0 {
			r := states[k][i]
			c.broken("P10", limit, "%s: every rank had exited, and %s was told that it is %s, %s later", k, r.Host, r.State, span(r.Boot-all))
		}
	}
}

// honest is P11: a job is told to have completed where each rank has exited with 0, and to have failed with the code of one
// that did. 124 and 125 are sparkrun's own, and of who wrote down no exit it is not known how it ended.
func (c *checker) honest() {
	asked := map[Key]bool{}
	for _, r := range c.Records {
		l := c.lives[r.Key()]
		if r.Kind != State || rankOf(r.State) != ended || asked[r.Key()] || l == nil {
			continue
		}
		asked[r.Key()] = true
		first, began := l.first()
		well, same := 0, false
		for _, e := range l.exits {
			same = same || e.Code == r.Code
			if e.Code == 0 {
				well++
			}
		}
		all := began && len(l.exits) == int(first.World)
		switch {
		case r.State == "completed" && (r.Code != 0 || began && well < int(first.World)):
			c.broken("P11", r.Until, "%s: it was told to have completed with %d, and %d of %d ranks had exited with 0", r.Key(), r.Code, well, first.World)
		case r.State == "failed" && (r.Code == 0 || all && !same && r.Code != 124 && r.Code != 125):
			c.broken("P11", r.Until, "%s: it was told to have failed with %d, and no rank exited with that", r.Key(), r.Code)
		}
	}
}

// whole is P7: what is read back is what the rank wrote, from its first byte on,
// with nothing missing that is not told.
func (c *checker) whole() {
	for _, log := range c.Logs {
		l := c.lives[log.Key]
		if l == nil {
			if len(log.Pieces) > 0 {
				c.broken("P7", 0, "%s: there is output of rank %d, which never ran", log.Key, log.Rank)
			}
			continue
		}
		c.compare(log, l)
	}
}

func (c *checker) compare(log Log, l *life) {
	lines := slices.SortedStableFunc(slices.Values(l.lines[log.Rank]),
		func(a, b Record) int { return int(a.Number) - int(b.Number) })
	var wrote []byte
	for i, r := range lines {
		text := Text(log.Key, log.Rank, r.Number)
		if r.Number != uint64(i+1) || r.Hash != Hash(text) {
			return // exec'd twice, as P2 tells: two wrote into one stream
		}
		wrote = append(wrote, text...)
	}
	var next int64
	missing := 0
	for _, p := range log.Pieces {
		if p.Offset > next {
			missing++
		}
		end := p.Offset + int64(len(p.Data))
		if p.Offset < next || end > int64(len(wrote)) || string(wrote[p.Offset:end]) != p.Data {
			c.broken("P7", 0, "%s: rank %d: what was read at byte %d (%.60q) is not what it wrote there", log.Key,
				log.Rank, p.Offset, p.Data)
			return
		}
		next = end
	}
	if missing > log.Notes {
		c.broken("P7", 0, "%s: rank %d: output is missing in %d places, and %d are told of", log.Key, log.Rank,
			missing, log.Notes)
	}
	// Who exited by itself had written everything: only a power cut may take the end.
	exit, exited := l.exits[log.Rank]
	if exited && next < int64(len(wrote)) && log.Notes <= missing && !c.lostPower(log.Host, exit.Boot) {
		c.broken("P7", exit.Boot, "%s: rank %d wrote %d bytes and exited, %d came back", log.Key, log.Rank, len(wrote), next)
	}
}

// lostPower tells whether a host went off at t or later.
func (c *checker) lostPower(host string, t int64) bool {
	return slices.ContainsFunc(c.Faults, func(f Fault) bool {
		return f.Host == host && f.What == Power && (f.To == 0 || f.To >= t)
	})
}
