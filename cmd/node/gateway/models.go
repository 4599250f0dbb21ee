package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// modelEntry is a model in the lists of both APIs: each client reads its own fields.
type modelEntry struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	// Type, DisplayName and CreatedAt are Anthropic's.
	Type        string `json:"type"`
	DisplayName string `json:"display_name"`
	CreatedAt   string `json:"created_at"`
	// Root is the model that an alias stands for, or its own id.
	Root string `json:"root"`
	// State is the best of its services': ready, or another word of `sparkrun service ls`.
	State    string   `json:"state"`
	Text     string   `json:"text,omitempty"`
	Services []string `json:"services"`
	Aliases  []string `json:"aliases,omitempty"`
}

type modelList struct {
	Object  string       `json:"object"`
	Data    []modelEntry `json:"data"`
	HasMore bool         `json:"has_more"`
	FirstID *string      `json:"first_id"`
	LastID  *string      `json:"last_id"`
}

// models answers what models there are. It starts none.
func (g *Gateway) models(a *answer, r *http.Request, x *index, k *key) bool {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1/models")
	if !ok || rest != "" && rest[0] != '/' {
		return false
	}
	var v any
	no, _ := x.stale(g.cfg.Host, time.Now())
	switch id := strings.TrimPrefix(rest, "/"); {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		a.Header().Set("Allow", "GET, HEAD")
		no = refuse(405, "", "/v1/models takes GET, not %.16q", r.Method)
	case no != nil:
	case id == "":
		v = x.list(k)
	case !x.mayAsk(k, id):
		no = refuse(403, "", "key %s may not ask for model %.128q", k.name, id)
	default:
		if _, is := x.resolve(id); !is {
			no = x.unknown(id, k)
		} else {
			v = x.entry(id, k)
		}
	}
	if no != nil {
		g.refuseEarly(a, k, no)
		return true
	}
	b, err := json.Marshal(v)
	if err != nil { // of strings and numbers: it cannot
		panic(err)
	}
	a.Header().Set("Content-Type", "application/json")
	a.Header().Set("Content-Length", strconv.Itoa(len(b)))
	a.WriteHeader(http.StatusOK)
	a.Write(b) //nolint:errcheck // the client is gone
	return true
}

func (x *index) list(k *key) modelList {
	out := modelList{Object: "list", Data: []modelEntry{}}
	for _, name := range x.names(k) {
		out.Data = append(out.Data, x.entry(name, k))
	}
	if n := len(out.Data); n > 0 {
		out.FirstID, out.LastID = &out.Data[0].ID, &out.Data[n-1].ID
	}
	return out
}

// entry tells of a name that there is.
func (x *index) entry(name string, k *key) modelEntry {
	model, _ := x.resolve(name)
	e := modelEntry{
		ID: name, Object: "model", OwnedBy: "sparkrun", Type: "model", DisplayName: name,
		CreatedAt: "1970-01-01T00:00:00Z", Root: model,
	}
	best := x.models[model][0]
	for _, b := range x.models[model] {
		if b.Ready && !best.Ready || b.Comes && !best.Comes && !best.Ready {
			best = b
		}
		e.Services = append(e.Services, b.service())
	}
	if e.State, e.Text = best.State, best.Text; best.Ready {
		e.State = "ready"
	}
	for alias, of := range x.Gateway.Aliases {
		if _, own := x.models[alias]; of == name && !own && k.may(alias) {
			e.Aliases = append(e.Aliases, alias)
		}
	}
	slices.Sort(e.Aliases)
	return e
}

// greet tells who looks with a browser what this is.
func (g *Gateway) greet(a *answer, r *http.Request) {
	a.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintf(a, "sparkrun's gateway on %s: one address for all models of this cluster; the base URL for OpenAI's "+
		"clients is http://%s/v1, for Anthropic's http://%s\n", g.cfg.Host, r.Host, r.Host)
}
