package bench

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

func (s Scenario) cases() (out []Case, err error) {
	points, seen := s.vary, map[string]bool{}
	if len(points) == 0 {
		points = [][]Setting{nil}
	}
	for _, point := range points {
		c, err := s.at(point)
		if err != nil {
			return nil, err
		}
		if seen[c.Label()] {
			return nil, fmt.Errorf("vary: %s is there twice", c.Label())
		}
		seen[c.Label()] = true
		out = append(out, c)
	}
	return out, nil
}

// at fills the values of one point in.
func (s Scenario) at(point []Setting) (Case, error) {
	var braces []string
	for _, v := range point {
		braces = append(braces, "{"+v.Name+"}", v.Value)
	}
	fill := strings.NewReplacer(braces...).Replace
	c := Case{Scenario: s.Name, Values: point, Patterns: s.Figures, Warmup: s.Warmup, Repeats: s.Repeats, Timeout: s.Timeout}
	for _, e := range s.Env {
		c.Env = append(c.Env, Setting{e.Name, fill(e.Value)})
	}
	for i, w := range s.Command {
		c.Argv = append(c.Argv, fill(w))
		if i == 1 && s.Command[0] == "sparkrun" && (w == "launch" || w == "run") { // for its ranks
			for _, e := range c.Env {
				c.Argv = append(c.Argv, "--env", e.Name+"="+e.Value)
			}
			c.Env = nil
		}
	}
	if !s.Serves {
		return c, nil
	}
	k := s.Client
	l := Load{Use: fill(cmp.Or(k.Use, Auto)), API: fill(cmp.Or(k.API, Completions)), Model: fill(k.Model)}
	for _, n := range []struct {
		key, text string
		to        *int
	}{
		{"input", cmp.Or(k.Input, "512"), &l.Input}, {"output", cmp.Or(k.Output, "128"), &l.Output},
		{"concurrency", cmp.Or(k.Concurrency, "1"), &l.Concurrency}, {"prompts", k.Prompts, &l.Prompts},
	} {
		v, err := strconv.Atoi(fill(n.text))
		if n.text != "" && (err != nil || v < 1) {
			return c, fmt.Errorf("client.%s: want a number from 1 on, got %q", n.key, fill(n.text))
		}
		*n.to = v
	}
	l.Prompts = cmp.Or(l.Prompts, 8*l.Concurrency) // each place is taken again often enough to be busy all the time
	if l.Use != Auto && l.Use != VLLM && l.Use != Own {
		return c, fmt.Errorf("client.use: want %s, %s or %s, got %q", Auto, VLLM, Own, l.Use)
	}
	if l.API != Completions && l.API != Chat {
		return c, fmt.Errorf("client.api: want %s or %s, got %q", Completions, Chat, l.API)
	}
	c.Load = &l
	return c, nil
}

// uses tells whether a varied name is filled in anywhere: one that is not would only repeat the same case.
func (s Scenario) uses(name string) bool {
	return strings.Contains(fmt.Sprint(s.Client, s.Command, s.Env), "{"+name+"}")
}

var varied = plain.Pattern(`^[a-z][a-z0-9_]*$`)
