package gateway

import (
	"net/http"
	"strings"
)

// route is a path that engines answer.
type route struct {
	form form
	// previous: it may go on with an earlier answer, which only the engine that gave it has.
	previous bool
	// streams: its answer may be a stream.
	streams bool
}

var routes = map[string]*route{
	"/v1/chat/completions":      {streams: true},
	"/v1/completions":           {streams: true},
	"/v1/responses":             {streams: true, previous: true},
	"/v1/embeddings":            {},
	"/v1/rerank":                {},
	"/v1/score":                 {},
	"/v1/audio/transcriptions":  {},
	"/v1/audio/translations":    {},
	"/v1/audio/speech":          {},
	"/v1/messages":              {form: anthropic, streams: true},
	"/v1/messages/count_tokens": {form: anthropic},
}

// kept is what is asked of an earlier answer by its id.
var keptRoute = &route{}

const pathsThereAre = "POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/rerank, " +
	"/v1/score, /v1/audio/transcriptions, /v1/audio/translations, /v1/audio/speech, /v1/messages, " +
	"/v1/messages/count_tokens; GET /v1/models, /metrics, /health"

// formOf is the API that a client speaks, as far as its request tells.
func formOf(r *http.Request) form {
	if strings.HasPrefix(r.URL.Path, "/v1/messages") || r.Header.Get("Anthropic-Version") != "" {
		return anthropic
	}
	return openAI
}

// unknownPath tells of a path that there is not.
func unknownPath(path string) *refusal {
	if _, is := routes["/v1"+path]; is || path == "/models" {
		return refuse(404, "", "no path %.100q: the base URL of OpenAI's clients ends in /v1", path)
	}
	if short, had := strings.CutPrefix(path, "/v1/v1/"); had {
		return refuse(404, "", "no path %.100q: the base URL of this client ends without /v1 (want /v1/%.80s)", path, short)
	}
	return refuse(404, "", "no path %.100q; there are %s", path, pathsThereAre)
}

// keptAnswer takes the id out of a path like /v1/responses/ID, with what may follow.
func keptAnswer(r *http.Request) (id string, ok bool) {
	rest, ok := strings.CutPrefix(r.URL.Path, "/v1/responses/")
	if !ok {
		return "", false
	}
	id, more, _ := strings.Cut(rest, "/")
	for _, c := range []byte(id) { // nothing by which a path is led elsewhere
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '_' && c != '-' {
			return "", false
		}
	}
	switch {
	case id == "":
		return "", false
	case more == "" && !strings.HasSuffix(rest, "/"):
		return id, r.Method == http.MethodGet || r.Method == http.MethodDelete
	case more == "cancel":
		return id, r.Method == http.MethodPost
	case more == "input_items":
		return id, r.Method == http.MethodGet
	}
	return "", false
}
