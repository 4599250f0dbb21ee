package web

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node/web/webtest"
)

// Each view and each action, as a person has them in a browser; what others wrote does nothing there.
func TestBrowser(t *testing.T) {
	s := newSite(t, 64)
	c := webtest.New(t, nil)
	const mine = "11111111-aaaa-4aaa-8aaa-000000000001"
	began := time.Now()
	c.Go(s.link(alice))
	c.Shows("the link", `document.querySelectorAll(".machine").length === 64`)
	t.Logf("64 machines are there %s after the link was opened; the page answered after %s ms and was painted after %s ms",
		time.Since(began).Round(time.Millisecond), c.Text(`performance.getEntriesByType("navigation")[0].responseEnd.toFixed()`),
		c.Text(`(performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? -1).toFixed()`))
	c.Shows("events", `document.getElementById("link").innerText === "live"`)
	first := c.Text(`document.getElementById("machines").innerText`)
	c.Shows("it moves", fmt.Sprintf(`document.getElementById("machines").innerText !== %q`, first))
	c.Shows("it moves on", `(window.n = window.n || new Set(), window.n.add(document.getElementById("machines").innerText), window.n.size >= 4)`)
	c.Picture("overview")

	home := `document.querySelector("nav a").click()`
	go_ := func(tab, what, expr string) {
		t.Helper()
		c.Run(fmt.Sprintf(`[...document.querySelectorAll("nav a")].find(a => a.innerText === %q).click()`, tab))
		c.Shows(what, expr)
		c.Shows(what, `document.getElementById("link").innerText === "live"`)
		c.Picture(strings.ToLower(tab))
	}
	go_("Fabric", "the fabric", `document.querySelectorAll(".picture svg rect").length > 100 && document.querySelectorAll("#ports tr").length > 60`)
	go_("Services", "services", `document.querySelector("#services li").innerText.includes("412.7 tokens/s") && document.querySelector("#services").innerText.includes("http://192.168.1.1:8000")`)
	go_("Models", "models", `document.querySelectorAll("#models tbody tr").length === 2 && document.querySelector("#models").innerText.includes("spark1 31 %")`)
	go_("Doctor", "doctor", `!!document.querySelector("#doctor button")`)
	c.Shows("what is known already", `document.querySelector("#doctor").innerText.includes("not looked yet")`)
	c.Click("#doctor button")
	c.Shows("findings", `document.querySelectorAll(".findings li").length === 2 && document.querySelector(".findings").innerText.includes("spark3, spark4")`)
	c.Picture("findings")
	go_("Jobs", "jobs", `document.querySelectorAll("#jobs li").length === 4`)

	// A job that failed says why, one with a hostile name has that as text.
	c.Run(`[...document.querySelectorAll("#jobs a")].find(a => a.innerText.includes("finetune")).click()`)
	c.Shows("the cause", `document.querySelector(".cause").innerText.includes("CUDA out of memory") && document.querySelector(".cause pre").innerText.includes("<script>")`)
	c.Picture("failed")
	c.Run(`history.back()`)
	c.Shows("jobs", `document.querySelectorAll("#jobs li").length === 4`)
	c.Run(`[...document.querySelectorAll("#jobs a")].find(a => a.innerText.includes("<script>")).click()`)
	c.Shows("a hostile name", `document.querySelector("h1").innerText.includes("<img src=x") && !document.querySelector("main script, main img")`)

	// Output comes as it is written; a search keeps what is searched for.
	c.Run(fmt.Sprintf(`location.href = "logs?id=%s"`, mine))
	c.Shows("output", `document.querySelectorAll("#lines li").length === 4`)
	s.more <- "step 4 loss 8.0\n" + hostile + "\n"
	c.Shows("new output", `document.querySelectorAll("#lines li").length === 6 && document.getElementById("lines").innerText.includes("<img src=x")`)
	c.Picture("output")
	c.Keys("/")
	c.Shows("the field", `document.activeElement.id === "search"`)
	c.Run(`document.activeElement.value = ""`) // these keys come past the page's no to them
	c.Keys("LOSS 8\r")
	c.Shows("a search", `document.querySelectorAll("#lines li").length === 2 && document.querySelectorAll("#lines mark").length === 2`)
	c.Picture("search")
	if strings.Contains(c.Text("document.title"), "pwned") {
		t.Error("what a rank wrote has run")
	}

	// A page that moves leaves the focus where it is.
	c.Run(`location.href = "machine?host=spark1"`)
	c.Shows("the machine", `!!document.querySelector("#machine dl") && document.getElementById("link").innerText === "live"`)
	c.Run(`window.was = document.querySelector("#machine").innerText; document.querySelector('form[action="why"] button').focus()`)
	c.Shows("it moves", `document.querySelector("#machine").innerText !== window.was`)
	c.Shows("the focus", `document.activeElement === document.querySelector('form[action="why"] button')`)

	// Stop: asked first, then done.
	c.Run(fmt.Sprintf(`location.href = "job?id=%s"`, mine))
	c.Shows("the job", `!!document.querySelector(".button.bad")`)
	c.Picture("job")
	s.mu.Lock()
	if len(s.whys) > 0 {
		t.Errorf("asked before anybody clicked: %q", s.whys)
	}
	s.mu.Unlock()
	c.Click(`form[action="why"] button`)
	c.Shows("why", `document.querySelectorAll("#why .findings li").length === 1 && document.querySelector("#why").innerText.includes("rank 1 is behind") && !document.querySelector("#why button").disabled`)
	c.Picture("why")
	s.mu.Lock()
	if want := "alice " + mine; len(s.whys) != 1 || s.whys[0] != want {
		t.Errorf("asked %q, want %q once", s.whys, want)
	}
	s.mu.Unlock()
	c.Click("#why h1 a")
	c.Click(".button.bad")
	c.Shows("the question", `document.querySelector("h1").innerText === "Stop pretrain?"`)
	c.Picture("question")
	c.Click("button.bad")
	c.Shows("it is stopped", `document.querySelector("h1").innerText.includes("stopped") && !document.querySelector(".button.bad")`)
	// Restart, by the keys alone.
	c.Run(home)
	live := `document.getElementById("link").innerText === "live" && `
	c.Shows("the overview", live+`document.querySelectorAll(".machine").length === 64`)
	c.Keys("g4")
	c.Shows("services", live+`document.querySelectorAll("#services li").length === 1 && !document.getElementById("machines")`)
	c.Keys("j\r")
	c.Shows("the service", `document.querySelector("h1").innerText.includes("llama")`)
	c.Click(`a[href^="restart"]`)
	c.Shows("the question", `document.querySelector("h1").innerText === "Restart llama?"`)
	c.Run(`document.querySelector("button.bad").focus()`)
	c.Keys("\r")
	c.Shows("the service", `!!document.querySelector("#job")`)
	s.mu.Lock()
	if len(s.stopped) != 2 || s.by[1] != *alice.User {
		t.Errorf("done: %v by %v", s.stopped, s.by)
	}
	s.mu.Unlock()
	c.Run(`location.href = "machine?host=spark1"`)
	c.Shows("a machine", `document.querySelector("#machine").innerText.includes("NVIDIA GB10")`)
	c.Picture("machine")
	c.Run(`location.href = "nowhere"`)
	c.Shows("no such page", `document.querySelector("h1")?.innerText === "No such page" && document.querySelectorAll("nav a").length === 6`)
	c.Click(".who button")
	c.Shows("who has left", `document.querySelector("h1").innerText === "sparkrun" && document.body.innerText.includes("sparkrun web") && getComputedStyle(document.body).maxWidth === "600px"`)
	c.Picture("left")
	c.Calm("404", "401")
}

