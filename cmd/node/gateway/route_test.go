package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/rendezvous"
)

func TestRequestsGoToTheirModelsService(t *testing.T) {
	v := viewOf(engine(t, "a", named("A"), "org/a"), engine(t, "b", named("B"), "org/b", "lora"))
	v.Gateway.Aliases = map[string]string{"short": "org/b", "org/a": "org/b"}
	w := newWorld(t, v)
	for _, path := range []string{
		chatPath, "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/v1/score",
		"/v1/audio/speech", "/v1/messages", "/v1/messages/count_tokens",
	} {
		for body, want := range map[string]string{
			`{"model":"org/a"}`: "A", `{"messages":[{"model":"org/a"}],"model":"org/b"}`: "B", `{"model":"lora"}`: "B",
			`{"model":"short"}`: "B", ` { "mod\u0065l" : "org\/a" } `: "A",
		} {
			if got := w.ask("POST", path, body); got.status != 200 || got.body != want {
				t.Errorf("%s %s: %d %s, want %s", path, body, got.status, got.body, want)
			}
		}
	}
}

func TestAliasIsReplaced(t *testing.T) {
	v := viewOf(engine(t, "a", echo, `org/"a"`))
	v.Gateway.Aliases = map[string]string{"short": `org/"a"`}
	w := newWorld(t, v)
	long := strings.Repeat("x", modelMost+headMost)
	for body, want := range map[string]string{
		`{"x":1, "model" : "short" ,"y":2}`:      `{"x":1, "model" : "org/\"a\"" ,"y":2}`,
		`{"model":"short","p":"` + long + `"}`:   `{"model":"org/\"a\"","p":"` + long + `"}`,
		`{"model":"org/\"a\"","model_":"short"}`: `{"model":"org/\"a\"","model_":"short"}`,
	} {
		if got := w.chat(body); got.body != want {
			t.Errorf("engine got %.100s (%d), want %.100s (%d)", got.body, len(got.body), want, len(want))
		}
	}
	// A body of unknown length, too.
	res, err := w.do(t.Context(), "POST", "/v1/completions", io.MultiReader(strings.NewReader(`{"model":`),
		strings.NewReader(`"short"}`)))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, _ := io.ReadAll(res.Body); string(b) != `{"model":"org/\"a\""}` {
		t.Errorf("chunked: %s", b)
	}
}

func TestForms(t *testing.T) {
	v := viewOf(engine(t, "a", func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1 << 20); err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		f, _, err := r.FormFile("file")
		if err != nil {
			http.Error(w, err.Error(), 400)
			return
		}
		b, _ := io.ReadAll(f)
		fmt.Fprintf(w, "%s %d", r.FormValue("model"), len(b))
	}, "whisper-large"))
	v.Gateway.Aliases = map[string]string{"w": "whisper-large"}
	w := newWorld(t, v)
	form := func(size int, fields ...string) (string, string) {
		var b bytes.Buffer
		m := multipart.NewWriter(&b)
		f, _ := m.CreateFormFile("file", "model.wav")
		f.Write(bytes.Repeat([]byte("\r\n--x"), size/5))
		for _, value := range fields {
			m.WriteField("model", value)
		}
		m.Close()
		return b.String(), "Content-Type: " + m.FormDataContentType()
	}
	for _, tt := range []struct {
		fields []string
		status int
		want   string
	}{
		{[]string{"whisper-large"}, 200, "whisper-large 2000000"},
		{[]string{"w"}, 200, "whisper-large 2000000"},
		{[]string{"w", "w"}, 400, "given twice"},
		{nil, 400, "names no model"},
		{[]string{""}, 404, "no service serves"},
	} {
		body, kind := form(2000000, tt.fields...)
		got := w.ask("POST", "/v1/audio/transcriptions", body, kind)
		if got.status != tt.status || !strings.Contains(got.body, tt.want) {
			t.Errorf("%v: %d %s, want %d %s", tt.fields, got.status, got.body, tt.status, tt.want)
		}
	}
	body, kind := form(formMost, "w")
	if got := w.ask("POST", "/v1/audio/transcriptions", body, kind); got.status != 413 {
		t.Errorf("a form that is too long: %d %s", got.status, got.body)
	}
	for _, body := range []string{
		"", "--b", "--b\r\n", "--b\r\nX: y\r\n\r\n", "--bx\r\n\r\n\r\n--b--",
		"--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nw",
	} {
		got := w.ask("POST", "/v1/audio/translations", body, "Content-Type: multipart/form-data; boundary=b")
		if got.status != 400 {
			t.Errorf("%q: %d %s", body, got.status, got.body)
		}
	}
}

