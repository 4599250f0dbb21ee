package gateway

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"

	"github.com/google/go-cmp/cmp"
)

func TestKeys(t *testing.T) {
	seen := func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, r.Header.Get("Authorization")+","+r.Header.Get("X-Api-Key"))
	}
	v := viewOf(engine(t, "a", seen, "m"), engine(t, "b", seen, "n"))
	v.Gateway.Aliases = map[string]string{"alias": "m", "claude-*": "m"}
	past := time.Now().Add(-time.Hour)
	old := keyOf("old")
	old.Expires = &past
	v.Gateway.Keys = map[string]rendezvous.GatewayKey{"all": keyOf("word"), "one": keyOf("one", "alias", "claude-*"), "old": old}
	w := newWorld(t, v)
	for _, tt := range []struct {
		name    string
		path    string
		body    string
		headers []string
		status  int
		want    string
	}{
		{"none", chatPath, `{"model":"m"}`, nil, 401, "a key is needed"},
		{"none, Anthropic's", "/v1/messages", `{"model":"m"}`, nil, 401, `"authentication_error"`},
		{"none, models", "/v1/models", "", nil, 401, "a key is needed"},
		{"none, a path there is not", "/x", "", nil, 401, "a key is needed"},
		{"wrong", chatPath, `{"model":"m"}`, []string{"Authorization: Bearer wor"}, 401, "revoked"},
		{"expired", chatPath, `{"model":"m"}`, []string{"Authorization: Bearer old"}, 401, "key old expired"},
		{"bearer", chatPath, `{"model":"m"}`, []string{"Authorization: bearer word"}, 200, ","},
		{"x-api-key", "/v1/messages", `{"model":"m"}`, []string{"x-api-key: word"}, 200, ","},
		{"both", "/v1/messages", `{"model":"m"}`, []string{"x-api-key: word", "Authorization: Bearer word"}, 200, ","},
		{"an engine's own beside it", chatPath, `{"model":"m"}`,
			[]string{"x-api-key: word", "Authorization: Bearer theirs"}, 200, "Bearer theirs,"},
		{"of another, beside it", chatPath, `{"model":"m"}`,
			[]string{"x-api-key: word", "Authorization: Bearer " + KeyPrefix + "x"}, 200, ","},
		{"limited", chatPath, `{"model":"alias"}`, []string{"x-api-key: one"}, 200, ","},
		{"limited, by a pattern", chatPath, `{"model":"claude-sonnet-4-5"}`, []string{"x-api-key: one"}, 200, ","},
		{"limited, another", chatPath, `{"model":"n"}`, []string{"x-api-key: one"}, 403, "key one may not ask for model"},
		{"limited, by its own name", chatPath, `{"model":"m"}`, []string{"x-api-key: one"}, 403, "may not"},
		{"limited, a second name", chatPath, `{"model":"alias","model":"n"}`, []string{"x-api-key: one"}, 400, "twice"},
	} {
		method := "POST"
		if tt.body == "" {
			method = "GET"
		}
		got := w.ask(method, tt.path, tt.body, tt.headers...)
		if got.status != tt.status {
			t.Errorf("%s: %d %s, want %d", tt.name, got.status, got.body, tt.status)
		}
		if tt.status == 200 && got.body != tt.want {
			t.Errorf("%s: the engine saw %q, want %q", tt.name, got.body, tt.want)
		}
		wantHas(t, tt.name, got.body, tt.want)
	}
	for _, path := range []string{"/", "/health"} {
		if got := w.ask("GET", path, ""); got.status != 200 {
			t.Errorf("%s without a key: %d", path, got.status)
		}
	}
	for _, c := range w.g.Counts() {
		if c.Key == "one" && c.Model == "m" && c.Requests != 2 {
			t.Errorf("counted %+v", c)
		}
	}
}

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := viewOf(at("a", "10.0.0.1:8000", "m"))
		k := keyOf("word")
		k.Rate = 2
		slow := keyOf("slow")
		slow.Rate = 0.001
		v.Gateway.Keys = map[string]rendezvous.GatewayKey{"k": k, "slow": slow}
		w := newGateway(t, v)
		w.g.transport = fake(echoes)
		ask := func(word string) (int, string) {
			x := w.g.index.Load()
			kk, no := x.admit(http.Header{"X-Api-Key": {word}}, time.Now())
			if no == nil {
				no = kk.spend(time.Now())
			}
			if no == nil {
				return 200, ""
			}
			return no.status, no.retry.String()
		}
		for i, want := range []int{200, 200, 429} {
			if got, _ := ask("word"); got != want {
				t.Errorf("request %d: %d, want %d", i, got, want)
			}
		}
		time.Sleep(500 * time.Millisecond)
		w.view.Store(w.view.Load()) // another map gives no second burst
		synctest.Wait()
		for i, want := range []int{200, 429} {
			if got, _ := ask("word"); got != want {
				t.Errorf("after half a second, request %d: %d, want %d", i, got, want)
			}
		}
		ask("slow")
		if status, retry := ask("slow"); status != 429 || retry != "1m0s" {
			t.Errorf("slow: %d, again after %s", status, retry)
		}
	})
}

// The agent's memory limit follows the requests in steps, up at once and down with room to spare.
func TestPassing(t *testing.T) {
	var told []int
	g := &Gateway{cfg: Config{Passing: func(n int) { told = append(told, n) }}}
	for _, step := range []struct {
		n, to int64
	}{{1, 1000}, {-1, 600}, {1, 1000}, {-1, 0}, {1, 63}, {-1, 0}} {
		for g.passing.now.Load() != step.to {
			g.pass(step.n)
		}
	}
	want := []int{64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960, 448, 192, 64, 0}
	if d := cmp.Diff(want, told); d != "" {
		t.Error(d)
	}
}
