package pull

import (
	"encoding/json"
	"io"
	"reflect"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fetchLine is a line of --json, of pulls and of launch: who is asked, what is fetched, a change of a machine.
type fetchLine struct {
	Type string `json:"type"` // "fetch"
	wire.ModelProgress
	// Rate and Left are of a machine that fetches, once they are known.
	Rate *int64 `json:"bytes_per_s,omitempty"`
	Left *int64 `json:"seconds_left,omitempty"`
}

// Lines tells of a pull as JSON, a line for each change.
func (v *View) Lines(out io.Writer) func(wire.ModelProgress) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	return func(p wire.ModelProgress) error {
		before := v.remember(p)
		if p.Host != "" && reflect.DeepEqual(before, p) {
			return nil
		}
		line := fetchLine{Type: "fetch", ModelProgress: p}
		if p.State == wire.ModelFetches {
			if perSecond := v.rates[p.Host].perSecond(); perSecond > 0 {
				line.Rate, line.Left = new(int64(perSecond)), new(int64(float64(p.Bytes-p.Have)/perSecond))
			}
		}
		return enc.Encode(line)
	}
}

// rate is how fast bytes come, over the last seconds.
type rate struct {
	at   []time.Time
	have []int64
}

const rateOver = 5 * time.Second

func (r *rate) add(now time.Time, have int64) {
	r.at, r.have = append(r.at, now), append(r.have, have)
	for len(r.at) > 2 && now.Sub(r.at[0]) > rateOver {
		r.at, r.have = r.at[1:], r.have[1:]
	}
}

// perSecond is 0 where it is not known yet.
func (r *rate) perSecond() float64 {
	n := len(r.at)
	if n < 2 || r.at[n-1].Sub(r.at[0]) < time.Second {
		return 0
	}
	return float64(r.have[n-1]-r.have[0]) / r.at[n-1].Sub(r.at[0]).Seconds()
}