// TestBadRequests: each is told what is wrong, in its API's form, and no engine has a whole request.
func TestBadRequests(t *testing.T) {
	b := engine(t, "a", func(_ http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err == nil {
			t.Errorf("the engine had a whole request of %d bytes", n)
		}
	}, "org/Qwen3-8B")
	f := at("f", "127.0.0.1:1", "broken")
	f.Ready, f.State, f.Text = false, "failed", "out of memory"
	v := viewOf(b, f)
	v.Gateway.Aliases = map[string]string{"gone": "org/gone"}
	w := newWorld(t, v)
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		want                     []string
	}{
		{"unknown", "POST", chatPath, `{"model":"org/Qwen3-8b"}`, 404,
			[]string{"did you mean org/Qwen3-8B", "model_not_found"}},
		{"unknown, none near", "POST", chatPath, `{"model":"gpt"}`, 404, []string{"there are org/Qwen3-8B"}},
		{"alias of none", "POST", chatPath, `{"model":"gone"}`, 404, []string{"alias of", "org/gone"}},
		{"none", "POST", chatPath, `{"messages":[]}`, 400, []string{"names no model"}},
		{"number", "POST", chatPath, `{"model":7}`, 400, []string{"not a string"}},
		{"twice", "POST", chatPath, `{"model":"org/Qwen3-8B","model":"x"}`, 400, []string{"twice"}},
		{"twice, other case", "POST", chatPath, `{"model":"org/Qwen3-8B","MODEL":"x"}`, 400, []string{"twice"}},
		{"twice, late", "POST", chatPath, `{"model":"org/Qwen3-8B","p":"` + strings.Repeat("x", 1<<21) + `","model":"x"}`,
			400, []string{"twice"}},
		{"late", "POST", chatPath, `{"p":"` + strings.Repeat("x", modelMost+1) + `","model":"org/Qwen3-8B"}`, 413,
			[]string{"put it first"}},
		{"array", "POST", chatPath, `["model"]`, 400, []string{"not JSON"}},
		{"empty", "POST", chatPath, ``, 400, []string{"not JSON"}},
		{"half", "POST", chatPath, `{"model":"org/Qwen3-8B"`, 400, []string{"ends before"}},
		{"half, late", "POST", chatPath, `{"model":"org/Qwen3-8B","p":"` + strings.Repeat("x", 1<<21), 400,
			[]string{"ends before"}},
		{"more", "POST", chatPath, `{"model":"org/Qwen3-8B"} {}`, 400, []string{"not JSON"}},
		{"UTF-16", "POST", chatPath, "{\x00\"\x00m\x00", 400, []string{"not JSON"}},
		{"escape", "POST", chatPath, `{"model":"\q"}`, 400, []string{"not JSON"}},
		{"failed", "POST", chatPath, `{"model":"broken"}`, 503, []string{"service f has failed: out of memory"}},
		{"method", "GET", chatPath, ``, 405, []string{"takes POST"}},
		{"path", "POST", "/v1/images", `{"model":"org/Qwen3-8B"}`, 404, []string{chatPath}},
		{"path of engines", "GET", "/metrics", ``, 404, []string{"/v1/models"}},
		{"base URL", "POST", "/chat/completions", `{}`, 404, []string{"ends in /v1"}},
		{"base URL of Anthropic's", "POST", "/v1/v1/messages", `{}`, 404, []string{"ends without /v1"}},
		{"answer not known", "POST", "/v1/responses/../x", `{}`, 404, nil},
		{"Anthropic's form", "POST", "/v1/messages", `{"model":"x"}`, 404, []string{`"type":"error"`, "not_found_error"}},
		{"Anthropic's form, model", "POST", "/v1/messages", `{}`, 400, []string{`"type":"error"`, "invalid_request_error"}},
		{"models", "POST", "/v1/models", ``, 405, nil},
		{"no such model", "GET", "/v1/models/org/x", ``, 404, []string{"org/x"}},
	} {
		got := w.ask(tt.method, tt.path, tt.body)
		if got.status != tt.status {
			t.Errorf("%s: %d %s, want %d", tt.name, got.status, got.body, tt.status)
		}
		wantHas(t, tt.name, got.body, tt.want...)
		if !json.Valid([]byte(got.body)) || !strings.Contains(got.body, `"error"`) {
			t.Errorf("%s: not an error of its API: %s", tt.name, got.body)
		}
		if got.status == 503 && got.header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", tt.name)
		}
	}
	if got := w.chat(`{"model":"org/Qwen3-8B"}`, "Content-Encoding: gzip"); got.status != 415 {
		t.Errorf("compressed: %d", got.status)
	}
	if got := w.chat(`{"model":"org/Qwen3-8B"}`, "Sec-Fetch-Site: cross-site"); got.status != 403 {
		t.Errorf("of another site: %d", got.status)
	}
}

