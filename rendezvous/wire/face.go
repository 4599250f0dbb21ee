package wire

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sparkrun/sparkrun/launcher"
)

// The JSON face: users' rows for other programs, such as curl. v1 is a promise of compatibility: see `sparkrun help
// api`.

// FaceHost is the host that a request has to name: a web page in a browser that reaches us through a forwarded port
// cannot set it.
const FaceHost = "sparkrun"

// faceRefuses says why a request that is no CBOR is not answered.
func faceRefuses(row *Row, r *http.Request) (status int, err error) {
	_, empty := row.newReq().(*Empty)
	switch {
	case !row.ForUsers():
		return http.StatusUnsupportedMediaType, fmt.Errorf("%w: this call is for sparkrun alone", ErrDenied)
	case r.Host != FaceHost:
		return http.StatusMisdirectedRequest,
			fmt.Errorf("%w: name the host %s, as in http://%[2]s%s", ErrDenied, FaceHost, row.Path())
	case r.Method == http.MethodPost, r.Method == http.MethodGet && (empty || row.Asks):
		return 0, nil
	}
	return http.StatusMethodNotAllowed, fmt.Errorf("%w: POST its request", launcher.ErrInvalid)
}

// fromFace reads a request: strictly, because a misspelt field would be ignored.
func fromFace(b []byte, m any) error {
	if len(bytes.TrimSpace(b)) == 0 {
		return nil
	}
	if !utf8.Valid(b) {
		return fmt.Errorf("read request: %w: it is no UTF-8", launcher.ErrInvalid)
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something is behind it")
		}
	}
	if err == nil {
		v, err = plainly(v, reflect.TypeOf(m).Elem(), "")
	}
	if err == nil {
		if b, err = json.Marshal(v); err == nil {
			err = json.Unmarshal(b, m)
		}
	}
	if err != nil {
		return fmt.Errorf("read request: %w: %w", launcher.ErrInvalid, err)
	}
	return nil
}

// plainly converts a JSON value into the form that encoding/json reads for a type: it refuses fields that are not
// named exactly, and turns durations like "10s" into nanoseconds.
func plainly(v any, t reflect.Type, at string) (any, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t == reflect.TypeFor[time.Duration]() {
		text, ok := v.(string)
		if !ok {
			return v, nil
		}
		d, err := time.ParseDuration(text)
		return int64(d), err
	}
	if readsItself(t) {
		return v, nil
	}
	var err error
	switch v := v.(type) {
	case map[string]any:
		fields := FieldsOf(t)
		for name, x := range v {
			var of reflect.Type
			switch f, ok := fields[name]; {
			case ok:
				of = f.Type
			case t.Kind() == reflect.Map:
				of = t.Elem()
			default:
				return nil, fmt.Errorf("no field is called %q", at+name)
			}
			if v[name], err = plainly(x, of, at+name+"."); err != nil {
				return nil, err
			}
		}
	case []any:
		if t.Kind() != reflect.Slice && t.Kind() != reflect.Array {
			return v, nil // which encoding/json refuses
		}
		for i, x := range v {
			if v[i], err = plainly(x, t.Elem(), at); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

// readsItself tells whether a type has its own JSON encoding.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// FieldsOf gives the fields of a message by their names in JSON; none if it is not a struct.
func FieldsOf(t reflect.Type) map[string]reflect.StructField {
	if t.Kind() != reflect.Struct {
		return nil
	}
	out := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Anonymous && name == "" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		out[name] = f
	}
	return out
}

// facer is a reply that commands print in another form.
type facer interface{ face() any }

// faced writes a reply: in the form of the commands' --json, or for a stream one line
// each.
func faced(w io.Writer, m any, streams bool) error {
	if other, ok := m.(facer); ok {
		m = other.face()
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if !streams {
		enc.SetIndent("", "  ")
	}
	return enc.Encode(m)
}
