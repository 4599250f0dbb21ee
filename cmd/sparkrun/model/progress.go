package model

import (
	"encoding/json"
	"io"
	"reflect"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fetchLine is a line of --json, of model pull and of launch: who is asked, what is fetched, a change of a machine.
type fetchLine struct {
	Type string `json:"type"` // "fetch"
	wire.ModelProgress
	// Rate and Left are of a machine that fetches, once they are known.
	Rate *int64 `json:"bytes_per_s,omitempty"`
	Left *int64 `json:"seconds_left,omitempty"`
}

// lines tells of a pull as JSON, a line for each change.
func (v *pullView) lines(out io.Writer) func(wire.ModelProgress) error {
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
