package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Line is one line of what is kept of a run: exactly one field is set.
type Line struct {
	Run     *Header `json:"run,omitempty"` // the first, and another wherever the run was resumed
	Server  *Server `json:"server,omitempty"`
	Stopped string  `json:"stopped,omitempty"` // the job of a server that was stopped
	Result  *Result `json:"result,omitempty"`
	Ended   *Ended  `json:"ended,omitempty"`
}

// Header is the begin of a run, or of its resumption.
type Header struct {
	ID   string    `json:"id"`
	Name string    `json:"name"`
	File string    `json:"file"` // absolute
	Text string    `json:"text"` // of the file
	Dir  string    `json:"dir"`  // in which it is run, also once resumed
	At   time.Time `json:"at"`
	Only []string  `json:"only,omitempty"`
	// Circumstances are versions, machines and the like; what is not known is not there.
	Circumstances []Setting `json:"circumstances"`
}

// Server is one that was started, and has to be stopped.
type Server struct {
	Job    string   `json:"job"`
	URL    string   `json:"url,omitempty"`
	Hosts  []string `json:"hosts,omitempty"`
	Engine string   `json:"engine,omitempty"` // its version, where it says one
	Took   float64  `json:"took_s,omitempty"` // until it answered
}

// Result is one run of a case.
type Result struct {
	Key string `json:"key"`
	Case
	Repeat int       `json:"repeat"` // from 1
	At     time.Time `json:"at"`
	Client string    `json:"client,omitempty"` // what has asked the server
	Server *Server   `json:"server,omitempty"`
	// Before and After are the GPUs of all machines around the run.
	Before []GPU `json:"before,omitempty"`
	After  []GPU `json:"after,omitempty"`

	Figures []Figure `json:"figures,omitempty"`
	Input   int      `json:"input_tokens,omitempty"`
	Output  int      `json:"output_tokens,omitempty"`
	Notes   []string `json:"notes,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// Begun is a case's run that has no figures yet.
func (c Case) Begun(repeat int) Result {
	return Result{Key: c.Key(), Case: c, Repeat: repeat, At: time.Now().UTC()}
}

// GPU is one at a moment.
type GPU struct {
	Host     string   `json:"host"`
	Index    int      `json:"index"`
	Name     string   `json:"name,omitempty"`
	MHz      *float64 `json:"clock_mhz,omitempty"`
	Watts    *float64 `json:"watts,omitempty"`
	Celsius  *float64 `json:"celsius,omitempty"`
	Throttle []string `json:"throttle,omitempty"`
}

// Ended is a run's end; without one it was interrupted.
type Ended struct {
	At     time.Time `json:"at"`
	Failed int       `json:"failed"`
}

// Run is what is kept of one.
type Run struct {
	Headers []Header `json:"run"`
	Results []Result `json:"results"`
	Ended   *Ended   `json:"ended,omitempty"`
	// Left is the job of a server that was started and, as far as is known, not stopped.
	Left string `json:"left,omitempty"`
}

// ReadRun reads what is kept of a run. A line that was cut off by a crash or a full disk is passed over.
func ReadRun(text []byte) (r Run, err error) {
	r.Results = []Result{}
	for raw := range bytes.Lines(text) {
		var l Line
		if json.Unmarshal(raw, &l) != nil {
			continue
		}
		switch {
		case l.Run != nil:
			r.Headers, r.Ended = append(r.Headers, *l.Run), nil
		case l.Server != nil:
			r.Left = l.Server.Job
		case l.Stopped != "" && l.Stopped == r.Left:
			r.Left = ""
		case l.Result != nil:
			r.Results = append(r.Results, *l.Result)
		case l.Ended != nil:
			r.Ended = l.Ended
		}
	}
	if len(r.Headers) == 0 {
		return r, fmt.Errorf("it is no run of benchmarks: its first line has no circumstances")
	}
	return r, nil
}

// ID is the run's name, Name that of its file.
func (r Run) ID() string   { return r.Headers[0].ID }
func (r Run) Name() string { return r.Headers[0].Name }

// Last has the file and the circumstances as they were last.
func (r Run) Last() Header { return r.Headers[len(r.Headers)-1] }

// Done tells whether a repeat of a case has been measured.
func (r Run) Done(key string, repeat int) bool {
	return slices.ContainsFunc(r.Results, func(s Result) bool { return s.Key == key && s.Repeat == repeat && s.Error == "" })
}

// Group is all that was measured of one case, which is as it was last.
type Group struct {
	Case
	Figures []Samples
	Results []Result
	Error   string // of a repeat that has not been made good since
}

func (g Group) figure(name string) *Samples {
	if i := slices.IndexFunc(g.Figures, func(s Samples) bool { return s.Name == name }); i >= 0 {
		return &g.Figures[i]
	}
	return nil
}

// Samples are a figure's values, one a repeat.
type Samples struct {
	Name, Unit string
	Better     Better
	Values     []float64
}

// Groups puts results together by case, in the order in which they were first measured. Where a case was changed
// between a run and its resumption, what was measured before is not its own any more; where a run has ended without a
// failure, what had failed before is of cases that there are no more.
func (r Run) Groups() (out []Group) {
	last := map[string]Result{}
	for _, s := range r.Results {
		last[s.Label()] = s
	}
	at := map[string]int{}
	for _, s := range r.Results {
		label := s.Label()
		if s.Key != last[label].Key {
			continue
		}
		i, had := at[label]
		if !had {
			i, at[label], out = len(out), len(out), append(out, Group{Case: last[label].Case})
		}
		g := &out[i]
		if s.Error != "" {
			if !r.Done(s.Key, s.Repeat) {
				g.Error = s.Error
			}
			continue
		}
		g.Results = append(g.Results, s)
		for _, f := range s.Figures {
			if had := g.figure(f.Name); had != nil {
				had.Values = append(had.Values, f.Value)
			} else {
				g.Figures = append(g.Figures, Samples{f.Name, f.Unit, f.Better, []float64{f.Value}})
			}
		}
	}
	if r.Ended != nil && r.Ended.Failed == 0 {
		out = slices.DeleteFunc(out, func(g Group) bool { return g.Error != "" && len(g.Results) == 0 })
	}
	return out
}
