package main

import (
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// questionName is what the job of a question is called, with the engine and its own id behind it.
const questionName = "ask-"

func isQuestion(spec launcher.Spec) bool {
	return strings.HasPrefix(spec.Name, questionName) && strings.HasSuffix(spec.Name, "-"+string(spec.ID))
}
