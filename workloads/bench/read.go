package bench

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/workloads"
)

// Read reads a file of benchmarks. Every error names its line and key, and wraps launcher.ErrInvalid; all that is wrong
// is told at once.
func Read(text []byte) (File, error) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return File{}, fmt.Errorf("%w: it is empty", launcher.ErrInvalid)
	case err != nil:
		return File{}, fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	case !errors.Is(dec.Decode(&more), io.EOF):
		return File{}, fmt.Errorf("%w: want one document, without a line ---", launcher.ErrInvalid)
	}
	var r reader
	var f File
	var scenarios *yaml.Node
	d := Scenario{Warmup: 1, Repeats: 5, Timeout: time.Hour}
	r.fields("", doc.Content[0], map[string]set{"name": to(&f.Name, r.text), "warmup": to(&d.Warmup, r.from(0)),
		"repeats": to(&d.Repeats, r.from(1)), "timeout": to(&d.Timeout, r.span), "scenarios": to(&scenarios, node)})
	if f.Name == "" {
		r.fail(doc.Content[0], "name", "it is missing")
	}
	unfit := func(c rune) bool { return c == '/' || unicode.IsControl(c) }
	if strings.ContainsFunc(f.Name, unfit) || strings.HasPrefix(f.Name, ".") {
		r.fail(doc.Content[0], "name", "want one that can be a file's, got %q", f.Name)
	}
	if scenarios == nil || scenarios.Kind != yaml.MappingNode || len(scenarios.Content) == 0 {
		r.fail(doc.Content[0], "scenarios", "want at least one, as NAME: with its fields below")
		return f, errors.Join(r.errs...)
	}
	r.each("scenarios", scenarios, func(key string, k, n *yaml.Node) {
		s := d
		s.Name = k.Value
		r.scenario(&s, key, k, n)
		f.Scenarios = append(f.Scenarios, s)
	})
	return f, errors.Join(r.errs...)
}

type reader struct{ errs []error }

func (r *reader) fail(n *yaml.Node, key, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("line %d: %s: %w: %s", n.Line, key, launcher.ErrInvalid, fmt.Sprintf(format, args...)))
}

// each gives the keys of a mapping, each with all keys above it, and their values.
func (r *reader) each(under string, n *yaml.Node, do func(key string, k, n *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, under, "want fields of its own, as NAME: VALUE")
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		k := n.Content[i]
		key := strings.TrimPrefix(under+"."+k.Value, ".")
		if seen[k.Value] {
			r.fail(k, key, "it is there twice")
		}
		seen[k.Value] = true
		do(key, k, n.Content[i+1])
	}
}

// set takes the value of a field.
type set func(key string, n *yaml.Node)

func to[T any](v *T, read func(key string, n *yaml.Node) T) set {
	return func(key string, n *yaml.Node) { *v = read(key, n) }
}

func node(_ string, n *yaml.Node) *yaml.Node { return n }

