package readiness

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestNamesBesideTheModels(t *testing.T) {
	many := make([]string, 100)
	for i := range many {
		many[i] = fmt.Sprintf(`{"id":"a%d","parent":"org/m"}`, i)
	}
	for name, tt := range map[string]struct {
		list string
		want []string
		n    int
	}{
		"vLLM 0.32, an adapter and another name": {list: `{"id":"org/m","root":"/models/m","parent":null},
			{"id":"m","root":"/models/m","parent":null},{"id":"tuned","root":"/adapter","parent":"org/m"}`, want: []string{"m", "tuned"}},
		"llama.cpp 0.6":     {list: `{"id":"m","aliases":["m","org/m"]}`, want: []string{"m"}},
		"itself alone":      {list: `{"id":"org/m","root":"org/m"}`},
		"what exo lists":    {list: `{"id":"org/m"},{"id":"org/n"},{"id":"org/o","parent":""}`},
		"another's adapter": {list: `{"id":"org/m"},{"id":"a","parent":"org/n"}`},
		"not its model":     {list: `{"id":"org/n","root":"r"},{"id":"a","parent":"org/n"}`},
		"nothing":           {list: ``},
		"no names": {list: `{"id":"org/m"},{"id":"a\u001b[2J","parent":"org/m"},{"id":"","parent":"org/m"},{"id":"` +
			strings.Repeat("x", 200) + `","parent":"org/m"}`},
		"too many": {list: `{"id":"org/m"},` + strings.Join(many, ","), n: namesMost},
	} {
		var l listed
		if err := json.Unmarshal([]byte(`{"data":[`+tt.list+`]}`), &l); err != nil {
			t.Fatal(err)
		}
		got := l.beside("org/m")
		if d := cmp.Diff(tt.want, got); d != "" && tt.n == 0 || tt.n > 0 && len(got) != tt.n {
			t.Errorf("%s: %d names\n%s", name, len(got), d)
		}
	}
}

// The names come with the first answer, and a change of them is told at once; a server that wants a key has none.
func TestNamesAreTold(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\n\r\n"
	addr := answers(t, ok+`{"data":[{"id":"m"},{"id":"tuned","parent":"m"}]}`)
	var told []launcher.ServiceSeen
	w := &Watcher{
		Assignment: launcher.Assignment{Spec: launcher.Spec{Service: &launcher.Service{Health: "/health", Model: "m"}}},
		Tell:       func(s launcher.ServiceSeen, _ bool) { told = append(told, s) }, addr: addr,
	}
	w.look(t.Context())
	if len(told) != 1 || told[0].State != launcher.ServiceReady || cmp.Diff([]string{"tuned"}, told[0].Models) != "" {
		t.Errorf("at first: %+v", told)
	}
	w.addr = answers(t, ok+`{"data":[{"id":"m"}]}`)
	if w.look(t.Context()); len(w.seen.Models) != 1 {
		t.Errorf("asked again at once: %v", w.seen.Models)
	}
	w.listed, told = time.Time{}, nil
	if w.look(t.Context()); len(told) != 1 || len(told[0].Models) != 0 {
		t.Errorf("an adapter that went: %+v", told)
	}
	w.listed, w.addr, w.seen.Models = time.Time{}, answers(t, "HTTP/1.1 401 Unauthorized\r\n\r\n"), []string{"tuned"}
	if got := w.names(t.Context()); cmp.Diff([]string{"tuned"}, got) != "" {
		t.Errorf("without an answer: %v", got)
	}
}
