package engine

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads"
)

// modelName is one on Hugging Face: NAME, or OWNER/NAME (huggingface_hub/utils/_validators.py).
var modelName = plain.Pattern(`^[A-Za-z0-9_][\w.-]*(/[A-Za-z0-9_][\w.-]*)?$`)

// revisionName is a branch, a tag or a commit there.
var revisionName = plain.Pattern(`^\w[\w.+-]*(/\w[\w.+-]*)*$`)

// elsewhere are flags of the servers by which weights come from where nobody looks, or not at all, or other files
// from another revision than these.
var elsewhere = []Flag{{Name: "--load-format"}, {Name: "--download-dir"}, {Name: "--model-loader-extra-config"},
	{Name: "--tokenizer-revision"}, {Name: "--code-revision"}}

// others are flags that may name further models, which nobody looks for but the server.
var others = []Flag{{Name: "--tokenizer", Other: []string{"--tokenizer-path"}}, {Name: "--hf-config-path"},
	{Name: "--speculative-config", Other: []string{"-sc"}},
	{Name: "--speculative-draft-model-path", Other: []string{"--speculative-draft-model"}}, {Name: "--speculative-model"},
	{Name: "--lora-modules"}, {Name: "--lora-paths"}}

// MayFetch tells whether the server of a request may have to fetch more than its model.
func (e Engine) MayFetch(r workloads.Request) bool {
	words := slices.Concat(r.Serve.Command, r.Serve.Args)
	return slices.ContainsFunc(others, func(f Flag) bool { return f.Stands(words) })
}

// revision is the flag of the model's version. A folder has one: no server gets the flag beside it.
var revision = Flag{Name: "--revision"}

// ModelToFind is the model of a request, a folder or NAME[@REVISION], of which nodes can tell whether they have it;
// empty: there is none.
func (e Engine) ModelToFind(r workloads.Request) string {
	if e.Model != HuggingFace {
		return ""
	}
	model, words := r.Serve.Model, slices.Concat(r.Serve.Command, r.Serve.Args)
	for _, f := range elsewhere {
		if _, given := f.In(words); given {
			return ""
		}
	}
	if r.Serve.Snapshot != "" {
		return r.Serve.Snapshot
	}
	rev, given := revision.In(words)
	switch {
	case path.IsAbs(model):
		return model
	case !modelName().MatchString(model) || given && !revisionName().MatchString(rev):
		return ""
	case given:
		return model + "@" + rev
	}
	return model
}

// NodeModel is what a node has of a model; a nil Copy: it does not tell.
type NodeModel struct {
	Host string
	Copy *launcher.ModelCopy
}

// Weights says, a line a node, which have the model of a request, and which fetch it, or a part of it;
// an error names those where that cannot be.
func (e Engine) Weights(r workloads.Request, nodes []NodeModel) (has, fetch []string, err error) {
	model, whole := e.ModelToFind(r), int64(0)
	if c := r.Serve.Config; c != nil {
		whole = c.Bytes
	}
	var wrong []unserved
	for _, n := range nodes {
		if n.Copy == nil || model == "" {
			continue
		}
		line, lacks, e := n.weights(model, whole)
		same := slices.IndexFunc(wrong, func(u unserved) bool { return e != nil && u.err.Error() == e.Error() })
		switch {
		case e != nil && same >= 0:
			wrong[same].hosts += ", " + n.Host
		case e != nil:
			wrong = append(wrong, unserved{n.Host, e})
		case lacks:
			fetch = append(fetch, n.Host+": "+line)
		default:
			has = append(has, n.Host+": "+line)
		}
	}
	for _, u := range wrong {
		err = errors.Join(err, fmt.Errorf("%s: %w", u.hosts, u.err))
	}
	return has, fetch, err
}

// unserved are nodes that cannot serve a model, and why.
type unserved struct {
	hosts string
	err   error
}

func (n NodeModel) weights(model string, whole int64) (line string, lacks bool, err error) {
	c := n.Copy
	lack := max(whole, c.Whole) - c.Bytes
	if path.IsAbs(model) {
		switch {
		case !c.Found:
			return "", true, fmt.Errorf("%s: %w: it is not there: copy the model to every machine, or serve it by its name "+
				"on Hugging Face", c.Dir, launcher.ErrInvalid)
		case c.Lacks > 0:
			return "", true, fmt.Errorf("%s: %w: it lacks %d of the files with weights that its "+
				"model.safetensors.index.json names: copy the model again", c.Dir, launcher.ErrInvalid, c.Lacks)
		}
		return "has " + c.Dir + ofBytes(c.Bytes), false, nil
	}
	switch {
	case c.Found && c.Lacks == 0 && (c.Bytes > 0 || whole == 0):
		return "has " + model + " in " + c.Dir + ofBytes(c.Bytes), false, nil
	case c.Free != nil && max(whole, c.Whole) > 0 && lack > *c.Free:
		return "", true, fmt.Errorf("%w: it would fetch %s of %s into %s, whose file system has %s free: free some "+
			"there, or name another folder with --env HF_HOME=DIR or --model-cache DIR",
			ErrNoRoom, gib(lack), model, c.Dir, gib(*c.Free))
	case c.Found && c.Bytes > 0:
		line = "has a part of " + model + " in " + c.Dir + ": the server fetches the rest"
	default:
		line = "has no " + model + " in " + c.Dir + ": the server fetches it"
	}
	if max(whole, c.Whole) > 0 {
		line += ", " + gib(lack)
	}
	if c.Free != nil {
		line += "; " + gib(*c.Free) + " are free there"
	}
	return line, true, nil
}

func ofBytes(n int64) string {
	if n == 0 {
		return ""
	}
	return ", " + gib(n)
}
