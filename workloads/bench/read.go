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
	f := File{}
	warmup, repeats, timeout := 1, 5, time.Hour
	var scenarios *yaml.Node
	r.fields("", doc.Content[0], map[string]func(*yaml.Node){
		"name":      func(n *yaml.Node) { f.Name = r.text("name", n) },
		"warmup":    func(n *yaml.Node) { warmup = r.number("warmup", n, 0, MaxRepeats) },
		"repeats":   func(n *yaml.Node) { repeats = r.number("repeats", n, 1, MaxRepeats) },
		"timeout":   func(n *yaml.Node) { timeout = r.span("timeout", n) },
		"scenarios": func(n *yaml.Node) { scenarios = n },
	})
	if f.Name == "" {
		r.fail(doc.Content[0], "name", "it is missing")
	}
	if strings.ContainsAny(f.Name, "/\x00\n") || strings.HasPrefix(f.Name, ".") {
		r.fail(doc.Content[0], "name", "want one that can be a file's, got %q", f.Name)
	}
	if scenarios == nil || scenarios.Kind != yaml.MappingNode || len(scenarios.Content) == 0 {
		r.fail(doc.Content[0], "scenarios", "want at least one, as NAME: with its fields below")
		return f, errors.Join(r.errs...)
	}
	for i := 0; i < len(scenarios.Content); i += 2 {
		k := scenarios.Content[i]
		s := Scenario{Name: k.Value, Warmup: warmup, Repeats: repeats, Timeout: timeout}
		r.scenario(&s, k, scenarios.Content[i+1])
		if slices.ContainsFunc(f.Scenarios, func(o Scenario) bool { return o.Name == s.Name }) {
			r.fail(k, "scenarios."+s.Name, "it is there twice")
		}
		f.Scenarios = append(f.Scenarios, s)
	}
	return f, errors.Join(r.errs...)
}

type reader struct{ errs []error }

func (r *reader) fail(n *yaml.Node, key, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("line %d: %s: %w: %s", n.Line, key, launcher.ErrInvalid, fmt.Sprintf(format, args...)))
}

// fields reads a mapping whose keys are known.
func (r *reader) fields(under string, n *yaml.Node, known map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, under, "want fields of its own")
		return
	}
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		k := n.Content[i]
		key := strings.TrimPrefix(under+"."+k.Value, ".")
		do := known[k.Value]
		switch {
		case do == nil:
			r.fail(k, key, "it is not known here: %s are", strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		case seen[k.Value]:
			r.fail(k, key, "it is there twice")
		default:
			do(n.Content[i+1])
		}
		seen[k.Value] = true
	}
}

func (r *reader) text(key string, n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" || n.Value == "" {
		r.fail(n, key, "want one value")
		return ""
	}
	return n.Value
}

func (r *reader) number(key string, n *yaml.Node, low, high int) int {
	v, err := strconv.Atoi(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil || v < low || v > high {
		r.fail(n, key, "want a number from %d to %d", low, high)
		return low
	}
	return v
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

func (r *reader) scenario(s *Scenario, k, n *yaml.Node) {
	under := "scenarios." + s.Name
	key := func(name string) string { return under + "." + name }
	var client *yaml.Node
	var vary *yaml.Node
	r.fields(under, n, map[string]func(*yaml.Node){
		"serve":  func(n *yaml.Node) { s.Serve = r.words(key("serve"), n) },
		"recipe": func(n *yaml.Node) { s.Recipe = r.words(key("recipe"), n) },
		"command": func(n *yaml.Node) {
			s.Shell = n.Kind == yaml.ScalarNode
			s.Command = r.list(key("command"), n)
		},
		"env":     func(n *yaml.Node) { r.env(s, key("env"), n) },
		"vary":    func(n *yaml.Node) { vary = n },
		"client":  func(n *yaml.Node) { client = n },
		"figures": func(n *yaml.Node) { r.figures(s, key("figures"), n) },
		"warmup":  func(n *yaml.Node) { s.Warmup = r.number(key("warmup"), n, 0, MaxRepeats) },
		"repeats": func(n *yaml.Node) { s.Repeats = r.number(key("repeats"), n, 1, MaxRepeats) },
		"timeout": func(n *yaml.Node) { s.Timeout = r.span(key("timeout"), n) },
	})
	kinds := 0
	for _, words := range [][]string{s.Serve, s.Recipe, s.Command} {
		kinds += min(1, len(words))
	}
	switch {
	case kinds != 1:
		r.fail(k, under, "want one of serve, recipe and command")
	case len(s.Command) > 0 && client != nil:
		r.fail(client, key("client"), "this asks a server: it goes with serve and recipe")
	case len(s.Command) == 0 && s.Figures != nil:
		r.fail(k, key("figures"), "these are read from a command's output: what serves is measured by its client")
	}
	if c := &s.Client; client != nil {
		known := map[string]func(*yaml.Node){}
		for name, to := range map[string]*string{"use": &c.Use, "api": &c.API, "model": &c.Model, "input": &c.Input,
			"output": &c.Output, "concurrency": &c.Concurrency, "prompts": &c.Prompts} {
			known[name] = func(n *yaml.Node) { *to = r.text(key("client."+name), n) }
		}
		r.fields(key("client"), client, known)
	}
	if vary != nil {
		r.vary(s, key("vary"), vary)
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
		if part.Kind != yaml.MappingNode || len(part.Content) == 0 {
			r.fail(part, key, "want NAME: VALUE, or NAME: [VALUE, VALUE]")
			continue
		}
		var p product
		for i := 0; i < len(part.Content); i += 2 {
			k := part.Content[i]
			a := axis{k.Value, r.list(key+"."+k.Value, part.Content[i+1])}
			switch {
			case !varied().MatchString(a.name):
				r.fail(k, key+"."+a.name, "want a name of small letters, digits and _")
			case !s.uses(a.name):
				r.fail(k, key+"."+a.name, "nothing here has {%s}, so it would change nothing", a.name)
			}
			p = append(p, a)
		}
		s.vary = append(s.vary, p)
		if !slices.EqualFunc(p, s.vary[0], func(a, b axis) bool { return a.name == b.name }) {
			r.fail(part, key, "each part has to have the same names, in one order")
		}
	}
}

func (r *reader) env(s *Scenario, key string, n *yaml.Node) {
	if n.Kind != yaml.MappingNode {
		r.fail(n, key, "want NAME: VALUE")
		return
	}
	for i := 0; i < len(n.Content); i += 2 {
		k, name := n.Content[i], n.Content[i].Value
		if workloads.IsSecret(name) {
			r.fail(k, key+"."+name, "its name says that it holds a secret, which what is kept of a run would show")
		}
		s.Env = append(s.Env, Setting{name, r.text(key+"."+name, n.Content[i+1])})
	}
}

func (r *reader) figures(s *Scenario, key string, n *yaml.Node) {
	s.Figures = []Pattern{}
	if n.Kind != yaml.SequenceNode {
		r.fail(n, key, "want a list of patterns")
		return
	}
	for _, f := range n.Content {
		p := Pattern{}
		r.fields(key, f, map[string]func(*yaml.Node){
			"pattern": func(n *yaml.Node) { p.Text = r.text(key+".pattern", n) },
			"unit":    func(n *yaml.Node) { p.Unit = r.text(key+".unit", n) },
			"better":  func(n *yaml.Node) { p.Better = Better(r.text(key+".better", n)) },
		})
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
