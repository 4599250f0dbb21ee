package recipe

import (
	"cmp"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sparkrun/sparkrun/launcher"
)

// known are the fields of both versions: either tool reads the other's too.
var known = []string{
	"recipe_version", "sparkrun_version", "name", "description", "model", "model_revision", "runtime", "runtime_version",
	"mode", "min_nodes", "max_nodes", "solo_only", "cluster_only", "container", "defaults", "env",
	"command", "runtime_config",
	"metadata", "benchmark", "pre_exec", "post_exec", "post_commands", "stop_after_post", "mods", "build_args", "builder",
	"builder_config", "executor_config", "distribution_config",
}

func (r *reader) fields(root *yaml.Node) {
	var about string
	r.pairs("", root, func(key string, v *yaml.Node) {
		switch key {
		case "recipe_version":
			r.into(&r.Version, key, v)
		case "name":
			r.into(&r.Name, key, v)
		case "description":
			r.into(&r.Description, key, v)
		case "model":
			r.into(&r.Model, key, v)
		case "model_revision":
			r.into(&r.Revision, key, v)
		case "runtime":
			r.into(&r.Runtime, key, v)
		case "container":
			r.into(&r.Image, key, v)
		case "command":
			r.into(&r.Command, key, v)
		case "mode", "min_nodes", "max_nodes", "solo_only", "cluster_only":
			r.machines(key, v)
		case "defaults":
			r.Defaults = r.settings(key, v)
		case "env":
			r.Env = r.settings(key, v)
		case "mods":
			r.Mods = append(r.Mods, r.list(key, v)...)
		case "pre_exec":
			r.setup(key, v)
		case "executor_config":
			r.executor(v)
		case "metadata":
			r.pairs(key, v, func(key string, v *yaml.Node) {
				if key == "description" {
					about, _ = r.text("metadata."+key, v)
				}
			})
		case "runtime_config":
			r.pairs(key, v, func(key string, v *yaml.Node) {
				switch key {
				case "mods":
					r.Mods = append(r.Mods, r.list("runtime_config.mods", v)...)
				case "build_args":
					r.built(v)
				default:
					r.note("runtime_config."+key, "not known here: left out")
				}
			})
		case "build_args":
			r.built(v)
		case "builder", "builder_config":
			if !null(v) {
				r.note(key, "sparkrun builds no images: the machines need the image, or a registry to pull it from")
			}
		case "distribution_config":
			r.note(key, "left out: each machine finds or downloads image and model by itself")
		case "post_exec", "post_commands":
			if n := len(v.Content); n > 0 {
				r.note(key, "left out: nothing is run once the server is ready (%d of them)", n)
			}
		case "stop_after_post":
			if r.yes(key, v) {
				r.note(key, "left out: it serves until `sparkrun stop`")
			}
		case "runtime_version", "sparkrun_version", "benchmark": // facts for people, and for other commands
		default:
			r.note(key, "not known: left out%s", didYouMean(key))
		}
	})
	r.Description = cmp.Or(r.Description, strings.TrimSpace(about))
}

// didYouMean finds a known field that is written like this one.
func didYouMean(field string) string {
	bare := func(s string) string {
		return strings.TrimSuffix(strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s)), "s")
	}
	for _, k := range known {
		if bare(k) == bare(field) {
			return "; did you mean " + k + "?"
		}
	}
	return ""
}

// machines are the fields on how many machines it is for.
func (r *reader) machines(key string, v *yaml.Node) {
	atLeast := func(n int) {
		if n > r.MinNodes {
			r.MinNodes, r.MinBy = n, key
		}
	}
	only := func(n int) {
		if r.MaxNodes == 0 || n < r.MaxNodes {
			r.MaxNodes, r.MaxBy = n, key
		}
	}
	switch key {
	case "mode":
		switch r.into(&r.mode, key, v); r.mode {
		case "solo":
			only(1)
		case "cluster":
			atLeast(2)
		}
	case "solo_only":
		if r.yes(key, v) {
			only(1)
		}
	case "cluster_only":
		if r.yes(key, v) {
			atLeast(2)
		}
	case "min_nodes":
		n := 0
		if r.count(&n, key, v); n > 0 {
			atLeast(n)
		}
	case "max_nodes":
		n := 0
		if r.count(&n, key, v); n > 0 {
			only(n)
		}
	}
}

