package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Read reads a recipe of either version. A field that it does not know, or does not follow, is
// in the recipe's notes; one of the wrong kind is an error, which wraps launcher.ErrInvalid and
// names the field and its line. YAML aliases, tags of one's own and several documents are
// refused, as are files above MaxBytes.
func Read(text []byte) (Recipe, error) {
	if len(text) > MaxBytes {
		return Recipe{}, fmt.Errorf("%w: %d bytes, more than %d: this is no recipe", launcher.ErrInvalid, len(text),
			MaxBytes)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return Recipe{}, fmt.Errorf("%w: it is empty", launcher.ErrInvalid)
	case err != nil:
		return Recipe{}, fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return Recipe{}, fmt.Errorf("%w: more than one YAML document", launcher.ErrInvalid)
	}
	if err := plainValue(&doc, 0); err != nil {
		return Recipe{}, err
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return Recipe{}, fmt.Errorf("%w: want fields such as `model: NAME`, got %s", launcher.ErrInvalid, kind(root))
	}
	r := reader{}
	r.fields(root)
	r.finish()
	return r.Recipe, errors.Join(r.errs...)
}

// plainValue refuses YAML whose meaning is not what stands there.
func plainValue(n *yaml.Node, depth int) error {
	switch {
	case n.Kind == yaml.AliasNode || n.Anchor != "":
		return fmt.Errorf("line %d: %w: anchors and aliases (& and *) are not read: write the value out", n.Line,
			launcher.ErrInvalid)
	case depth > maxDepth:
		return fmt.Errorf("line %d: %w: nested deeper than %d", n.Line, launcher.ErrInvalid, maxDepth)
	case len(n.Content) > maxEntries:
		return fmt.Errorf("line %d: %w: %d entries in one place, at most %d", n.Line, launcher.ErrInvalid, len(n.Content),
			maxEntries)
	case strings.ContainsRune(n.Value, 0):
		return fmt.Errorf("line %d: %w: holds a NUL byte", n.Line, launcher.ErrInvalid)
	}
	switch n.ShortTag() {
	case "", "!!str", "!!int", "!!float", "!!bool", "!!null", "!!map", "!!seq", "!!timestamp":
	default:
		return fmt.Errorf("line %d: %w: the YAML tag %s is not read", n.Line, launcher.ErrInvalid, n.ShortTag())
	}
	for _, c := range n.Content {
		if err := plainValue(c, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func kind(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields of its own"
	case yaml.SequenceNode:
		return "a list"
	}
	return strconv.Quote(n.Value)
}

// reader collects what is wrong, so that one look mends all of it.
type reader struct {
	Recipe
	mode string
	errs []error
}

func (r *reader) fail(field string, n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("line %d: %w", n.Line, invalid(field, format, args...)))
}

func (r *reader) note(field, format string, args ...any) {
	r.Notes = append(r.Notes, Note{field, fmt.Sprintf(format, args...)})
}

// pairs walks over a mapping. Of a key that comes twice the last one counts, as in PyYAML.
func (r *reader) pairs(under string, n *yaml.Node, do func(key string, v *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		if !null(n) {
			r.fail(under, n, "want fields, got %s", kind(n))
		}
		return
	}
	last := map[string]int{}
	for i := 0; i < len(n.Content); i += 2 {
		if k := n.Content[i]; k.Kind != yaml.ScalarNode {
			r.fail(under, k, "a field's name is text, got %s", kind(k))
		} else {
			last[k.Value] = i
		}
	}
	for i := 0; i < len(n.Content); i += 2 {
		k := n.Content[i]
		switch at, ok := last[k.Value]; {
		case !ok:
		case at != i:
			field := k.Value
			if under != "" {
				field = under + "." + field
			}
			r.note(field, "it is there twice: that of line %d counts", n.Content[at].Line)
		default:
			do(k.Value, n.Content[i+1])
		}
	}
}

func null(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// yesNo are the words that YAML 1.1, which both tools read, takes for a boolean beside true and false.
var yesNo = map[string]string{"yes": "True", "on": "True", "no": "False", "off": "False", "true": "True",
	"false": "False"}

var wholeNumber = plain.Pattern(`^-?(0|[1-9][0-9]*)$`)

// text is a single value as Python prints it; false: there is none.
func (r *reader) text(field string, n *yaml.Node) (string, bool) {
	if n.Kind != yaml.ScalarNode {
		r.fail(field, n, "want one value, got %s", kind(n))
		return "", false
	}
	if null(n) {
		return "", false
	}
	if n.Style == 0 {
		if word, is := yesNo[strings.ToLower(n.Value)]; is {
			return word, true
		}
		var i int64
		if n.ShortTag() == "!!int" && !wholeNumber().MatchString(n.Value) && n.Decode(&i) == nil {
			return strconv.FormatInt(i, 10), true
		}
	}
	return n.Value, true
}

func (r *reader) into(to *string, field string, n *yaml.Node) {
	if text, ok := r.text(field, n); ok {
		*to = strings.TrimSpace(text)
	}
}

func (r *reader) yes(field string, n *yaml.Node) bool {
	text, ok := r.text(field, n)
	if ok && text != "True" && text != "False" {
		r.fail(field, n, "want true or false, got %q", text)
	}
	return text == "True"
}

func (r *reader) count(to *int, field string, n *yaml.Node) {
	text, ok := r.text(field, n)
	if !ok {
		return
	}
	i, err := strconv.Atoi(text)
	if err != nil || i < 1 || i > 1<<16 {
		r.fail(field, n, "want a number of machines, got %q", text)
		return
	}
	*to = i
}

// list is a list of texts; a single text is a list of one.
func (r *reader) list(field string, n *yaml.Node) (out []string) {
	switch {
	case null(n):
		return nil
	case n.Kind == yaml.ScalarNode:
		if text, ok := r.text(field, n); ok && text != "" {
			out = append(out, text)
		}
		return out
	case n.Kind != yaml.SequenceNode:
		r.fail(field, n, "want a list, got %s", kind(n))
		return nil
	}
	for _, e := range n.Content {
		if text, ok := r.text(field, e); ok {
			out = append(out, text)
		}
	}
	return out
}

func (r *reader) settings(field string, n *yaml.Node) (out []Setting) {
	r.pairs(field, n, func(key string, v *yaml.Node) {
		at := field + "." + key
		switch text, ok := r.text(at, v); {
		case ok:
			out = append(out, Setting{key, text})
		case null(v):
			r.note(at, "it has no value: left out")
		}
	})
	return out
}

func (r *reader) finish() {
	if r.Version == "" {
		r.Version = "2"
	}
	lacks := func(field string) {
		r.errs = append(r.errs, fmt.Errorf("%s: %w: version %s of recipes needs it", field, launcher.ErrInvalid, r.Version))
	}
	switch {
	case r.Version != "1" && r.Version != "2":
		r.errs = append(r.errs, invalid("recipe_version", "%q is not known: 1 is of eugr/spark-vllm-docker, 2 of "+
			"spark-arena", r.Version))
	case r.Version == "1":
		if r.Name == "" {
			lacks("name")
		}
		if r.Image == "" {
			lacks("container")
		}
		if r.Command == "" {
			lacks("command")
		}
	case r.Model == "":
		lacks("model")
	}
	switch r.mode {
	case "", "auto", "cluster", "solo":
	default:
		r.errs = append(r.errs, invalid("mode", "want auto, solo or cluster, got %q", r.mode))
	}
	if r.MaxNodes > 0 && r.MinNodes > r.MaxNodes {
		r.errs = append(r.errs, invalid(r.MinBy, "it wants %d machines or more, and %s at most %d", r.MinNodes, r.MaxBy,
			r.MaxNodes))
	}
}