// fields reads a mapping whose keys are known.
func (r *reader) fields(under string, n *yaml.Node, known map[string]set) {
	r.each(under, n, func(key string, k, n *yaml.Node) {
		if set := known[k.Value]; set != nil {
			set(key, n)
		} else {
			r.fail(k, key, "it is not known here: %s are", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
	})
}

func (r *reader) text(key string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" || n.Value == "" {
		r.fail(n, key, "want one value")
		return ""
	}
	return n.Value
}

// from reads a number of runs.
func (r *reader) from(low int) func(string, *yaml.Node) int {
	return func(key string, n *yaml.Node) int {
		v, err := strconv.Atoi(n.Value)
		if err != nil || v < low || v > MaxRepeats {
			r.fail(n, key, "want a number from %d to %d", low, MaxRepeats)
		}
		return v
	}
}

func (r *reader) span(key string, n *yaml.Node) time.Duration {
	d, err := time.ParseDuration(n.Value)
	if err != nil || d <= 0 {
		r.fail(n, key, "want a time such as 90s, 30m or 2h")
	}
	return d
}

// list is a value, or several.
func (r *reader) list(key string, n *yaml.Node) (out []string) {
	if n.Kind != yaml.SequenceNode {
		return []string{r.text(key, n)}
	}
	for _, c := range n.Content {
		out = append(out, r.text(key, c))
	}
	if len(out) == 0 {
		r.fail(n, key, "want at least one value")
	}
	return out
}

// words is a list, or a text that is cut at its spaces.
func (r *reader) words(key string, n *yaml.Node) []string {
	if n.Kind == yaml.SequenceNode {
		return r.list(key, n)
	}
	text := r.text(key, n)
	if strings.ContainsAny(text, `'"\`+"`$") {
		r.fail(n, key, "it is cut at its spaces, and has quotes of a shell: write a list, [WORD, WORD]")
	}
	return strings.Fields(text)
}

func (r *reader) scenario(s *Scenario, under string, k, n *yaml.Node) {
	var serve, recipe, command, env, vary, client, figures *yaml.Node
	r.fields(under, n, map[string]set{"serve": to(&serve, node), "recipe": to(&recipe, node), "command": to(&command, node),
		"env": to(&env, node), "vary": to(&vary, node), "client": to(&client, node), "figures": to(&figures, node),
		"warmup": to(&s.Warmup, r.from(0)), "repeats": to(&s.Repeats, r.from(1)), "timeout": to(&s.Timeout, r.span)})
	kinds := slices.DeleteFunc([]*yaml.Node{serve, recipe, command}, func(n *yaml.Node) bool { return n == nil })
	switch s.Serves = command == nil; {
	case len(kinds) != 1:
		r.fail(k, under, "want one of serve, recipe and command")
	case !s.Serves && client != nil:
		r.fail(client, under+".client", "this asks a server: it goes with serve and recipe")
	case s.Serves && figures != nil:
		r.fail(figures, under+".figures", "these are read from a command's output: what serves is measured by its client")
	case serve != nil:
		s.Command = append([]string{"sparkrun", "launch", "--json"}, r.words(under+".serve", serve)...)
	case recipe != nil:
		s.Command = append([]string{"sparkrun", "run", "--json"}, r.words(under+".recipe", recipe)...)
	case command.Kind == yaml.ScalarNode:
		s.Command = []string{"sh", "-c", r.text(under+".command", command)}
	default:
		s.Command = r.list(under+".command", command)
	}
	if c := &s.Client; client != nil {
		r.fields(under+".client", client, map[string]set{"use": to(&c.Use, r.text), "api": to(&c.API, r.text),
			"model": to(&c.Model, r.text), "input": to(&c.Input, r.text), "output": to(&c.Output, r.text),
			"concurrency": to(&c.Concurrency, r.text), "prompts": to(&c.Prompts, r.text)})
	}
	if env != nil {
		r.each(under+".env", env, func(key string, k, n *yaml.Node) {
			if workloads.IsSecret(k.Value) {
				r.fail(k, key, "its name says that it holds a secret, which what is kept of a run would show")
			}
			s.Env = append(s.Env, Setting{k.Value, r.text(key, n)})
		})
	}
	if vary != nil {
		r.vary(s, under+".vary", vary)
	}
	if figures != nil {
		r.figures(s, under+".figures", figures)
	}
	if len(r.errs) == 0 {
		if _, err := s.cases(); err != nil {
			r.fail(k, under, "%v", err)
		}
	}
}

// vary reads names with their values, or several such mappings whose cases are all run.
func (r *reader) vary(s *Scenario, key string, n *yaml.Node) {
	parts := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		parts = n.Content
	}
	for _, part := range parts {
		points := [][]Setting{nil} // of the combinations so far, the last name varies fastest
		r.each(key, part, func(key string, k, n *yaml.Node) {
			values := r.list(key, n)
			switch {
			case !varied().MatchString(k.Value):
				r.fail(k, key, "want a name of small letters, digits and _")
			case !s.uses(k.Value):
				r.fail(k, key, "nothing here has {%s}, so it would change nothing", k.Value)
			case len(values) > 0:
				was := points
				points = nil
				for _, p := range was {
					for _, v := range values {
						points = append(points, append(slices.Clip(p), Setting{k.Value, v}))
					}
				}
			}
		})
		if s.vary = append(s.vary, points...); !slices.EqualFunc(points[0], s.vary[0], func(a, b Setting) bool { return a.Name == b.Name }) {
			r.fail(part, key, "each part has to have the same names, in one order")
		}
	}
}

func (r *reader) figures(s *Scenario, key string, n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		r.fail(n, key, "want a list of patterns")
		return
	}
	for _, f := range n.Content {
		p := Pattern{}
		r.fields(key, f, map[string]set{"pattern": to(&p.Text, r.text), "unit": to(&p.Unit, r.text),
			"better": to((*string)(&p.Better), r.text)})
		if p.Better != Higher && p.Better != Lower {
			r.fail(f, key+".better", "want %s or %s", Higher, Lower)
		}
		re, err := regexp.Compile(p.Text)
		if err != nil {
			r.fail(f, key+".pattern", "%v", err)
			continue
		}
		named := slices.DeleteFunc(re.SubexpNames(), func(name string) bool { return name == "" })
		if len(named) != 1 || named[0] == Seconds {
			r.fail(f, key+".pattern", "want one group with the figure's name, such as (?P<steps>[0-9.]+); %s is kept anyway", Seconds)
			continue
		}
		p.Name = named[0]
		if slices.ContainsFunc(s.Figures, func(o Pattern) bool { return o.Name == p.Name }) {
			r.fail(f, key+".pattern", "%s is there twice", p.Name)
		}
		s.Figures = append(s.Figures, p)
	}
}
