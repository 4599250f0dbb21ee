package recipe

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/workloads"
)

// server is a program that serves, with those of its flags that say where it listens or how
// it is spread. The names are those of its own parser: vllm/engine/arg_utils.py,
// sglang/srt/server_args.py, tensorrt_llm/commands/serve.py.
type server struct {
	workload string
	// commands are how it is called, up to the model or the first flag.
	commands [][]string
	flags    map[string]option
	// model are the flags that name the model; empty: it is the first word behind the command.
	model []string
	// revision and served are its flags of these meanings; empty: it has none.
	revision, served string
	// keys are the flags of default values that are not called as they are, for a recipe without
	// a command.
	keys map[string]string
}

// option is a flag that is taken out of a command.
type option struct {
	to   field
	bare bool // it has no value
}

type field int

const (
	dropped field = iota
	toTP
	toPP
	toDP
	toBackend
	toHost
	toPort
	theKey // a secret, which must not be in a command
)

func takes(to field, names ...string) map[string]option {
	out := map[string]option{}
	for _, n := range names {
		out[n] = option{to: to}
	}
	return out
}

func bare(names ...string) map[string]option {
	out := map[string]option{}
	for _, n := range names {
		out[n] = option{bare: true}
	}
	return out
}

func options(all ...map[string]option) map[string]option {
	out := map[string]option{}
	for _, m := range all {
		for n, f := range m {
			out[n] = f
		}
	}
	return out
}

func servers() []server {
	listens := options(takes(toHost, "--host"), takes(toPort, "--port"), takes(theKey, "--api-key"))
	return []server{
		{
			workload: "vllm", commands: [][]string{{"vllm", "serve"}},
			flags: options(listens,
				takes(toTP, "--tensor-parallel-size", "-tp", "--tensor-parallel"),
				takes(toPP, "--pipeline-parallel-size", "-pp", "--pipeline-parallel"),
				takes(toDP, "--data-parallel-size", "-dp", "--data-parallel"),
				takes(toBackend, "--distributed-executor-backend"),
				takes(dropped, "--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--data-parallel-rank", "-dpn",
					"--data-parallel-start-rank", "-dpr", "--data-parallel-size-local", "-dpl", "--data-parallel-address", "-dpa",
					"--data-parallel-rpc-port", "-dpp", "--data-parallel-backend", "-dpb"),
				bare("--headless", "--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe")),
			model: []string{"--model"}, revision: "--revision", served: "--served-model-name",
		},
		{
			workload: "sglang", commands: [][]string{{"sglang", "serve"}, {"python3", "-m", "sglang.launch_server"}, {"python", "-m", "sglang.launch_server"}},
			flags: options(listens,
				takes(toTP, "--tensor-parallel-size", "--tp-size", "--tp"),
				takes(toPP, "--pipeline-parallel-size", "--pp-size", "--pp"),
				takes(dropped, "--dist-init-addr", "--nccl-init-addr", "--nnodes", "--node-rank")),
			model: []string{"--model-path", "--model"}, revision: "--revision", served: "--served-model-name",
			keys: map[string]string{"gpu_memory_utilization": "--mem-fraction-static", "max_model_len": "--context-length"},
		},
		{
			workload: "trtllm", commands: [][]string{{"trtllm-serve", "serve"}, {"trtllm-serve"}, {"trtllm-llmapi-launch", "trtllm-serve", "serve"}, {"trtllm-llmapi-launch", "trtllm-serve"}},
			flags: options(takes(toHost, "--host"), takes(toPort, "--port"),
				takes(toTP, "--tp-size", "--tensor-parallel-size"), takes(toPP, "--pp-size", "--pipeline-parallel-size")),
			keys: map[string]string{"max_model_len": "--max_seq_len"},
		},
	}
}

// serverOf finds what a command starts; at is how many words that takes.
func serverOf(command []string) (s server, at int, ok bool) {
	for _, s := range servers() {
		for _, c := range s.commands {
			if len(command) >= len(c) && path.Base(command[0]) == c[0] && slices.Equal(command[1:len(c)], c[1:]) {
				return s, len(c), true
			}
		}
	}
	return server{}, 0, false
}

// Workload is what a recipe is launched as, as far as it can be told without filling it in;
// empty: not known.
func (r Recipe) Workload() string {
	if known, ok := runtimes[r.Runtime]; ok {
		return known[0]
	}
	s, _, _ := serverOf(strings.Fields(strings.ReplaceAll(r.Command, "\\\n", " ")))
	if s.workload == "" && r.Command == "" && r.Runtime == "" {
		return "vllm"
	}
	return s.workload
}

// asked is what was taken out of a command.
type asked struct {
	command []string
	serve   workloads.Serve
	key     bool     // a secret was among it
	left    []string // flags that were left out without a word of the request saying the same
}

// take reads flags out of the words of a command, whose first at words are the server's name. As
// for argparse the last of several counts, and a name's dashes may be underscores.
func (s server) take(words []string, at int) (asked, error) {
	out := asked{command: slices.Clone(words[:at])}
	for i := at; i < len(words); i++ {
		name, value, joined := strings.Cut(words[i], "=")
		f, ok := s.flags[name]
		if !ok && strings.HasPrefix(name, "--") {
			f, ok = s.flags[strings.ReplaceAll(name, "_", "-")]
		}
		if !ok {
			out.command = append(out.command, words[i])
			continue
		}
		if f.to == dropped {
			out.left = append(out.left, name)
		}
		if f.bare {
			continue
		}
		if !joined {
			if i++; i == len(words) {
				return out, invalid("command", "%s has no value", name)
			}
			value = words[i]
		}
		if err := out.set(f.to, name, value); err != nil {
			return out, err
		}
	}
	out.serve.Command, out.serve.Model = out.command, s.modelOf(out.command, at)
	return out, nil
}

func (a *asked) set(to field, name, value string) error {
	count := func(n *int, most int) error {
		i, err := strconv.Atoi(value)
		if err != nil || i < 1 || i > most {
			return invalid("command", "%s %s: want a number from 1 to %d", name, value, most)
		}
		*n = i
		return nil
	}
	switch to {
	case toTP:
		return count(&a.serve.TP, 1024)
	case toPP:
		return count(&a.serve.PP, 1024)
	case toDP:
		return count(&a.serve.DP, 1024)
	case toPort:
		return count(&a.serve.Port, 65535)
	case toHost:
		a.serve.Host = value
	case theKey:
		a.key = true
	case toBackend:
		switch value {
		case "ray":
			a.serve.Backend = "ray"
		case "mp":
			a.serve.Backend = "native"
		case "uni": // one process: as good as none
		default:
			return invalid("command", "%s %s: want ray or mp", name, value)
		}
	}
	return nil
}

// modelOf is the model that a command names; empty: none.
func (s server) modelOf(command []string, at int) string {
	for i, w := range command[at:] {
		name, value, joined := strings.Cut(w, "=")
		if !slices.Contains(s.model, strings.ReplaceAll(name, "_", "-")) {
			continue
		}
		if joined {
			return value
		}
		if next := at + i + 1; next < len(command) {
			return command[next]
		}
	}
	if s.workload != "sglang" && at < len(command) && !strings.HasPrefix(command[at], "-") {
		return command[at]
	}
	return ""
}

// has tells whether a command has a flag.
func has(command []string, name string) bool {
	return slices.ContainsFunc(command, func(w string) bool {
		w, _, _ = strings.Cut(w, "=")
		return strings.ReplaceAll(w, "_", "-") == name
	})
}
