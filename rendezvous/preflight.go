package rendezvous

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/envgen/topology"
)

// CodeGPUsTaken warns in a dry run of GPUs that another job has at that moment.
const CodeGPUsTaken = "gpus-taken"

// ErrFabricUnfit is wrapped by the refusal of a job that cannot work on this fabric.
var ErrFabricUnfit = errors.New("the fabric is not fit for this job")

// ErrUnheard is an ErrFabricUnfit for ports alone that hear no member: after a cable is back the probe takes some
// seconds to hear one.
var ErrUnheard = fmt.Errorf("%w", ErrFabricUnfit)

// Unfit is the error for the findings that stop a job, each with the node, the
// port, the code and the remedy; nil where none is an error.
func Unfit(findings []envgen.Finding) error {
	var lines []string
	err := ErrUnheard
	for _, f := range findings {
		if f.Severity == envgen.SeverityError {
			lines = append(lines, "\n  "+Describe(f))
			if f.Code != topology.CodeNoNeighbour {
				err = ErrFabricUnfit
			}
		}
	}
	if lines == nil {
		return nil
	}
	return fmt.Errorf("%w; nothing is started:%s", err, strings.Join(lines, ""))
}

// Forced turns errors into warnings: the user starts the job anyway.
func Forced(findings []envgen.Finding) []envgen.Finding {
	forced := slices.Clone(findings)
	for i := range forced {
		if forced[i].Severity == envgen.SeverityError {
			forced[i].Severity = envgen.SeverityWarning
		}
	}
	return forced
}

// Describe writes a finding as one line.
func Describe(f envgen.Finding) string {
	where := strings.Join(slices.DeleteFunc([]string{cmp.Or(f.Host, "cluster"), f.Port, f.Device},
		func(s string) bool { return s == "" }), " ")
	return fmt.Sprintf("%s: %s [%s] (remedy: %s)", where, f.Text, f.Code, f.Remedy)
}
