package policy

import (
	"fmt"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/launcher"
)

// gate is the least part of what is expected that a test of the links must have reached.
type gate struct {
	line int
	part float64
}

// Gate is what a job's links must have reached in a test before it may start here, as a
// part of what is expected, and the rule that says so; 0: nothing is asked of it. The rule
// is about jobs that take GPUs, but for the tests themselves.
func (p Policy) Gate(spec launcher.Spec) (part float64, rule string) {
	if p.gate == nil || slices.Contains([]string{"nccl-test", "ib-test"}, spec.Workload) || !slices.ContainsFunc(spec.Stages, func(st launcher.Stage) bool { return st.GPU }) {
		return 0, ""
	}
	return p.gate.part, fmt.Sprintf("rule gate, line %d of %s", p.gate.line, p.path)
}

// part reads a number such as 0.9.
func part(n *yaml.Node) (float64, error) {
	v, err := strconv.ParseFloat(n.Value, 64)
	if n.Kind != yaml.ScalarNode || err != nil || !launcher.IsPart(v) {
		return 0, at(n, "%q: want a part of what is expected, above 0 and up to 1, such as 0.9", n.Value)
	}
	return v, nil
}
