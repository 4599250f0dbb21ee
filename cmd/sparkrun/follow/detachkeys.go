package follow

import (
	"bytes"
	"errors"
	"io"
	"strings"
)

// DetachKeys is the flag for the keys that, typed one after the other, detach from a
// running job: ctrl-X or single characters, separated by commas. It holds the bytes that
// they send; nil means the default, an empty value that no keys detach.
type DetachKeys []byte

// OrDefault gives docker's keys, ctrl-p,ctrl-q, where none were given.
func (k DetachKeys) OrDefault() []byte {
	if k == nil {
		return []byte{'p' & 0x1f, 'q' & 0x1f}
	}
	return k
}

func (k *DetachKeys) Type() string { return "keys" }

func (k *DetachKeys) String() string {
	if k == nil {
		return ""
	}
	var names []string
	for _, b := range *k {
		if b < ' ' {
			names = append(names, "ctrl-"+strings.ToLower(string(rune(b+'@'))))
		} else {
			names = append(names, string(rune(b)))
		}
	}
	return strings.Join(names, ",")
}

func (k *DetachKeys) Set(text string) error {
	*k = DetachKeys{}
	if text == "" {
		return nil
	}
	for name := range strings.SplitSeq(text, ",") {
		key, ctrl := strings.CutPrefix(strings.ToLower(name), "ctrl-")
		switch {
		case ctrl && len(key) == 1 && (key[0] >= 'a' && key[0] <= 'z' || strings.IndexByte(`@[\]^_`, key[0]) >= 0):
			*k = append(*k, key[0]&0x1f)
		case !ctrl && len(name) == 1 && name[0] > ' ' && name[0] < 0x7f:
			*k = append(*k, name[0])
		default:
			return errors.New("want keys such as ctrl-p,ctrl-q: ctrl- and a letter or one of @[\\]^_, or a character")
		}
	}
	return nil
}

// errDetached ends a keyReader's input without ending that of a rank.
var errDetached = errors.New("detached")

// keyReader passes on what is typed, except the keys that detach: their first bytes are
// held back until another key shows that they were typed for the rank.
type keyReader struct {
	in   io.Reader
	keys []byte
	held int    // how many bytes of keys have been typed
	rest []byte // to be returned before more is read
	err  error  // to be returned after rest
}

func (r *keyReader) Read(p []byte) (int, error) {
	if len(r.keys) == 0 {
		return r.in.Read(p)
	}
	for len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		n, err := r.in.Read(p)
		r.take(p[:n])
		if r.err == nil && err != nil {
			r.rest = append(r.rest, r.keys[:r.held]...)
			r.held, r.err = 0, err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// take sorts what was typed; what follows the keys is dropped.
func (r *keyReader) take(typed []byte) {
	for _, b := range typed {
		if b == r.keys[r.held] {
			if r.held++; r.held == len(r.keys) {
				r.err = errDetached
				return
			}
			continue
		}
		// The bytes held back were input, but their end may be the start of the keys.
		r.rest = append(append(r.rest, r.keys[:r.held]...), b)
		most := min(r.held+1, len(r.keys)-1)
		again := 0
		for n := 1; n <= most; n++ {
			if bytes.HasSuffix(r.rest, r.keys[:n]) {
				again = n
			}
		}
		r.rest, r.held = r.rest[:len(r.rest)-again], again
	}
}
