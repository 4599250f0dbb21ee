package e2e

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var llamacpp = flag.String("llamacpp", "", "TestServeLlamacpp: a `FOLDER` with llama-server, ggml-rpc-server and tiny.gguf, in place of a stand-in")

// llama.cpp's place is taken by a stand-in, where nobody has the real one: what is tested is who is started where
// with what, what is told, and that its metrics are read.
func TestServeLlamacpp(t *testing.T) {
	var programs []string
	model := filepath.Join(scratch(t), "tiny.gguf")
	if *llamacpp != "" {
		programs, model = []string{"--llama-server", filepath.Join(*llamacpp, "llama-server")}, filepath.Join(*llamacpp, "tiny.gguf")
	} else {
		program := standinOf(t, "llamacpp-standin", python)
		programs = []string{"--llama-server", program, "--rpc-server", program}
		if err := os.WriteFile(model, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	l := up(t, 3)
	launch := func(more ...string) serving {
		return l.serveWith("spark2", append(append([]string{"llamacpp", "--nodes", "3", "--restart", "no"}, programs...), more...)...)
	}

	// A file that is not there is told before anything starts, by a dry run too, and also where --stage brings another.
	const refusal = "file /models/none.gguf: not found here: the job's first machine alone needs it"
	for _, more := range [][]string{{}, {"--stage", model}, {"--stage", model, "--dry-run"}} {
		said := launch(append(more, "/models/none.gguf")...).ended(t)
		if !strings.Contains(said, refusal) || strings.Contains(said, "is ready") {
			t.Errorf("no file, %q: %s", more, said)
		}
	}

	s := launch("--on", "spark1,spark2,spark3", "--name", "served", model, "--", "--ctx-size", "256")
	url := s.url(t, serveWait)
	if r := s.wait(); r.code != 0 || !strings.HasSuffix(url, ":8080") {
		t.Errorf("launch leaves what serves, here at %s: %s: %s", url, r, s.said())
	}
	for _, want := range []string{"stage workers is ready", "stage serve is ready"} {
		if !strings.Contains(s.said(), want) {
			t.Errorf("not told %q: %s", want, s.said())
		}
	}
	// The workers are on the fabric, and there alone.
	if out := l.on("spark1", "ps", "-eo", "args").must(t).out; !strings.Contains(out, "--rpc 192.168.100.12:50052,192.168.100.13:50052 --metrics") {
		t.Errorf("on the first machine: %s", out)
	}
	if out := l.on("spark1", "sparkrun", "ps", "served").must(t).out; !strings.Contains(out, "--rpc 192.168.100.12:50052,192.168.100.13:50052 --metrics --host 172.30.0.11 ") {
		t.Errorf("ps shows of it: %s", out)
	}
	if out := l.on("spark1", "curl", "-s", "-m", "2", "telnet://172.30.0.12:50052"); out.code == 28 || out.code == 0 {
		t.Errorf("an RPC server answers on the management network, too: %s", out)
	}
	var answer struct {
		Usage struct {
			Tokens int `json:"completion_tokens"`
		} `json:"usage"`
	}
	out := l.on("spark3", "curl", "-sS", "-d", `{"prompt": "1", "max_tokens": 7, "ignore_eos": true}`, "-H", "Content-Type: application/json", url+"/v1/completions").must(t).out
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Usage.Tokens != 7 {
		t.Errorf("a completion: %v: %s", err, out)
	}
	// Its metrics are read: ps knows how many requests it is at.
	eventually(t, serveWait, "its requests are counted", func() bool {
		return strings.Contains(l.on("spark1", "sparkrun", "service", "ls", "--json").must(t).out, `"running": 0,`)
	})
	// A worker that dies takes all along, and is named, not the server that lost it.
	l.on("spark3", "pkill", "-KILL", "-f", "--", "--port 50052").must(t)
	eventually(t, serveWait, "the worker that died is named", func() bool {
		out := l.on("spark1", "sparkrun", "ps", "served").out
		return strings.Contains(out, "stage workers, rank 2 on spark3: killed by SIGKILL")
	})
	l.assertNothingLeft("spark1", "spark2", "spark3")
}
