package gateway

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// An answer in JSON to a request that had got comments is told as an event: it is no part of a stream.
func TestJSONAfterComments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGateway(t, viewOf(coming("j", "a")))
		w.g.transport = fake(func(*http.Request) (*http.Response, error) {
			return answers(200, "application/json", `{"id":"x","choices":[]}`)
		})
		rec, done := w.begin(t.Context(), chatPath, `{"model":"a","stream":true}`)
		time.Sleep(12 * time.Second)
		w.becomes(ready)
		<-done
		wantHas(t, "the stream", rec.Body.String(), "answered without a stream")
	})
}

// What a long body says behind its messages counts while its request waits.
func TestStreamBehindMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGateway(t, viewOf(coming("j", "a")))
		w.g.longer = fake(func(*http.Request) (*http.Response, error) {
			return answers(200, "text/event-stream", "data: x\n\n")
		})
		rec, done := w.begin(t.Context(), chatPath,
			`{"model":"a","messages":"`+strings.Repeat("y", 100<<10)+`","stream":true}`)
		time.Sleep(time.Minute)
		w.becomes(ready)
		<-done
		wantHas(t, "the stream", rec.Body.String(), ": waiting for a to start", "data: x")
	})
}

// Who goes away while a request waits gives its place to others, however long its body is.
func TestClientOfALongBodyGoes(t *testing.T) {
	w := newWorld(t, viewOf(coming("j", "a")))
	for _, size := range []int{1000, 200 << 10} {
		c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		body := `{"model":"a","x":"` + strings.Repeat("y", size) + `"}`
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			chatPath, len(body), body)
		waiting := func() int64 {
			if all := w.g.Counts(); len(all) > 0 {
				return all[0].Waiting
			}
			return 0
		}
		w.until("it waits", func() bool { return waiting() == 1 })
		c.Close()
		w.until("it does not wait any more", func() bool { return waiting() == 0 })
	}
}

// A key that has expired, or was revoked, while its request waited is not served.
func TestKeyGoesWhileItWaits(t *testing.T) {
	for what, change := range map[string]func(v *View){
		"expired": ready,
		"revoked": func(v *View) {
			v.Gateway.Keys = map[string]rendezvous.GatewayKey{"other": keyOf("o")}
			ready(v)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			v := viewOf(coming("j", "a"))
			key, until := keyOf("secret"), time.Now().Add(10*time.Second)
			if what == "expired" {
				key.Expires = &until
			}
			v.Gateway.Keys = map[string]rendezvous.GatewayKey{"ada": key, "other": keyOf("o")}
			w := newGateway(t, v)
			w.g.transport = fake(func(*http.Request) (*http.Response, error) {
				t.Error("the engine was asked")
				return answers(200, "application/json", `{}`)
			})
			rec, done := w.begin(t.Context(), chatPath, `{"model":"a"}`, "Authorization: Bearer secret")
			time.Sleep(20 * time.Second)
			w.becomes(change)
			<-done
			if rec.Code != http.StatusUnauthorized {
				t.Errorf("%s: %d %s", what, rec.Code, rec.Body)
			}
		})
	}
}

// A key that is for an alias alone gets what was answered under it.
func TestKeyOfAnAliasGetsItsAnswers(t *testing.T) {
	v := viewOf(engine(t, "j", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"resp_1","object":"response"}`)
	}, "qwen"))
	v.Gateway.Aliases = map[string]string{"gpt": "qwen"}
	v.Gateway.Keys = map[string]rendezvous.GatewayKey{"ada": keyOf("secret", "gpt"), "bob": keyOf("bobs", "other")}
	w := newWorld(t, v)
	w.ask("POST", "/v1/responses", `{"model":"gpt","input":"x"}`, "Authorization: Bearer secret")
	if got := w.ask("GET", "/v1/responses/resp_1", ``, "Authorization: Bearer secret"); got.status != 200 {
		t.Error(got.status, got.body)
	}
	if got := w.ask("GET", "/v1/responses/resp_1", ``, "Authorization: Bearer bobs"); got.status != 404 {
		t.Error("somebody else:", got.status, got.body)
	}
}

// Without keys a page whose name was made to lead here is refused; programs and the machine's own pages are not.
func TestReboundPages(t *testing.T) {
	w := newWorld(t, viewOf(engine(t, "j", echo, "a")))
	for host, want := range map[string]int{"evil.example:7942": 403, "localhost:7942": 200, "127.0.0.1:7942": 200,
		"[::1]:7942": 200, "spark1:7942": 200} {
		r, err := http.NewRequestWithContext(t.Context(), "POST", w.url+chatPath, strings.NewReader(`{"model":"a"}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		r.Header.Set("Origin", "http://"+host)
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("a page of %s: %d, want %d", host, res.StatusCode, want)
		}
	}
}

// A field's name may be written in pieces (RFC 2231): it is the same field.
func TestFieldInPieces(t *testing.T) {
	body := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\na\r\n" +
		"--b\r\nContent-Disposition: form-data; name*0=\"mo\"; name*1=\"del\"\r\n\r\nsecret\r\n--b--\r\n"
	if _, _, err := formField([]byte(body), "b", "model"); err == nil {
		t.Error("a second model is not seen")
	}
}

// TestAdapterComesAgain: a server that starts anew lists its adapters only then; who asks for one waits, and is refused
// once it is not listed any more.
func TestAdapterComesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGateway(t, viewOf(at("j", "10.0.0.1:8000", "a", "tuned")))
		w.g.transport = fake(func(*http.Request) (*http.Response, error) { return answers(200, "application/json", "{}") })
		synctest.Wait()
		for range 3 {
			w.becomes(func(v *View) { v.Backends[0] = coming("j", "a") })
			synctest.Wait()
		}
		rec, done := w.begin(t.Context(), chatPath, `{"model":"tuned"}`)
		time.Sleep(time.Minute)
		w.becomes(func(v *View) { v.Backends[0] = at("j", "10.0.0.1:8000", "a", "tuned") })
		if <-done; rec.Code != 200 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		w.becomes(func(v *View) { v.Backends[0] = at("j", "10.0.0.1:8000", "a") })
		synctest.Wait()
		rec, done = w.begin(t.Context(), chatPath, `{"model":"tuned"}`)
		if <-done; rec.Code != 404 {
			t.Errorf("after it went: %d %s", rec.Code, rec.Body)
		}
	})
}
