package workloads

import (
	"slices"
	"strconv"
	"strings"
)

// serverFlag is one of a server's own, with all that it goes by. Python's argparse takes the
// beginning of a long name where it is enough, vLLM's an underscore for each dash.
type serverFlag struct {
	name string // as it is written here, such as --tensor-parallel-size
	// least is the shortest beginning of name that means no other flag; empty: all of it.
	least string
	other []string // further names
	bare  bool     // it has no value
	ours  string   // of what is decided here: our flag that says it; empty: none does
}

// is tells whether a word is this flag, and gives the value that it may hold itself.
func (f serverFlag) is(word string) (value string, holds, is bool) {
	if f.name == "" || !strings.HasPrefix(word, "-") {
		return "", false, false
	}
	name, value, holds := strings.Cut(word, "=")
	if strings.HasPrefix(name, "--") {
		name = strings.ReplaceAll(name, "_", "-")
	}
	own := strings.ReplaceAll(f.name, "_", "-")
	is = name == own || slices.Contains(f.other, name) || f.least != "" && len(name) >= len(f.least) && strings.HasPrefix(own, name)
	return value, holds, is
}

// in gives the flag's value in words, of which the last counts.
func (f serverFlag) in(words []string) (value string, given bool) {
	for i, w := range words {
		v, holds, is := f.is(w)
		switch {
		case !is:
		case f.bare || holds:
			value, given = v, true
		case i+1 < len(words):
			value, given = words[i+1], true
		}
	}
	return value, given
}

// stands tells whether the flag is in words, with a value or without.
func (f serverFlag) stands(words []string) bool {
	return slices.ContainsFunc(words, func(w string) bool { _, _, is := f.is(w); return is })
}

// remedy says what is done in the place of a flag that is decided here.
func (f serverFlag) remedy() string {
	const each = "each machine is told its own"
	switch f.ours {
	case "":
		return each + ": leave it out"
	case "--nodes":
		return "how many machines there are says --nodes N (or --on HOST,HOST), and " + each
	}
	return "which machines these are, and in which order, says --on HOST,HOST, and " + each
}

// without leaves the flag and its value out.
func (f serverFlag) without(words []string) (rest []string, had bool) {
	for i := 0; i < len(words); i++ {
		_, holds, is := f.is(words[i])
		if !is {
			rest = append(rest, words[i])
			continue
		}
		if had = true; !f.bare && !holds {
			i++
		}
	}
	return rest, had
}

// ArgsSay is what a server's arguments say of how it is spread and where it listens: TP, PP, DP,
// Host, Port and Backend, 0 or empty where they say nothing. A number that is none is 1: that it
// is none is said once the request is made.
func ArgsSay(workload string, args []string) (out Serve) {
	v := map[string]server{VLLM: vllmServer, SGLang: sglangServer, TRTLLM: trtllmServer}[workload]
	for _, f := range []struct {
		flag serverFlag
		to   *int
	}{{v.tp, &out.TP}, {v.pp, &out.PP}, {v.dp, &out.DP}, {v.listen, &out.Port}} {
		if text, given := f.flag.in(args); given {
			n, _ := strconv.Atoi(text)
			*f.to = max(n, 1)
		}
	}
	out.Host, _ = v.host.in(args)
	if said, given := vllmBackend.in(args); given && workload == VLLM {
		if out.Backend = BackendNative; said == BackendRay {
			out.Backend = BackendRay
		}
	}
	return out
}
