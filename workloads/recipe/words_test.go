package recipe

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestWords(t *testing.T) {
	for text, want := range map[string]struct {
		command []string
		env     []Setting
	}{
		"vllm serve M":                                               {[]string{"vllm", "serve", "M"}, nil},
		"vllm serve M \\\n  --a 1 \\\n  --b":                         {[]string{"vllm", "serve", "M", "--a", "1", "--b"}, nil},
		"vllm serve M \\  \n  --a":                                   {[]string{"vllm", "serve", "M", "--a"}, nil},
		"vllm serve M \\\r\n  --a\r\n":                               {[]string{"vllm", "serve", "M", "--a"}, nil},
		"vllm serve M \\":                                            {[]string{"vllm", "serve", "M"}, nil},
		"# it serves\nvllm serve M # here\n\n":                       {[]string{"vllm", "serve", "M"}, nil},
		"#!/bin/bash\nset -e\nexport A=1 B='2 3'\nexec vllm serve M": {[]string{"vllm", "serve", "M"}, []Setting{{"A", "1"}, {"B", "2 3"}}},
		"A=1 B= vllm serve M":                                        {[]string{"vllm", "serve", "M"}, []Setting{{"A", "1"}, {"B", ""}}},
		"env A=1 vllm serve A=2":                                     {[]string{"vllm", "serve", "A=2"}, []Setting{{"A", "1"}}},
		"export A=1 && vllm serve M;":                                {[]string{"vllm", "serve", "M"}, []Setting{{"A", "1"}}},
		`vllm serve M --c '{"a": "b c"}' --d ""`:                     {[]string{"vllm", "serve", "M", "--c", `{"a": "b c"}`, "--d", ""}, nil},
		`vllm serve M --c "{\"a\": \"\$x\"}"`:                        {[]string{"vllm", "serve", "M", "--c", `{"a": "$x"}`}, nil},
		`vllm serve a\ b c\"d 'e'"f"g`:                               {[]string{"vllm", "serve", "a b", `c"d`, "efg"}, nil},
		`vllm serve M --sizes [1,2] --x {a} --y=~ 50%`:               {[]string{"vllm", "serve", "M", "--sizes", "[1,2]", "--x", "{a}", "--y=~", "50%"}, nil},
	} {
		command, env, _, err := words("command", text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if diff := cmp.Diff([]any{want.command, want.env}, []any{command, env}); diff != "" {
			t.Errorf("%q:\n%s", text, diff)
		}
	}
}

func TestWordsRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "there is none",
		"# nothing\n":                        "there is none",
		"export A=1":                         "there is none",
		"vllm serve M | tee log":             "line 1: `| tee log`",
		"vllm serve M > log":                 "`> log`",
		"vllm serve M &":                     "`&`",
		"vllm serve $M":                      "`$M`",
		"vllm serve \"$M\"":                  "`$M\"`",
		"vllm serve `cat m`":                 "`cat m`",
		"(vllm serve M)":                     "`(vllm serve M)`",
		"cd /x && vllm serve M":              "`cd`",
		"sleep 5\nvllm serve M":              "another command in line 2",
		"vllm serve M\n  --a 1":              "another command in line 2",
		"vllm serve 'M":                      "not closed",
		"vllm serve \"M":                     "not closed",
		"vllm serve M --c {\"a\":1,\"b\":2}": "whose braces are not quoted",
		"vllm serve ~/m":                     "`~`",
		"vllm serve M a=~":                   "`~`",
		"A=/x:~/y vllm serve M":              "`~`",
		"A=1\nvllm serve M":                  "a variable of the shell's own",
		"export A":                           "`export A`",
	} {
		got, _, _, err := words("command", text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
}

// What is read as words is read by bash as the same words.
func TestWordsAreThoseOfBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatal("bash is missing: apt install bash")
	}
	// Of letters that cannot make a command of their own, should we be wrong about a quote.
	letter := rapid.SampledFrom([]string{"a", "b", " ", " ", "'", `"`, `\`, "{", "}", ",", "#", "=", "[", "]", "*", "~", "é", "\\\n", `'{"a": 1}'`, ".."})
	rapid.Check(t, func(t *rapid.T) {
		text := "a " + strings.Join(rapid.SliceOfN(letter, 0, 12).Draw(t, "text"), "")
		if strings.HasSuffix(strings.TrimRight(text, " "), `\`) { // which is passed over: both tools do so, bash does not
			return
		}
		got, env, notes, err := words("command", text)
		if err != nil || len(env) > 0 || len(notes) > 0 {
			return
		}
		cmd := exec.Command(bash, "--norc", "-fc", "printf '%s\\0' "+text)
		cmd.Env, cmd.Dir = []string{"HOME=/nowhere"}, "/"
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: bash: %v", text, err)
		}
		want := strings.Split(strings.TrimSuffix(string(bytes.ToValidUTF8(out, nil)), "\x00"), "\x00")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%q:\n%s", text, diff)
		}
	})
}
