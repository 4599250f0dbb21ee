package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// What a scan refuses. It is stricter than an engine's parser wherever two parsers could read two names: what it
// takes for the model is what the engine takes for it.
var (
	errTwoModels = errors.New(`the body has "model" twice at its top level`)
	errNoString  = errors.New(`"model" is not a string`)
)

// Bounds of what a scan keeps, in bytes as they are written, escapes included.
const (
	keyLength   = 128  // longer keys are none of those looked for: six bytes a letter, 20 letters
	valueLength = 1024 // of a value that is looked for; a model's name has at most 128 letters
)

// scan reads a JSON object as it comes, in pieces, and finds the fields by which a request is routed. It keeps no
// more than one of them, and allocates nothing for the rest.
type scan struct {
	state scanState
	depth int // of what is open, the object included
	at    int // bytes read

	field   field
	keep    []byte // of the key or the value that is being read
	keeping bool
	long    bool // it was longer than is kept

	model      string
	hasModel   bool
	start, end int // of the model's value, quotes included, in bytes from the beginning
	stream     bool
	user       string
	cacheKey   string
	previous   string
}

type scanState uint8

const (
	beforeObject scanState = iota
	firstKey               // after {
	nextKey                // after ,
	inKey
	keyEscape
	beforeColon
	beforeValue
	inString // at any depth
	stringEscape
	inLiteral // at the top level: a number, true, false, null
	inNested
	afterValue
	afterObject
)

type field uint8

const (
	otherField field = iota
	modelField
	streamField
	userField
	cacheKeyField
	previousField
)

var fields = map[string]field{
	"model": modelField, "stream": streamField, "user": userField, "prompt_cache_key": cacheKeyField,
	"previous_response_id": previousField,
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// take reads the next piece.
func (s *scan) take(p []byte) error {
	for i := 0; i < len(p); {
		c := p[i]
		switch s.state {
		case inString, inKey: // most of a body
			from := i
			for i < len(p) && p[i] != '"' && p[i] != '\\' {
				i++
			}
			s.note(p[from:i])
			if i == len(p) {
				s.at += i - from
				continue
			}
			s.at += i - from
			c = p[i]
			if c == '\\' {
				s.note(p[i : i+1])
				s.state++ // keyEscape, stringEscape
				break
			}
			if err := s.endString(); err != nil {
				return err
			}
		case keyEscape, stringEscape:
			s.note(p[i : i+1])
			s.state--
		case inNested:
			switch c {
			case '"':
				s.state = inString
			case '{', '[':
				s.depth++
			case '}', ']':
				if s.depth--; s.depth == 1 {
					s.state = afterValue
				}
			}
		default:
			if err := s.structure(c); err != nil {
				return err
			}
		}
		i++
		s.at++
	}
	return nil
}

// structure reads a byte of the top level that is in no string.
func (s *scan) structure(c byte) error {
	if s.state == inLiteral {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' || c == '-' || c == '+' {
			s.note([]byte{c})
			return nil
		}
		if s.field == streamField {
			s.stream = string(s.keep) == "true"
		}
		s.keeping, s.state = false, afterValue
	}
	if isSpace(c) {
		return nil
	}
	switch {
	case s.state == beforeObject && c == '{':
		s.state, s.depth = firstKey, 1
	case (s.state == firstKey || s.state == nextKey) && c == '"':
		s.state = inKey
		s.begin()
	case (s.state == firstKey || s.state == afterValue) && c == '}':
		s.state, s.depth = afterObject, 0
	case s.state == beforeColon && c == ':':
		s.state = beforeValue
	case s.state == beforeValue:
		return s.beginValue(c)
	case s.state == afterValue && c == ',':
		s.state = nextKey
	default:
		return fmt.Errorf("not JSON: unexpected %q at byte %d, want an object", c, s.at)
	}
	return nil
}

func (s *scan) beginValue(c byte) error {
	if s.field == modelField {
		if c != '"' {
			return errNoString
		}
		s.start = s.at
	}
	switch {
	case c == '"':
		s.state = inString
		if s.field != otherField {
			s.begin()
		}
	case c == '{' || c == '[':
		s.state, s.depth = inNested, 2
	// NaN and Infinity are numbers to Python.
	case c == '-' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c == 'N' || c == 'I':
		s.state = inLiteral
		if s.field != otherField {
			s.begin()
			s.note([]byte{c})
		}
	default:
		return fmt.Errorf("not JSON: unexpected %q at byte %d, want a value", c, s.at)
	}
	return nil
}

// endString is at a string's closing quote.
func (s *scan) endString() error {
	switch {
	case s.state == inKey:
		s.state = beforeColon
		return s.endKey()
	case s.depth > 1:
		s.state = inNested
		return nil
	}
	s.state = afterValue
	if !s.keeping {
		return nil
	}
	s.keeping = false
	if s.long {
		if s.field == modelField {
			return fmt.Errorf(`"model" has over %d bytes`, valueLength)
		}
		return nil
	}
	text, err := unquote(s.keep)
	if err != nil {
		return err
	}
	switch s.field {
	case modelField:
		s.model, s.hasModel, s.end = text, true, s.at+1
	case userField:
		s.user = text
	case cacheKeyField:
		s.cacheKey = text
	case previousField:
		s.previous = text
	}
	return nil
}

func (s *scan) endKey() error {
	s.keeping, s.field = false, otherField
	if s.long {
		return nil
	}
	key := s.keep
	if bytes.IndexByte(key, '\\') >= 0 {
		text, err := unquote(key)
		if err != nil {
			return err
		}
		key = []byte(text)
	}
	s.field = fields[string(key)]
	// An engine in Go would take Model for model.
	if s.hasModel && (s.field == modelField || bytes.EqualFold(key, []byte("model"))) {
		return errTwoModels
	}
	return nil
}

func (s *scan) begin() { s.keep, s.keeping, s.long = s.keep[:0], true, false }

func (s *scan) note(p []byte) {
	if !s.keeping || s.long {
		return
	}
	most := keyLength
	if s.state != inKey && s.state != keyEscape {
		most = valueLength
	}
	if len(s.keep)+len(p) > most {
		s.long = true
		return
	}
	s.keep = append(s.keep, p...)
}

func unquote(raw []byte) (string, error) {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw), nil
	}
	var text string
	if err := json.Unmarshal(append(append([]byte{'"'}, raw...), '"'), &text); err != nil {
		return "", fmt.Errorf("not JSON: string %.64q: %w", raw, err)
	}
	return text, nil
}

// ended tells whether the object is complete.
func (s *scan) ended() bool { return s.state == afterObject }
