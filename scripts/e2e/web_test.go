package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/web/webtest"
)

// The page of a machine, in a browser there: what runs, what it writes, the death of the agent that shows it, stop; and
// by TLS for others once there is a CA.
func TestWeb(t *testing.T) {
	t.Parallel()
	l := up(t, 2)
	const writes = `echo "<img src=x onerror=document.title='pwned'>"; n=0; while sleep 0.2; do n=$((n+1)); echo "step $n"; done`
	job := l.start("spark1", "sparkrun", "launch", "exec", "--name", "train", "--nodes", "2", "--", "sh", "-c", writes)
	link := func() string { return strings.TrimSpace(l.on("spark1", "sparkrun", "web").must(t).out) }
	c := webtest.New(t, func(cmd *exec.Cmd) {
		on := l.command(append([]string{"exec", "spark1", "--", cmd.Path}, cmd.Args[1:]...)...)
		cmd.Path, cmd.Args, cmd.Env = on.Path, on.Args, append(cmd.Env, on.Env...)
	})
	c.Go(link())
	c.Shows("the machines", `document.querySelectorAll(".machine.ready .bar").length >= 2`)
	c.Shows("the job", `document.querySelector("#jobs")?.innerText.includes("running")`)
	c.Run(`document.querySelector("#jobs a").click()`)
	c.Shows("its ranks", `document.querySelectorAll("#job tbody tr").length === 2`)
	c.Run(`document.querySelector('a[href^="logs"]').click()`)
	c.Shows("its output", `document.getElementById("lines")?.innerText.includes("<img src=x") && document.getElementById("lines").innerText.includes("step 3")`)

	l.do("kill", "spark1", "--agent")
	c.Shows("the agent is away", `document.getElementById("link").innerText === "reconnecting"`)
	l.do("start", "spark1", "--agent")
	c.Shows("it comes back", `document.getElementById("link").innerText === "live"`)
	was := c.Text(`String(document.querySelectorAll("#lines li").length)`)
	c.Shows("output goes on", fmt.Sprintf(`document.querySelectorAll("#lines li").length > %s + 4`, was))
	c.Shows("no line twice", `((all) => new Set(all).size === all.length)([...document.querySelectorAll("#lines li")].map((x) => x.textContent))`)

	c.Run(`document.querySelector("h1 a").click()`)
	c.Click(`a[href^="stop"]`)
	c.Click(`button.bad`)
	c.Shows("it is stopped", `document.querySelector("#job h1")?.innerText.includes("stopped")`)
	job.wait()
	if strings.Contains(c.Text("document.title"), "pwned") {
		t.Error("what a rank wrote has run")
	}
	c.Calm("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")

	l.on("spark1", "sparkrun", "gateway", "ca", "create").must(t)
	var at string
	eventually(t, 30*time.Second, "a link by TLS", func() bool { at = link(); return strings.HasPrefix(at, "https://") })
	var got result
	eventually(t, 30*time.Second, "another machine opens it", func() bool {
		got = l.on("spark2", "curl", "-ski", "-m", "5", at)
		return got.code == 0
	})
	if !strings.Contains(got.out, "200") || !strings.Contains(got.out, "__Secure-sparkrun=") || !strings.Contains(got.out, "Secure; SameSite=Strict") {
		t.Errorf("a link from elsewhere: %s", got)
	}
	if got := l.on("spark2", "curl", "-ski", "-m", "5", at).must(t); !strings.Contains(got.out, "401") {
		t.Errorf("the same link again: %s", got)
	}
	if dir := os.Getenv("SPARKRUN_PICTURES"); dir != "" {
		t.Log(l.on("spark1", "sparkrun", "web", "--qr").must(t).out)
	}
	l.assertNothingLeft("spark2") // the browser is on the other
}
