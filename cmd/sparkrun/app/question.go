package app

import (
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// QuestionName begins the name of a job that asks a server for its help; the engine and
// the job's own id follow.
const QuestionName = "ask-"

func isQuestion(spec launcher.Spec) bool {
	return strings.HasPrefix(spec.Name, QuestionName) && strings.HasSuffix(spec.Name, "-"+string(spec.ID))
}
