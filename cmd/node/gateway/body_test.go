package gateway

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"testing/iotest"
)

// scanned reads a body in pieces of n bytes.
func scanned(body []byte, n int) (scan, error) {
	var s scan
	for len(body) > 0 {
		n := min(n, len(body))
		if err := s.take(body[:n]); err != nil {
			return s, err
		}
		body = body[n:]
	}
	return s, nil
}

func TestScanFinds(t *testing.T) {
	const body = `{ "messages":[{"role":"user","content":"{\"model\":\"no\"}","model":"no","stream":true}],"n":-1.5e3,` +
		`"stream" : true ,"x":null, "user":"u\u00e9","prompt_cache_key":"k","previous_response_id":"resp_1",` +
		`"model":"org\/a b","e":{}, "y":[]}`
	for n := 1; n <= len(body); n++ {
		s, err := scanned([]byte(body), n)
		if err != nil || !s.ended() {
			t.Fatalf("in pieces of %d: %v", n, err)
		}
		if s.model != "org/a b" || !s.stream || s.user != "ué" || s.cacheKey != "k" || s.previous != "resp_1" ||
			body[s.start:s.end] != `"org\/a b"` {
			t.Fatalf("in pieces of %d: %+v", n, s)
		}
	}
}

// FuzzScan: of what a JSON parser takes, the scan finds the same model, in whatever pieces it comes; of all else it
// neither panics nor says where a model is that does not stand there.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		`{"model":"a"}`, `{"a":{"model":"b"},"model":"c"}`, `{"mod\u0065l":"\"x\\"}`, `{"model":"a","model":"b"}`,
		`{"model":7}`,
		`{"x":[[{"y":"]}"}],1,-2,true],"model":"a"}`, `{"model":"a"`, `{}`, `[]`, `{"stream":true,"model":"a","user":"u"} `,
		`{"model":"` + strings.Repeat("a", 2000) + `"}`,
	} {
		f.Add([]byte(seed), 3)
	}
	f.Fuzz(func(t *testing.T, body []byte, n int) {
		whole, err := scanned(body, len(body)+1)
		pieces, err2 := scanned(body, max(1, n))
		if (err == nil) != (err2 == nil) || err == nil && (whole.model != pieces.model || whole.start != pieces.start ||
			whole.end != pieces.end || whole.stream != pieces.stream || whole.user != pieces.user) {
			t.Fatalf("whole %+v %v, in pieces %+v %v", whole, err, pieces, err2)
		}
		if whole.hasModel && err == nil {
			var at string
			if json.Unmarshal(body[whole.start:whole.end], &at) == nil && at != whole.model {
				t.Fatalf("found %q where %q stands", whole.model, at)
			}
		}
		var m map[string]json.RawMessage
		if json.Unmarshal(body, &m) != nil || m == nil {
			return
		}
		if err != nil {
			if err == errTwoModels || err == errNoString || strings.Contains(err.Error(), "over 1024 bytes") {
				return
			}
			t.Fatalf("refused: %v", err)
		}
		raw, has := m["model"]
		var want string
		if has && (bytes.Equal(raw, []byte("null")) || json.Unmarshal(raw, &want) != nil) {
			t.Fatalf("took model %s", raw)
		}
		if has != whole.hasModel || want != whole.model || !whole.ended() {
			t.Fatalf("found %q (%t), want %q (%t)", whole.model, whole.hasModel, want, has)
		}
	})
}

func FuzzForm(f *testing.F) {
	f.Add([]byte("--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nx\r\n--b--\r\n"))
	f.Add([]byte("--b\r\n\r\n\r\n--b\r\nContent-Disposition: form-data; name=model\r\n\r\n\r\n--b--"))
	f.Fuzz(func(t *testing.T, body []byte) {
		start, end, err := formField(body, "b", "model")
		if err == nil && start >= 0 && (end < start || end > len(body)) {
			t.Fatalf("%d to %d of %d", start, end, len(body))
		}
	})
}

func TestTail(t *testing.T) {
	long := []byte(strings.Repeat("0123456789", 2000))
	for _, n := range []int{1, 7, 4095, 4096, 4097, 9000} {
		var tl tail
		for p := long; len(p) > 0; {
			m := min(n, len(p))
			tl.take(p[:m])
			p = p[m:]
		}
		if got := tl.bytes(); !bytes.Equal(got, long[len(long)-tailSize:]) {
			t.Errorf("in pieces of %d: %.20s... of %d", n, got, len(got))
		}
	}
}

// TestWholeEvents: in whatever pieces a stream comes, all of it is passed on, cut only between events.
func TestWholeEvents(t *testing.T) {
	text := "data: 1\n\nevent: a\r\ndata: 2\r\n\r\n: c\n\ndata: " + strings.Repeat("x", 100) + "\n\nrest"
	w := &watched{ReadCloser: closer{iotest.OneByteReader(strings.NewReader(text))}, events: true}
	var all []byte
	p := make([]byte, 64)
	for {
		n, err := w.Read(p)
		all = append(all, p[:n]...)
		if err != nil {
			break
		}
		if n != len(p) && lastEvent(p[:n]) != n && !strings.HasSuffix(string(all), "\n\n") {
			t.Errorf("half an event: %q", p[:n])
		}
	}
	if string(all) != text {
		t.Errorf("passed on %q", all)
	}
}

type closer struct {
	r interface{ Read([]byte) (int, error) }
}

func (c closer) Read(p []byte) (int, error) { return c.r.Read(p) }
func (c closer) Close() error               { return nil }

// What vLLM 0.32 and llama.cpp 0.6 end their answers with, cut down.
func TestUsage(t *testing.T) {
	for name, tt := range map[string]struct {
		head, end string
		in, out   int64
	}{
		"vLLM, chat": {end: `"usage":{"prompt_tokens":26,"total_tokens":626,"completion_tokens":600,"prompt_tokens_details":null},` +
			`"prompt_logprobs":null}`, in: 26, out: 600},
		"vLLM, response": {end: `"usage":{"input_tokens":26,"input_tokens_details":{"cached_tokens":9},"output_tokens":7},"user":null}`,
			in: 26, out: 7},
		"vLLM, message stream": {head: `data: {"type":"message_start","message":{"usage":{"input_tokens":26,"output_tokens":0}}}`,
			end: `"usage":{"input_tokens":26,"output_tokens":600}}` + "\n\nevent: message_stop", in: 26, out: 600},
		"llama.cpp, message": {end: `"usage":{"cache_read_input_tokens":25,"input_tokens":1,"output_tokens":256}}`, in: 26, out: 256},
		"llama.cpp, message stream": {
			head: `{"type":"message_start","message":{"usage":{"cache_read_input_tokens":25,"input_tokens":1,"output_tokens":0}}}` +
				`{"type":"message_delta","usage":{"output_tokens":235}}`,
			end: `"usage":{"output_tokens":235}}` + "\n\nevent: message_stop", in: 26, out: 235},
		"llama.cpp, chat": {end: `"usage":{"completion_tokens":67,"prompt_tokens":26,"prompt_tokens_details":{"cached_tokens":25}}}`,
			in: 26, out: 67},
		"Anthropic's nulls": {end: `"usage":{"cache_creation_input_tokens":null,"input_tokens":3,"output_tokens":4}`, in: 3, out: 4},
		"a stream without":  {head: `data: {"choices":[]}`, end: `data: {"choices":[]}`},
	} {
		if in, out := usage([]byte(tt.head), []byte(tt.end)); in != tt.in || out != tt.out {
			t.Errorf("%s: %d and %d, want %d and %d", name, in, out, tt.in, tt.out)
		}
	}
}
