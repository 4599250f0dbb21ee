package launcher

import (
	"fmt"
	"strings"
)

// SecretsDirEnv tells ranks the folder of their job's secrets, with a file for each;
// NAME_FILE is the path of NAME's file, and NAME its content.
const SecretsDirEnv = "SPARKRUN_SECRETS_DIR"

// Bounds of a job's secrets: they are in the raft record, and in every rank's environment.
const (
	MaxSecrets     = 32
	MaxSecretBytes = 48 << 10 // of all together
)

// SealedSecret is a secret that only the nodes can open. In a dry run it has no Box, only a
// name.
type SealedSecret struct {
	Name string `json:"name"` // of a variable
	Box  []byte `json:"box,omitempty"`
}

// hiddenText replaces a secret wherever a rank's environment is shown.
const hiddenText = "<secret>"

// SecretSettings are the variables for the job's secrets in dir. The values are filled in
// later.
func (s Spec) SecretSettings(dir string) []Setting {
	if len(s.Secrets) == 0 {
		return nil
	}
	const source = "--secret"
	out := []Setting{{Name: SecretsDirEnv, Value: dir, Source: source}}
	for _, x := range s.Secrets {
		out = append(out, Setting{Name: x.Name + "_FILE", Value: dir + "/" + x.Name, Source: source},
			Setting{Name: x.Name, Value: hiddenText, Source: source})
	}
	return out
}

func (s Spec) validateSecrets() error {
	if len(s.Secrets) > MaxSecrets {
		return fmt.Errorf("--secret: %w: %d of them, at most %d", ErrInvalid, len(s.Secrets), MaxSecrets)
	}
	seen := map[string]bool{}
	bytes := 0
	for _, x := range s.Secrets {
		switch {
		case !envPattern().MatchString(x.Name):
			return fmt.Errorf("--secret %q: %w: a name is letters, digits and '_', and begins with no digit", x.Name, ErrInvalid)
		case strings.HasPrefix(x.Name, "SPARKRUN_"):
			return fmt.Errorf("--secret %s: %w: names that begin with SPARKRUN_ are sparkrun's", x.Name, ErrInvalid)
		case seen[x.Name]:
			return fmt.Errorf("--secret %s: %w: given twice", x.Name, ErrInvalid)
		}
		seen[x.Name] = true
		bytes += len(x.Box)
	}
	if bytes > 2*MaxSecretBytes { // sealed ones are longer
		return fmt.Errorf("--secret: %w: they take %d bytes, at most %d", ErrInvalid, bytes, MaxSecretBytes)
	}
	for _, st := range s.Stages {
		for _, e := range st.Env {
			if seen[e.Name] {
				return fmt.Errorf("--secret %s: %w: %s sets it too", e.Name, ErrInvalid, e.Source)
			}
		}
	}
	return nil
}
