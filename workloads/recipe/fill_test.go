package recipe

import (
	"runtime"
	"strings"
	"testing"
)

// A recipe is 1 MiB at most, and its command may name a long value as often as fits in there: what
// that would come to is never made, not even for a moment.
func TestLongValuesDoNotMultiply(t *testing.T) {
	many, long := strings.Repeat("{a}", 100_000), strings.Repeat("x", 20_000)
	for name, text := range map[string]string{
		"command of version 1": "recipe_version: 1\nname: n\ncontainer: c\ncommand: vllm serve " + many + "\ndefaults: {a: " + long + "}\n",
		"command of version 2": "model: M\ncommand: vllm serve " + many + "\ndefaults: {a: " + long + "}\n",
		"values in values":     "model: M\ncommand: vllm serve {b}\ndefaults: {a: " + long + ", b: '" + many + "'}\n",
		"pre_exec":             "model: M\ncommand: vllm serve M\npre_exec: [" + strings.Repeat("'{a}',", 1500) + "]\ndefaults: {a: " + strings.Repeat("x", 250_000) + "}\n",
	} {
		r, err := Read([]byte(text))
		if err != nil {
			t.Fatal(name, err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = r.Launch(Options{Name: "it", Trusted: true})
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "beyond 256 KiB") {
			t.Errorf("%s: %.200v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 256<<20 {
			t.Errorf("%s: %d MiB were made", name, took>>20)
		}
	}
}