func (r *reader) built(v *yaml.Node) {
	if args := r.list("build_args", v); len(args) > 0 {
		r.note("build_args", "%s: sparkrun builds no images: build it on each machine, or name one with --image or "+
			"--image-map", strings.Join(args, " "))
	}
}

// setup are commands that run before the server, in each container.
func (r *reader) setup(field string, n *yaml.Node) {
	if n.Kind != yaml.SequenceNode {
		r.Setup = append(r.Setup, r.list(field, n)...)
		return
	}
	for _, e := range n.Content {
		if e.Kind == yaml.MappingNode {
			r.fail(field, e, "files are not copied into a container: leave it out, and bring them with --stage or --mount")
		} else if text, ok := r.text(field, e); ok {
			r.Setup = append(r.Setup, text)
		}
	}
}

// executor is what is asked of the container engine. Most of it is sparkrun's to decide.
func (r *reader) executor(n *yaml.Node) {
	var shm, ipc string
	r.pairs("executor_config", n, func(key string, v *yaml.Node) {
		field := "executor_config." + key
		text := func() (t string) { r.into(&t, field, v); return t }
		switch key {
		case "privileged":
			r.Executor.Privileged = r.yes(field, v)
		case "cap_add", "security_opt", "devices":
			option := map[string]string{"cap_add": "--cap-add=", "security_opt": "--security-opt=",
				"devices": "--device="}[key]
			for _, word := range r.list(field, v) {
				r.Executor.Args = append(r.Executor.Args, option+word)
			}
		case "ulimit":
			for _, word := range r.list(field, v) {
				u, err := launcher.ParseUlimit(word)
				if err != nil {
					r.fail(field, v, "%s: %v", word, err)
				}
				r.Executor.Ulimits = append(r.Executor.Ulimits, u)
			}
		case "shm_size":
			shm = text()
		case "ipc":
			ipc = text()
		case "network":
			if t := text(); t != "" && t != "host" {
				r.fail(field, v, "%s: ranks use the machine's network", t)
			}
		case "entrypoint":
			if t := text(); t != "" {
				r.fail(field, v, "%s: an image's ENTRYPOINT is not run: put it into the command", t)
			}
		case "user":
			if t := text(); t != "" && t != "$SHELL_USER" {
				r.note(field, "%s: ranks run as you; who launches as root may give --user", t)
			}
		case "gpus":
			if t := text(); t != "" && t != "all" {
				r.note(field, "left out: --gpus says which")
			}
		case "auto_remove":
			if !r.yes(field, v) {
				r.note(field, "left out: a container is removed once its exit is recorded, and its output is kept")
			}
		case "restart_policy":
			if t := text(); t != "" && t != "no" {
				r.note(field, "left out: --restart has a service tried again")
			}
		case "memory_limit":
			r.note(field, "left out: the GPU's memory ignores it; a guard on each machine watches that")
		case "labels":
			r.note(field, "left out: labels are sparkrun's")
		default:
			r.note(field, "not known: left out")
		}
	})
	switch {
	case shm == "":
	case ipc == "" || ipc == "host":
		r.note("executor_config.shm_size", "left out: with the machine's IPC its /dev/shm is used, as docker does")
	default:
		bytes, ok := size(shm)
		if !ok {
			r.fail("executor_config.shm_size", n, "want a size such as 16gb, got %q", shm)
		}
		r.Executor.ShmBytes = bytes
	}
}

// size reads bytes as docker does, where a kilobyte has 1024: 10.24gb, 512m, 1024.
func size(text string) (int64, bool) {
	t := strings.TrimSuffix(strings.ToLower(text), "b")
	t = strings.TrimSuffix(t, "i")
	unit := 1.0
	if t != "" {
		if at := strings.IndexByte("kmgt", t[len(t)-1]); at >= 0 {
			unit, t = math.Pow(1024, float64(at+1)), t[:len(t)-1]
		}
	}
	n, err := strconv.ParseFloat(t, 64)
	if bytes := n * unit; err == nil && bytes >= 1 && bytes < 1<<50 {
		return int64(bytes), true
	}
	return 0, false
}