// A page says when its agent is away, comes back by itself with the next one, and says when its session is over.
func TestBrowserComesBack(t *testing.T) {
	s := newSite(t, 3)
	c := webtest.New(t, nil)
	c.Go(s.link(alice))
	c.Shows("events", `document.getElementById("link")?.innerText === "live"`)
	addr := s.srv.Listener.Addr().String()
	s.stop()
	c.Shows("the agent is away", `document.getElementById("link").innerText === "reconnecting" && document.querySelectorAll(".machine").length === 3`)
	c.Picture("away")
	s.mu.Lock()
	s.problem = "no leader answers"
	s.mu.Unlock()
	s.again(addr)
	c.Shows("the next agent", `document.getElementById("link").innerText === "live" && document.getElementById("notice").innerText === "no leader answers"`)
	c.Picture("leaderless")
	s.Visitors.mu.Lock()
	for _, in := range s.sessions {
		s.drop(in)
	}
	s.Visitors.mu.Unlock()
	c.Shows("the session is over", `document.getElementById("link").innerText === "ended: run sparkrun web"`)
	c.Calm("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "401")
}

// A page of output begins with the job, goes on with its next attempt, and has no stream while nobody sees it.
func TestBrowserFollowsOutput(t *testing.T) {
	s := newSite(t, 2)
	set := func(is *bool, to bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		*is = to
	}
	set(&s.late, true)
	c := webtest.New(t, nil)
	c.Go(s.link(alice))
	c.Shows("events", `document.getElementById("link")?.innerText === "live"`)
	c.Run(`location.href = "logs?id=11111111-aaaa-4aaa-8aaa-000000000001"`)
	c.Shows("no job yet", `document.querySelector("h1").innerText === "No such job" && document.getElementById("link").innerText === "live"`)
	set(&s.late, false)
	c.Shows("its output", `document.querySelectorAll("#lines li").length === 4`)
	set(&s.anew, true)
	c.Shows("the next attempt", `document.querySelectorAll("#lines li").length === 9 && document.querySelectorAll("#lines .note").length === 1`)
	see := func(hidden bool, streams int) {
		t.Helper()
		c.Run(fmt.Sprintf(`Object.defineProperty(document, "hidden", { value: %t, configurable: true }); document.dispatchEvent(new Event("visibilitychange"))`, hidden))
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			s.Visitors.mu.Lock()
			n := s.streams
			s.Visitors.mu.Unlock()
			if n == streams {
				return
			} else if time.Since(began) > 10*time.Second {
				t.Fatalf("hidden %t: %d streams, want %d", hidden, n, streams)
			}
		}
	}
	see(true, 0)
	see(false, 2)
	s.more <- "step 4\n"
	c.Shows("it goes on", `document.querySelectorAll("#lines li").length === 10`)
	c.Calm()
}

