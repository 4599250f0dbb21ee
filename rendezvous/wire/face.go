package wire

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/base64"
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

// facing tells whether a request is the JSON face's.
func facing(r *http.Request) bool { return r.Header.Get("Content-Type") != mimeCBOR }

// faceRefuses says why a request that is no CBOR is not answered.
func faceRefuses(row *Row, r *http.Request) (status int, err error) {
	_, empty := row.newReq().(*Empty)
	switch {
	case !row.ForUsers():
		return http.StatusUnsupportedMediaType, fmt.Errorf("%w: this call is for sparkrun alone", ErrDenied)
	case r.Host != FaceHost:
		return http.StatusMisdirectedRequest,
			fmt.Errorf("%w: name the host %s, as in http://%[2]s%s", ErrDenied, FaceHost, row.Path())
	case r.URL.RawQuery != "" || r.URL.ForceQuery:
		return http.StatusBadRequest,
			fmt.Errorf("%w: POST the request as JSON: a query string is not read", launcher.ErrInvalid)
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
			err = errors.New("want one JSON value, with nothing behind it")
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

// plainly converts a JSON value into the form that encoding/json reads for a type: it turns durations like "10s" into
// nanoseconds, and refuses fields that are not named exactly and values of another type. at is the value's path.
func plainly(v any, t reflect.Type, at string) (any, error) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	text, isText := v.(string)
	switch {
	case v == nil: // as if it were missing
		return nil, nil
	case t == reflect.TypeFor[time.Duration]():
		d, err := time.ParseDuration(text)
		if err != nil {
			return nil, wants(at, `a duration like "90s" or "1m30s"`)
		}
		return int64(d), nil
	case readsItself(t):
		if b, err := json.Marshal(v); err != nil || json.Unmarshal(b, reflect.New(t).Interface()) != nil {
			return nil, wants(at, itself(t))
		}
		return v, nil
	case t == reflect.TypeFor[[]byte]():
		if _, err := base64.StdEncoding.DecodeString(text); err != nil || !isText {
			return nil, wants(at, "a string in base64")
		}
		return v, nil
	}
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return fieldsPlainly(v, t, at)
	case reflect.Slice, reflect.Array:
		list, ok := v.([]any)
		if !ok {
			return nil, wants(at, "a list")
		}
		for i, x := range list {
			var err error
			if list[i], err = plainly(x, t.Elem(), fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	if b, err := json.Marshal(v); err != nil || json.Unmarshal(b, reflect.New(t).Interface()) != nil {
		return nil, wants(at, scalar(t))
	}
	return v, nil
}

func fieldsPlainly(v any, t reflect.Type, at string) (any, error) {
	object, ok := v.(map[string]any)
	if !ok {
		return nil, wants(at, "an object")
	}
	if at != "" {
		at += "."
	}
	fields := FieldsOf(t)
	for name, x := range object {
		var of reflect.Type
		switch f, ok := fields[name]; {
		case ok:
			of = f.Type
		case t.Kind() == reflect.Map:
			of = t.Elem()
		default:
			return nil, fmt.Errorf("no field is called %q", at+name)
		}
		var err error
		if object[name], err = plainly(x, of, at+name); err != nil {
			return nil, err
		}
	}
	return object, nil
}

func wants(at, what string) error { return fmt.Errorf("%s: want %s", cmp.Or(at, "request"), what) }

// scalar is what JSON has for a type that is neither an object nor a list.
func scalar(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0 up"
	}
	return "a whole number"
}

// readsItself tells whether a type has its own JSON encoding.
func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// itself is what such a type is in JSON.
func itself(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return "a time like \"2026-01-31T12:00:00Z\""
	case reflect.TypeFor[launcher.Ports]():
		return "a port or a range of ports, like \"8000\" or \"8000-8010\""
	}
	return "a string"
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
