package load

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		os.Exit(Main(os.Args[2:]))
	}
	os.Exit(m.Run())
}

// python puts a python3 of the test's own in PATH; empty: there is none.
func python(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if text == "" {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestOnGPU(t *testing.T) {
	const gpu = `echo 'a library says something'
echo '{"via":"torch 2.9.0","gpu":"NVIDIA GB10","kind":"bf16","flops":9.1e13,"read_bps":2.3e11,"trouble":""}'`
	for text, want := range map[string]Reached{
		gpu: {Via: "torch 2.9.0", GPU: "NVIDIA GB10", Kind: "bf16", Flops: 9.1e13, Read: 2.3e11},
		`echo '{"trouble":"by driver: libcuda.so.1: cannot open"}'`: {Trouble: "libcuda"},
		"kill -9 $$": {Trouble: "killed"},
		"echo hello": {Trouble: "something else"},
		"":           {Trouble: "not found"},
	} {
		python(t, text)
		got := onGPU(t.Context(), time.Second)
		if !strings.Contains(got.Trouble, want.Trouble) {
			t.Errorf("%q: trouble %q", text, got.Trouble)
		}
		if got.Trouble = want.Trouble; got != want {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// Where no GPU can be loaded, the processors are, and it says so. What is no time for a load is none.
func TestMainProcess(t *testing.T) {
	python(t, "")
	for seconds, refused := range map[string]bool{"0.05": false, "0": true, "-1": true, "x": true, "3600": true, "NaN": true} {
		cmd := exec.Command(os.Args[0], Command, seconds)
		var said strings.Builder
		cmd.Stderr = &said
		out, err := cmd.Output()
		if refused {
			if err == nil || !strings.Contains(said.String(), "want seconds") {
				t.Errorf("%s: %v: %q", seconds, err, said.String())
			}
			continue
		}
		var got Reached
		if json.Unmarshal(out, &got) != nil || got.Via != "processors" || got.GPU != "" || got.Flops <= 0 || got.Read <= 0 ||
			!strings.Contains(got.Trouble, "python3") {
			t.Errorf("%s: %v: %s%s", seconds, err, out, said.String())
		}
	}
}