// BenchmarkFirstPicture is how long an overview of 64 machines takes until it is seen, once a browser has started: from the
// link to the answer, and to the first paint, in ms (the median).
func BenchmarkFirstPicture(b *testing.B) {
	s := newSite(b, 64)
	c := webtest.New(b, nil)
	var answered, painted []float64
	for b.Loop() {
		c.Go(s.link(alice))
		c.Shows("the machines", `document.querySelectorAll(".machine").length === 64`)
		c.Shows("the first paint", `performance.getEntriesByName("first-contentful-paint").length === 1`)
		for of, to := range map[string]*[]float64{`getEntriesByType("navigation")[0].responseEnd`: &answered,
			`getEntriesByName("first-contentful-paint")[0].startTime`: &painted} {
			ms, err := strconv.ParseFloat(c.Text("String(performance."+of+")"), 64)
			if err != nil {
				b.Fatal(err)
			}
			*to = append(*to, ms)
		}
	}
	for unit, of := range map[string][]float64{"ms-answered": answered, "ms-painted": painted} {
		slices.Sort(of)
		b.ReportMetric(of[len(of)/2], unit)
	}
}

// BenchmarkPage is what the overview of 64 machines costs the agent, each time that it moves.
func BenchmarkPage(b *testing.B) {
	s := newSite(b, 64)
	in := s.enter(alice)
	in.get("") // templates are read, and all is known
	defer s.seen.watch()()
	for b.Loop() {
		in.get("")
	}
}
