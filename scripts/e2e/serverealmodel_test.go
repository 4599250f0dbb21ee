package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// initTook is how long vLLM says that its engine took to begin: it compiles in that time.
var initTook = regexp.MustCompile(`init engine \(profile, create kv cache, warmup model\) took ([0-9.]+) s`)

// saver writes a model as a training job does.
const saver = `
import sys
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[2])
LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), hidden_size=128, intermediate_size=256, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2)).save_pretrained(sys.argv[2])
`

// The real vLLM serves what was pulled, with nobody outside to ask, under the name that was asked for; it compiles, and
// its second start, in a new container, finds what the first has compiled. What transformers' save_pretrained
// wrote goes the same way.
func TestServeRealModel(t *testing.T) {
	if *serveReal == "" {
		t.Skip("takes vLLM, of which each start takes minutes: scripts/serve-real")
	}
	dir := scratch(t)
	hub := filepath.Join(dir, "hubstandin")
	const source = "../../launcher/filesync/hub/hubtest/hubstandin"
	if out, err := exec.Command("go", "build", "-o", hub, source).CombinedOutput(); err != nil {
		t.Fatalf("build hubstandin: %v: %s", err, out)
	}
	t.Setenv("HF_ENDPOINT", "http://"+hubAPI) // the lab gives it to the agents
	l := realLab{up(t, 2), *serveReal}
	outside := l.start("switch", hub, "--listen", hubAPI, "--cdn", hubCDN, "org/tiny="+filepath.Join(*serveReal, "model"))
	eventually(t, 10*time.Second, "the stand-in has it", func() bool {
		return l.on("switch", "curl", "-sf", "http://"+hubAPI+"/api/models/org/tiny/revision/main").code == 0
	})
	l.on("spark2", "sparkrun", "model", "pull", "org/tiny", "--all").must(t)
	_ = outside.cmd.Process.Signal(os.Interrupt)
	outside.wait()

	// serves has it answer on a host, and logs how long that took.
	serves := func(host, model string, flags ...string) {
		began := time.Now()
		args := append([]string{"--vllm", filepath.Join(l.env, "bin/vllm"), "--env", "VLLM_CPU_OMP_THREADS_BIND=nobind",
			"--env", "VLLM_NO_USAGE_STATS=1", "--env", "VLLM_CPU_KVCACHE_SPACE=1", "--restart", "no", "--name", "real",
			"--on", host, "--no-fetch=false"}, flags...)
		s := l.serve("spark2", append(args, model, "--", "--dtype", "float32", "--max-model-len", "512")...)
		url := s.url(t, realWait)
		took := time.Since(began)
		l.completes("spark1", url, model, 20)
		said := l.on(host, "sparkrun", "logs", "real").must(t)
		l.on(host, "sparkrun", "stop", "real").must(t)
		m := initTook.FindStringSubmatch(said.out + said.err)
		if m == nil {
			t.Fatalf("it does not say how long its engine took: %s", said)
		}
		t.Logf("%s on %s answers after %.1f s, of which its engine took %s s", model, host, took.Seconds(), m[1])
	}
	kernels := func() string { // with the time at which each was built
		const find = `find /var/lib/sparkrun/compiled -name "*.so" -printf "%P %T@\n" | sort`
		return l.on("spark1", "sh", "-c", find).must(t).out
	}
	l.do("engine", "spark1")
	serves("spark1", "org/tiny", l.boxed()...)
	cold := kernels()
	serves("spark1", "org/tiny", l.boxed()...)
	if warm := kernels(); cold == "" || cold != warm {
		t.Errorf("the second start has compiled; kernels after the first:\n%safter the second:\n%s", cold, warm)
	}

	merged := filepath.Join(dir, "merged")
	save := exec.Command(filepath.Join(l.env, "bin/python"), "-c", saver, filepath.Join(*serveReal, "model"), merged)
	if out, err := save.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l.on("spark1", "sparkrun", "model", "add", merged, "--name", "root/tuned").must(t)
	pulled := l.on("spark1", "sparkrun", "model", "pull", "root/tuned", "--all").must(t)
	if !strings.Contains(pulled.out, "models--root--tuned") {
		t.Errorf("it is pulled to %s", pulled)
	}
	serves("spark2", "root/tuned")
	l.noContainerLeft("spark1")
	l.assertNothingLeft("spark1", "spark2")
}
