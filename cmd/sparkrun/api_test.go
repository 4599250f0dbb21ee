package main

import (
	"encoding"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

var updateAPI = flag.Bool("update-api", false, "write help/api.md")

const (
	apiChapter = "help/api.md"
	apiCalls   = "## Calls\n"
)

// The chapter's lists are the table's: what is promised there changes by intent alone.
func TestAPIChapterIsTheTable(t *testing.T) {
	b, err := os.ReadFile(apiChapter)
	if err != nil {
		t.Fatal(err)
	}
	intro, had, _ := strings.Cut(string(b), apiCalls)
	want := describeAPI()
	if *updateAPI {
		if err := os.WriteFile(apiChapter, []byte(intro+apiCalls+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, had); d != "" {
		t.Errorf("%s is not what the table says: go test ./cmd/sparkrun -run TestAPI -update-api\n%s", apiChapter, d)
	}
}

func describeAPI() string {
	var calls, objects strings.Builder
	d := describer{known: map[reflect.Type]string{}, names: map[string]bool{}}
	for _, row := range wire.Rows() {
		if !row.ForUsers() || row.Path() == wire.Refresh.Path() { // which is for this program's own clients
			continue
		}
		method, request := http.MethodPost, ""
		if row.Request() == reflect.TypeFor[wire.Empty]() {
			method = http.MethodGet
		} else {
			request = d.word(row.Request()) + " "
			if row.Asks {
				method = http.MethodGet + " or POST"
			}
		}
		reply := d.word(row.Reply())
		if row.Streams {
			reply += ", a line each"
		}
		fmt.Fprintf(&calls, "\n%s %s  %s-> %s\n    %s (%s)\n", method, row.Path(), request, reply, row.Does, row.Who)
	}
	for len(d.due) > 0 {
		t := d.due[0]
		d.due = d.due[1:]
		d.texts = append(d.texts, d.object(t))
	}
	slices.Sort(d.texts)
	objects.WriteString(strings.Join(d.texts, "\n"))
	return "\n```" + calls.String() + "```\n\n## Objects\n\nA `?` is a field that a reply may lack. In a request any may be missing, and is\nthen 0, false or empty; what a call cannot do without is refused.\n\n```\n" + objects.String() + "```\n"
}

// describer lists what there is to tell of.
type describer struct {
	known map[reflect.Type]string
	names map[string]bool
	due   []reflect.Type
	texts []string
}

func (d *describer) word(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration"
	case reflect.TypeFor[time.Time]():
		return "time"
	case reflect.TypeFor[[]byte](), reflect.TypeFor[launcher.Bytes]():
		return "base64"
	case reflect.TypeFor[wire.Empty]():
		return "{}"
	}
	p := reflect.PointerTo(t)
	switch {
	case t.Kind() == reflect.Pointer:
		return d.word(t.Elem())
	case p.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return "string"
	case p.Implements(reflect.TypeFor[json.Marshaler]()):
		if b, err := json.Marshal(reflect.Zero(t).Interface()); err == nil && b[0] == '"' {
			return "string"
		}
		return "any"
	}
	switch t.Kind() {
	case reflect.Struct:
		if d.known[t] == "" {
			name := t.Name()
			if d.names[name] {
				name = path.Base(t.PkgPath()) + "." + name
			}
			d.known[t], d.names[name] = name, true
			d.due = append(d.due, t)
		}
		return d.known[t]
	case reflect.Slice, reflect.Array:
		return "[" + d.word(t.Elem()) + "]"
	case reflect.Map:
		return "{name: " + d.word(t.Elem()) + "}"
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Float32, reflect.Float64:
		return "number"
	}
	return "integer"
}

func (d *describer) object(t reflect.Type) string {
	var b strings.Builder
	fmt.Fprintln(&b, d.known[t])
	fields := wire.FieldsOf(t)
	for _, f := range reflect.VisibleFields(t) {
		for name, g := range fields {
			if !slices.Equal(f.Index, g.Index) {
				continue
			}
			maybe := ""
			if strings.Contains(f.Tag.Get("json"), ",omit") || f.Type.Kind() == reflect.Pointer {
				maybe = "?"
			}
			fmt.Fprintf(&b, "  %-22s %s\n", name+maybe, d.word(f.Type))
		}
	}
	return b.String()
}
