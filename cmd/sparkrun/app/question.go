package app

import (
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// QuestionName is what the job of a question is called, with the engine and its own id behind it.
const QuestionName = "ask-"

func isQuestion(spec launcher.Spec) bool {
	return strings.HasPrefix(spec.Name, QuestionName) && strings.HasSuffix(spec.Name, "-"+string(spec.ID))
}
