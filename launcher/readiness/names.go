package readiness

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// A server may answer to more names than the one of its model: those of LoRA adapters, which may also come and go
// while it runs, and further ones of the model itself. It lists them at /v1/models.

const (
	namesEach = time.Minute // between two looks at the list
	namesMost = 64          // further names of one service
	nameMost  = 128         // bytes, as of a model that a key is limited to
)

// names are those besides its model's that the service lists, as of the last answer.
func (w *Watcher) names(ctx context.Context) []string {
	model := w.Assignment.Spec.Service.Model
	if model == "" || time.Since(w.listed) < namesEach {
		return w.seen.Models
	}
	w.listed = time.Now()
	ctx, cancel := context.WithTimeout(ctx, metricsWait)
	defer cancel()
	var list listed
	if err := askJSON(ctx, http.MethodGet, "http://"+w.addr+"/v1/models", nil, &list); err != nil {
		return w.seen.Models // it is no server of models, or asks for a key
	}
	return list.beside(model)
}

// listed is the answer of /v1/models. vLLM and SGLang tell whose adapter one is, and vLLM whose other name; llama.cpp
// has all names of a model in one entry.
type listed struct {
	Data []struct {
		ID      string   `json:"id"`
		Root    string   `json:"root"`
		Parent  string   `json:"parent"`
		Aliases []string `json:"aliases"`
	} `json:"data"`
}

// beside are the other names of a model, and those of its adapters. What else a server lists it may not have loaded.
func (l listed) beside(model string) []string {
	var out []string
	add := func(name string) {
		if name != model && name != "" && len(name) <= nameMost && plain.Is(name) && len(out) < namesMost &&
			!slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	for _, own := range l.Data {
		if own.ID != model && !slices.Contains(own.Aliases, model) {
			continue
		}
		for _, other := range l.Data {
			if other.ID == own.ID || other.Parent == own.ID || other.Parent == "" && own.Root != "" && other.Root == own.Root {
				add(other.ID)
			}
		}
		for _, alias := range own.Aliases {
			add(alias)
		}
	}
	slices.Sort(out)
	return out
}
