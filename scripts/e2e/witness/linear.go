package witness

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Told is what an answer says of a job.
type Told string

const (
	Accepted Told = "accepted" // of a launch; of all others that it has not ended
	Ended    Told = "ended"
	NoSuch   Told = "no such job"
)

// Ask is something that a user typed about a job, which is launched once and known by its name. An answer that leaves
// open what has come of it is none: a launch stays asked then, and a stop says nothing.
type Ask struct {
	Name     string
	Launch   bool
	Told     Told
	Host     string
	From, To int64 // as Boot counts; To is 0 while there is no answer
}

func (a Ask) String() string {
	what := "told"
	if a.Launch {
		what = "launched"
	}
	until := "..."
	if a.To != math.MaxInt64 {
		until = fmt.Sprintf("+%s", span(a.To-a.From))
	}
	return fmt.Sprintf("%s %s%s %s %s", a.Host, span(a.From), until, what, a.Told)
}

// job is what an answer may say of one job, whose states are what is told of it.
var job = porcupine.Model{
	Init: func() any { return NoSuch },
	Step: func(state, input, _ any) (bool, any) {
		is, a := state.(Told), input.(Ask)
		if a.Launch {
			return is == NoSuch, Accepted
		}
		return is == a.Told || is == Accepted && a.Told == Ended, a.Told // it may have ended meanwhile, by itself too
	},
}

// Remembers is how many jobs sparkrun keeps: an answer with so many says nothing by what it lacks.
const Remembers = 500

// linear is P1: what was typed about a job and what was answered, on whichever hosts, has an order in time in which
// each answer is true. What was accepted is there from then on, for everybody; what has ended has ended for everybody.
func (c *checker) linear() {
	looks := c.looks()
	for _, a := range c.Asks {
		if !a.Launch {
			looks[a.Name] = append(looks[a.Name], a)
		}
	}
	for _, a := range c.Asks {
		if !a.Launch {
			continue
		}
		all := append(slices.Clone(looks[a.Name]), a)
		slices.SortStableFunc(all, func(a, b Ask) int { return cmp.Compare(a.From, b.From) })
		var ops []porcupine.Operation
		var story strings.Builder
		for _, o := range all {
			if o.To == 0 {
				o.To = math.MaxInt64
			}
			ops = append(ops, porcupine.Operation{Input: o, Call: o.From, Return: o.To})
			o.From, o.To = o.From-a.From, min(o.To, o.To-a.From)
			fmt.Fprintf(&story, "\n\t%s", o)
		}
		if !porcupine.CheckOperations(job, ops) {
			c.broken("P1", a.From, "job %s: there is no order in which all of this is true:%s", a.Name, &story)
		}
	}
}

// looks gives what observers were told of each job that was launched. Of answers in a row that say the same the first and
// the last are enough: a job's states only go on, so that those between are true if these are.
func (c *checker) looks() map[string][]Ask {
	type answer struct {
		host string
		pid  int32
		at   int64
	}
	type observer struct {
		name, host string
		pid        int32
	}
	told := map[answer]map[string]Told{}
	says := func(r Record, t Told) {
		k := answer{r.Host, r.PID, r.Boot}
		if told[k] == nil {
			told[k] = map[string]Told{}
		}
		told[k][r.Name] = t
	}
	var answers []Record
	for _, r := range c.Records {
		switch r.Kind {
		case Answer:
			answers = append(answers, r)
		case State:
			says(r, Accepted)
			if rankOf(r.State) == ended {
				says(r, Ended)
			}
		case Gone:
			says(r, NoSuch)
		}
	}
	slices.SortFunc(answers, func(a, b Record) int { return cmp.Compare(a.Boot, b.Boot) })
	by := map[observer][]Ask{}
	for _, r := range answers {
		for _, a := range c.Asks {
			if !a.Launch {
				continue
			}
			o := observer{a.Name, r.Host, r.PID}
			t := told[answer{r.Host, r.PID, r.Boot}][a.Name]
			if n := len(by[o]); t == "" && n > 0 && by[o][n-1].Told == Ended {
				t = Ended // it is written down once
			}
			if t = cmp.Or(t, NoSuch); t == NoSuch && r.Number >= Remembers {
				continue
			}
			look := Ask{Name: a.Name, Told: t, Host: r.Host, From: r.Boot, To: r.Until}
			if n := len(by[o]); n > 1 && by[o][n-1].Told == t && by[o][n-2].Told == t {
				by[o][n-1] = look
			} else {
				by[o] = append(by[o], look)
			}
		}
	}
	looks := map[string][]Ask{}
	for o, all := range by {
		looks[o.name] = append(looks[o.name], all...)
	}
	return looks
}
