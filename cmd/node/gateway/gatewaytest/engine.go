package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// cancelled counts requests whose clients went away.
var cancelled atomic.Int64

// engine answers as vLLM does, as far as clients look. What it does stands in the last message: "die" breaks off in
// the midst, "long" sends a token each 100 ms for 10 s, "short" for 0.5 s, "slow" takes 200 ms for an answer that is no
// stream, "refuse" is refused, "tool" is answered with a tool's call.
func engine() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /cancelled", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, cancelled.Load()) })
	mux.HandleFunc("POST /v1/chat/completions", chat)
	mux.HandleFunc("POST /v1/messages", messages)
	mux.HandleFunc("POST /v1/messages/count_tokens", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck
		say(w, 200, `{"input_tokens":7}`)
	})
	mux.HandleFunc("POST /v1/embeddings", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) //nolint:errcheck
		say(w, 200, `{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.5,1]}],`+
			`"usage":{"prompt_tokens":2,"total_tokens":2}}`)
	})
	mux.HandleFunc("POST /v1/responses", responses)
	mux.HandleFunc("POST /v1/audio/transcriptions", func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1 << 20); err != nil {
			say(w, 400, `{"error":{"message":"no form"}}`)
			return
		}
		say(w, 200, fmt.Sprintf(`{"text":"heard for %s"}`, r.FormValue("model")))
	})
	return mux
}

func say(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	io.WriteString(w, body) //nolint:errcheck
}

type asked struct {
	Model    string `json:"model"`
	Stream   bool   `json:"stream"`
	Messages []struct {
		Content any `json:"content"`
	} `json:"messages"`
	Previous string `json:"previous_response_id"`
}

func (a asked) last() string {
	if len(a.Messages) == 0 {
		return ""
	}
	return fmt.Sprint(a.Messages[len(a.Messages)-1].Content)
}

func read(w http.ResponseWriter, r *http.Request) (asked, bool) {
	var a asked
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		say(w, 400, `{"error":{"message":"not JSON","type":"BadRequestError","code":400}}`)
		return a, false
	}
	if strings.Contains(a.last(), "refuse") {
		say(w, 400, `{"object":"error","error":{"message":"the engine refuses this","type":"BadRequestError","code":400}}`)
		return a, false
	}
	return a, true
}

// send streams events, and gives whether they all went out.
func send(w http.ResponseWriter, r *http.Request, last string, begin []string, token func(int) string, end []string) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	n, each := 5, time.Duration(0)
	if strings.Contains(last, "long") {
		n, each = 100, 100*time.Millisecond
	}
	if strings.Contains(last, "short") {
		each = 100 * time.Millisecond
	}
	flush := http.NewResponseController(w).Flush
	for _, e := range begin {
		io.WriteString(w, e+"\n\n") //nolint:errcheck
	}
	for i := range n {
		if strings.Contains(last, "die") && i == 3 {
			io.WriteString(w, token(i)[:20]) //nolint:errcheck
			flush()                          //nolint:errcheck
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, token(i)+"\n\n") //nolint:errcheck
		flush()                            //nolint:errcheck
		if each > 0 {
			select {
			case <-time.After(each):
			case <-r.Context().Done():
				cancelled.Add(1)
				return
			}
		}
	}
	for _, e := range end {
		io.WriteString(w, e+"\n\n") //nolint:errcheck
	}
}

func chat(w http.ResponseWriter, r *http.Request) {
	a, ok := read(w, r)
	if !ok {
		return
	}
	name := cmp.Or(os.Getenv("ENGINE"), "c")
	const usage = `"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}`
	if !a.Stream {
		if strings.Contains(a.last(), "slow") {
			time.Sleep(200 * time.Millisecond)
		}
		message := `{"role":"assistant","content":"hello"}`
		if strings.Contains(a.last(), "tool") {
			message = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",` +
				`"function":{"name":"weather","arguments":"{\"city\":\"Ulm\"}"}}]}`
		}
		say(w, 200, fmt.Sprintf(`{"id":%q,"object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,`+
			`"message":%s,"finish_reason":"stop"}],%s}`, name, a.Model, message, usage))
		return
	}
	chunk := func(delta, finish string) string {
		return fmt.Sprintf(`data: {"id":%q,"object":"chat.completion.chunk","created":1,"model":%q,"choices":[{"index":0,`+
			`"delta":%s,"finish_reason":%s}]}`, name, a.Model, delta, finish)
	}
	token := func(i int) string { return chunk(fmt.Sprintf(`{"content":"t%d "}`, i), "null") }
	if strings.Contains(a.last(), "tool") {
		token = func(i int) string {
			if i == 0 {
				return chunk(`{"tool_calls":[{"index":0,"id":"c1","type":"function",`+
					`"function":{"name":"weather","arguments":""}}]}`, "null")
			}
			return chunk(fmt.Sprintf(`{"tool_calls":[{"index":0,"function":{"arguments":"%d"}}]}`, i), "null")
		}
	}
	used := fmt.Sprintf(`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":%q,"choices":[],%s}`,
		a.Model, usage)
	send(w, r, a.last(), []string{chunk(`{"role":"assistant","content":""}`, "null")}, token,
		[]string{chunk("{}", `"stop"`), used, "data: [DONE]"})
}

func messages(w http.ResponseWriter, r *http.Request) {
	a, ok := read(w, r)
	if !ok {
		return
	}
	head := fmt.Sprintf(`"id":"msg_1","type":"message","role":"assistant","model":%q,"stop_sequence":null`, a.Model)
	if !a.Stream {
		say(w, 200, fmt.Sprintf(`{%s,"content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn",`+
			`"usage":{"input_tokens":3,"output_tokens":5}}`, head))
		return
	}
	event := func(kind, fields string) string {
		return fmt.Sprintf("event: %s\ndata: {\"type\":%q%s}", kind, kind, fields)
	}
	send(w, r, a.last(), []string{
		event("message_start", fmt.Sprintf(`,"message":{%s,"content":[],"stop_reason":null,`+
			`"usage":{"input_tokens":3,"output_tokens":0}}`, head)),
		event("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`),
	}, func(i int) string {
		return event("content_block_delta", fmt.Sprintf(`,"index":0,"delta":{"type":"text_delta","text":"t%d "}`, i))
	}, []string{
		event("content_block_stop", `,"index":0`),
		event("message_delta", `,"delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":5}`),
		event("message_stop", ""),
	})
}

func responses(w http.ResponseWriter, r *http.Request) {
	a, ok := read(w, r)
	if !ok {
		return
	}
	say(w, 200, fmt.Sprintf(`{"id":"resp_1","object":"response","created_at":1,"status":"completed","model":%q,`+
		`"output":[{"id":"m1","type":"message","role":"assistant","status":"completed",`+
		`"content":[{"type":"output_text","text":"after %s","annotations":[]}]}],`+
		`"parallel_tool_calls":true,"tool_choice":"auto","tools":[],`+
		`"usage":{"input_tokens":3,"output_tokens":5,"total_tokens":8,`+
		`"input_tokens_details":{"cached_tokens":0},"output_tokens_details":{"reasoning_tokens":0}}}`, a.Model, a.Previous))
}
