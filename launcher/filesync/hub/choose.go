package hub

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Choice says which files of a commit are wanted.
type Choice struct {
	// Include and Exclude are patterns as huggingface_hub's (utils/_paths.py, filter_repo_objects):
	// Python's fnmatch, whose * also matches '/'; a pattern that ends with '/' is a folder.
	// With Include, the files are exactly those that match, whatever an engine would load.
	Include, Exclude []string
	// Data has no weights: all of its files are wanted.
	Data bool
}

// Left is a file that was left out, and why.
type Left struct {
	File
	Why string `json:"why"`
}

// Why a file was left out.
const (
	WhyFormat  = "the same weights in another format"
	WhyFolder  = "another engine's copy of the weights"
	WhyPattern = "by --include or --exclude"
)

// Formats of weights, those first that engines load first. Where a folder has one, the later ones hold
// the same weights again.
var formats = [][]string{
	{".safetensors"},
	{".bin", ".pt", ".pth", ".ckpt"},
	{".gguf"},
	{".onnx", ".onnx_data"},
	{".h5", ".msgpack", ".ot", ".tflite", ".mlmodel", ".mlpackage", ".pb", ".npz"},
}

// copies are the folders in which repositories keep weights once more: Meta's and OpenAI's own formats
// (original: Llama, gpt-oss), Apple's metal (gpt-oss), and exports.
var copies = []string{"original", "metal", "onnx", "openvino", "coreml", "tflite", "flax", "gguf"}

// Choose splits files into those to take and those to leave, both in the order given.
func (c Choice) Choose(files []File) (take []File, left []Left) {
	include, exclude := patterns(c.Include), patterns(c.Exclude)
	best := map[string]int{} // the first format that a folder has
	consolidated := map[string]bool{}
	for _, f := range files {
		dir, base := path.Split(f.Path)
		if n := format(base); n >= 0 {
			if b, ok := best[dir]; !ok || n < b {
				best[dir] = n
			}
		}
		if strings.HasSuffix(base, ".safetensors") && !isConsolidated(base) {
			consolidated[dir] = true
		}
	}
	rootBest, rootHas := best[""]
	for _, f := range files {
		dir, base := path.Split(f.Path)
		top, _, _ := strings.Cut(f.Path, "/")
		why := ""
		switch n := format(base); {
		case len(include) > 0:
			if !matches(include, f.Path) {
				why = WhyPattern
			}
		case c.Data:
		case rootHas && rootBest <= 1 && top != f.Path && slices.Contains(copies, top):
			why = WhyFolder
		case n > best[dir], consolidated[dir] && isConsolidated(base):
			why = WhyFormat
		}
		if matches(exclude, f.Path) {
			why = WhyPattern
		}
		if why == "" {
			take = append(take, f)
		} else {
			left = append(left, Left{f, why})
		}
	}
	return take, left
}

// isConsolidated tells Mistral's own file of all weights, beside which lie those of transformers.
func isConsolidated(base string) bool {
	return strings.HasPrefix(base, "consolidated") && strings.HasSuffix(base, ".safetensors") ||
		base == "consolidated.safetensors.index.json"
}

// format is the place of a file's format among formats; -1: it has no weights.
func format(base string) int {
	ext := path.Ext(base)
	if strings.HasSuffix(base, ".index.json") { // pytorch_model.bin.index.json
		ext = path.Ext(strings.TrimSuffix(base, ".index.json"))
	}
	return slices.IndexFunc(formats, func(f []string) bool { return slices.Contains(f, ext) })
}

func patterns(list []string) []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, p := range list {
		p = strings.ReplaceAll(p, `\`, "/")
		if strings.HasSuffix(p, "/") {
			p += "*"
		}
		all = append(all, fnmatch(p))
	}
	return all
}

func matches(list []*regexp.Regexp, name string) bool {
	return slices.ContainsFunc(list, func(r *regexp.Regexp) bool { return r.MatchString(name) })
}

// fnmatch is Python's fnmatch.translate: * and ? match any character, [seq] and [!seq] one of a set; a
// '[' that is never closed is itself.
func fnmatch(p string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`(?s)^`)
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '*':
			b.WriteString(`.*`)
		case '?':
			b.WriteString(`.`)
		case '[':
			set := p[i+1:]
			skip := 0
			if strings.HasPrefix(set, "!") {
				skip = 1
			}
			if strings.HasPrefix(set[skip:], "]") { // the first ']' is one of the set
				skip++
			}
			end := strings.IndexByte(set[skip:], ']')
			if end < 0 {
				b.WriteString(`\[`)
				continue
			}
			set = set[:skip+end]
			i += len(set) + 1
			b.WriteString(`[`)
			if strings.HasPrefix(set, "!") {
				b.WriteString(`^`)
				set = set[1:]
			}
			b.WriteString(setEscape().ReplaceAllString(set, `\$0`) + `]`)
		default:
			_, size := firstRune(p[i:])
			b.WriteString(regexp.QuoteMeta(p[i : i+size]))
			i += size - 1
		}
	}
	r, err := regexp.Compile(b.String() + `$`)
	if err != nil { // a range like z-a, which in Python matches nothing either
		return regexp.MustCompile(`[^\s\S]`)
	}
	return r
}

var setEscape = plain.Pattern(`[\\\[\]^&~|]`)

func firstRune(s string) (rune, int) {
	for _, r := range s {
		return r, len(string(r))
	}
	return 0, 1
}