func TestHeadersOfARequest(t *testing.T) {
	seen := make(chan *http.Request, 1)
	v := viewOf(engine(t, "a", func(w http.ResponseWriter, r *http.Request) { seen <- r }, "a"))
	w := newWorld(t, v)
	w.ask("POST", "/v1/messages?beta=true", `{"model":"a"}`, "X-Forwarded-For: 1.2.3.4",
		"Forwarded: for=1.2.3.4", "X-Real-Ip: 1.2.3.4",
		"Idempotency-Key: k", "Authorization: Bearer engines-own", "Te: gzip", "Upgrade: websocket",
		"Connection: Upgrade, X-Gone",
		"X-Gone: 1", "Anthropic-Version: 2023-06-01", "X-Api-Key: "+KeyPrefix+"old", "Host: evil")
	r := <-seen
	if r.URL.RequestURI() != "/v1/messages?beta=true" || r.Host != v.Backends[0].Addr.String() {
		t.Errorf("asked %s of %s", r.URL.RequestURI(), r.Host)
	}
	want := http.Header{
		"X-Forwarded-For": {"127.0.0.1"}, "Authorization": {"Bearer engines-own"}, "Anthropic-Version": {"2023-06-01"},
	}
	for _, name := range []string{
		"X-Forwarded-For", "Forwarded", "X-Real-Ip", "Idempotency-Key", "Authorization", "Te", "Upgrade", "Connection",
		"X-Gone",
		"Anthropic-Version", "X-Api-Key",
	} {
		if !slices.Equal(r.Header[name], want[name]) {
			t.Errorf("%s: %q, want %q", name, r.Header[name], want[name])
		}
	}
}

func TestModelsAreListed(t *testing.T) {
	comes := at("b", "127.0.0.1:1", "org/b")
	comes.Ready, comes.Comes, comes.State = false, true, "loading"
	v := viewOf(at("a", "127.0.0.1:1", "org/a"), comes)
	v.Gateway.Aliases = map[string]string{"short": "org/b", "gone": "org/c"}
	v.Gateway.Keys = map[string]rendezvous.GatewayKey{"all": keyOf("k"), "one": keyOf("k1", "short")}
	w := newWorld(t, v)
	list := func(key string) (out []string) {
		got := w.ask("GET", "/v1/models", "", "Authorization: Bearer "+key)
		var l modelList
		if err := json.Unmarshal([]byte(got.body), &l); err != nil {
			t.Fatal(err, got.body)
		}
		for _, m := range l.Data {
			out = append(out, fmt.Sprint(m.ID, " ", m.Root, " ", m.State, " ", m.Aliases))
		}
		return out
	}
	all := []string{"org/a org/a ready []", "org/b org/b loading [short]", "short org/b loading []"}
	if got, want := list("k"), all; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := list("k1"), []string{"short org/b loading []"}; !slices.Equal(got, want) {
		t.Errorf("limited: got %q, want %q", got, want)
	}
	if got := w.ask("GET", "/v1/models/org%2Fb", "", "Authorization: Bearer k"); got.status != 200 {
		t.Errorf("one: %d %s", got.status, got.body)
	}
	if got := w.ask("GET", "/v1/models/org/b", "", "Authorization: Bearer k1"); got.status != 403 {
		t.Errorf("one that the key may not: %d %s", got.status, got.body)
	}
}

// A service that has failed is there for who asks for its model alone: no list has it, it hides no alias, and an answer
// by its id is that of the only engine there is.
func TestFailedIsInNobodysWay(t *testing.T) {
	b := at("f", "127.0.0.1:1", "broken")
	b.Ready, b.State, b.Text = false, "failed", "rank 0 on spark2: exit 3"
	v := viewOf(engine(t, "a", named("A"), "org/a"), b)
	v.Gateway.Aliases = map[string]string{"gpt": "broken"}
	w := newWorld(t, v)
	for _, model := range []string{"broken", "gpt"} {
		got := w.chat(`{"model":"` + model + `"}`)
		wantHas(t, model, got.body, "model broken does not answer: its service f has failed: rank 0 on spark2: exit 3")
		if got.status != 503 {
			t.Errorf("%s: %d", model, got.status)
		}
	}
	if got := w.ask("GET", "/v1/models", ""); strings.Contains(got.body, "broken") || !strings.Contains(got.body, "org/a") {
		t.Errorf("models: %s", got.body)
	}
	if got := w.ask("GET", "/v1/responses/resp_1", ""); got.body != "A" {
		t.Errorf("an answer by its id: %d %s", got.status, got.body)
	}
	w.becomes(func(v *View) { v.Gateway.Aliases = map[string]string{"broken": "org/a"} })
	if got := w.chat(`{"model":"broken"}`); got.body != "A" {
		t.Errorf("an alias of its name: %d %s", got.status, got.body)
	}
}
