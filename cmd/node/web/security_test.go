package web

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A link opens the page once, soon, and for nobody but a browser that opens it.
func TestLinkOpensOnce(t *testing.T) {
	s := newSite(t, 2)
	for _, c := range []struct {
		what, path string
		status     int
	}{
		{"nothing", "/", 401}, {"a guess", "/in/" + secret(), 401}, {"an empty one", "/in/", 401},
		{"a file of the page", "/page.js", 401}, {"a page", "/jobs", 401},
	} {
		res, err := http.Get(s.srv.URL + c.path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode != c.status || string(body) != unknown+"\n" || len(res.Cookies()) > 0 {
			t.Errorf("%s: %s %q", c.what, res.Status, body)
		}
	}
	link := s.link(alice)
	b := &browser{t: t, site: s, cookie: &http.Cookie{Name: "x"}}
	if status, _, _ := b.do("POST", link, "", nil); status != 405 {
		t.Errorf("POST of a link: %d", status)
	}
	if status, _, _ := b.do("GET", link, "", func(r *http.Request) { r.Header.Set("Sec-Purpose", "prefetch") }); status != 403 {
		t.Errorf("a link that is fetched ahead: %d", status)
	}
	status, h, _ := b.do("GET", link, "", nil)
	cookie := h.Get("Set-Cookie")
	if status != 200 || !strings.Contains(cookie, "; HttpOnly; SameSite=Strict") || !regexp.MustCompile(`; Path=/[\w-]{22}/;`).MatchString(cookie) {
		t.Errorf("a link: %d, cookie %q", status, cookie)
	}
	if status, _, body := b.do("GET", link, "", nil); status != 401 || body != unknown+"\n" {
		t.Errorf("the same link again: %d %q", status, body)
	}
}

func TestLinksAndSessionsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := OpenVisitors(VisitorsConfig{Port: 1, Path: t.TempDir() + "/web.json", Listed: func(id string) bool { return id != "gone" }})
		invite := func(c wire.Caller) string {
			t.Helper()
			res, err := v.invite(context.Background(), c, wire.Empty{})
			if err != nil {
				t.Fatal(err)
			}
			_, token, _ := strings.Cut(res.URLs[0], "/in/")
			return token
		}
		enter := func(c wire.Caller) visit {
			t.Helper()
			in, ok := v.enter(invite(c))
			if !ok {
				t.Fatal("a new link opens nothing")
			}
			return in
		}
		late := invite(alice)
		time.Sleep(linkFor + time.Second)
		if _, ok := v.enter(late); ok {
			t.Error("an old link opens the page")
		}
		idle, looks := enter(alice), enter(alice)
		done, _ := v.stream(looks.session)
		time.Sleep(idleFor + time.Minute)
		if _, ok := v.known(idle.cookie); ok {
			t.Error("a session that was idle goes on")
		}
		if _, ok := v.known(looks.cookie); !ok {
			t.Error("a page that is open is thrown out")
		}
		time.Sleep(longestFor)
		if v.look(); looks.ctx.Err() == nil {
			t.Error("a session lasts for ever")
		}
		done()
		if _, ok := v.known(enter(wire.Caller{User: alice.User, Client: &wire.RemoteClient{ID: "gone"}}).cookie); ok {
			t.Error("a client that was removed is let in")
		}
		if _, err := v.invite(context.Background(), wire.Caller{Node: "n", User: alice.User}, wire.Empty{}); err == nil {
			t.Error("a member gets a link for another's user")
		}
		first := enter(mallory)
		for range sessionsEach {
			time.Sleep(time.Second)
			enter(mallory)
		}
		if _, ok := v.known(first.cookie); ok || len(v.sessions) > sessionsEach+1 {
			t.Errorf("a user has %d sessions", len(v.sessions))
		}
		for range linksEach {
			invite(mallory)
		}
		if _, err := v.invite(context.Background(), mallory, wire.Empty{}); err == nil {
			t.Error("a user gets links without end")
		}
		moves := enter(alice)
		for range streamsEach {
			v.stream(moves.session)
		}
		if _, ok := v.stream(enter(alice).session); ok {
			t.Error("a user has streams without end, a few for each session")
		}
		// The next agent knows who had a session.
		kept := enter(alice)
		next := OpenVisitors(v.cfg)
		if in, ok := next.known(kept.cookie); !ok || in.Of.User.Name != "alice" || in.folder() != kept.folder() {
			t.Error("the next agent does not know a session")
		}
		v.leave(kept.session)
		if _, ok := OpenVisitors(v.cfg).known(kept.cookie); ok {
			t.Error("who has left is known to the next agent")
		}
	})
}

// What does not come from the page itself is refused, whoever's cookie it has.
func TestForeignRequestsAreRefused(t *testing.T) {
	s := newSite(t, 2)
	one, other := s.enter(alice), s.enter(mallory)
	const mine = "11111111-aaaa-4aaa-8aaa-000000000001"
	token := func(page string) string {
		m := regexp.MustCompile(`action="(?:stop|restart)".*name="csrf" value="([^"]+)"`).FindStringSubmatch(one.get(page))
		if m == nil {
			t.Fatalf("%s has no form", page)
		}
		return m[1]
	}
	good := token("stop?id=" + mine)
	form := func(id, csrf string) string { return url.Values{"id": {id}, "csrf": {csrf}}.Encode() }
	for _, c := range []struct {
		what, method, url, form string
		edit                    func(*http.Request)
		status                  int
	}{
		{"another's folder", "GET", other.folder, "", nil, 401},
		{"a name that was made to lead here", "GET", one.folder, "", func(r *http.Request) { r.Host = "evil.example:7943" }, 421},
		{"an address of another interface", "GET", one.folder, "", func(r *http.Request) { r.Host = "192.168.1.1" }, 421},
		{"no token", "POST", one.folder + "stop", form(mine, ""), nil, 403},
		{"another action's token", "POST", one.folder + "restart", form(mine, good), nil, 403},
		{"another job's token", "POST", one.folder + "stop", form("11111111-aaaa-4aaa-8aaa-000000000002", good), nil, 403},
		{"a form of another site", "POST", one.folder + "stop", form(mine, good), func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"a form of another port", "POST", one.folder + "stop", form(mine, good), func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") }, 403},
		{"a token in the address", "POST", one.folder + "stop?" + form(mine, good), "", nil, 403},
		{"a form that is too long", "POST", one.folder + "stop", form(mine, good) + strings.Repeat("&x=y", 1<<13), nil, 403},
		{"PUT", "PUT", one.folder + "stop", form(mine, good), nil, 405},
		{"DELETE", "DELETE", one.folder + "jobs", "", nil, 405},
		{"no such page", "GET", one.folder + "secrets", "", nil, 404},
		{"no such events", "GET", one.folder + "events?view=secrets", "", nil, 404},
	} {
		if status, _, body := one.do(c.method, c.url, c.form, c.edit); status != c.status {
			t.Errorf("%s: %d, want %d: %.200s", c.what, status, c.status, body)
		}
	}
	if len(s.stopped) > 0 {
		t.Fatalf("stopped: %v", s.stopped)
	}
	status, h, _ := one.do("POST", one.folder+"stop", form(mine, good), nil)
	if status != 303 || !strings.HasSuffix(h.Get("Location"), "job?id="+mine) || len(s.stopped) != 1 || s.by[0] != *alice.User {
		t.Errorf("its own form: %d to %q; stopped %v by %v", status, h.Get("Location"), s.stopped, s.by)
	}
	// The rights are the user's: the leader refuses, and that is shown.
	const mallorys = "11111111-aaaa-4aaa-8aaa-000000000002"
	status, _, body := one.do("POST", one.folder+"stop", form(mallorys, token("stop?id="+mallorys)), nil)
	if status != 403 || !strings.Contains(body, "mallory&#39;s, who may") || strings.Contains(one.get("job?id="+mallorys), "stop?id=") {
		t.Errorf("another's job: %d %.300s", status, body)
	}
	leave := regexp.MustCompile(`action="leave"><input type="hidden" name="csrf" value="([^"]+)"`).FindStringSubmatch(body)
	if status, _, _ := one.do("POST", one.folder+"leave", form("", leave[1]), nil); status != 401 {
		t.Errorf("leave: %d", status)
	}
	if status, _, _ := one.do("GET", one.folder, "", nil); status != 401 {
		t.Errorf("after leaving: %d", status)
	}
	unknown := newSite(t, 1)
	unknown.late = true
	one = unknown.enter(alice)
	own := visit{cookie: one.cookie.Value}.formToken("stop", mallorys)
	if status, _, body := one.do("POST", one.folder+"stop", form(mallorys, own), nil); status != 403 || !strings.Contains(body, "mallory's, who may") {
		t.Errorf("another's job that the page does not know yet: %d %.300s", status, body)
	}
}

// What ranks and users wrote is text on every page, and what they wrote as such is no page.
func TestHostileTextIsText(t *testing.T) {
	s := newSite(t, 4)
	b := s.enter(alice)
	const id = "?id=11111111-aaaa-4aaa-8aaa-000000000002"
	for path := range views {
		q := id
		if path == "machine" {
			q = "?host=" + url.QueryEscape(hostile)
		}
		status, h, body := b.do("GET", b.folder+strings.TrimPrefix(path, "overview")+q, "", nil)
		if status != 200 || strings.Contains(body, "<script>") || strings.Contains(body, "<img") || strings.ContainsAny(body, "\x1b\u202e") {
			t.Errorf("%s: %d %s", path, status, body)
		}
		if h.Get("Content-Security-Policy") != policy || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", path, h)
		}
		if regexp.MustCompile(`(?i)\sstyle=|\son\w+=|javascript:`).MatchString(regexp.MustCompile(`&[^;]*;.*`).ReplaceAllString(body, "")) {
			t.Errorf("%s has what its policy forbids", path)
		}
	}
	if body := b.get("machine?host=spark1"); !strings.Contains(body, "NVIDIA GB10") {
		t.Errorf("a machine: %s", body)
	}
	status, h, body := b.do("GET", b.folder+"raw"+id, "", nil)
	if status != 200 || !strings.Contains(body, "<script>") || !strings.HasSuffix(body, "output is missing\n") || h.Get("Content-Type") != "text/plain; charset=utf-8" ||
		!strings.HasPrefix(h.Get("Content-Security-Policy"), "sandbox;") || !strings.HasPrefix(h.Get("Content-Disposition"), "attachment") ||
		h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("output as it was written: %d %v %q", status, h, body)
	}
	r := newReader("<B>")
	r.take(wire.LogChunk{Stream: "out", Data: []byte("a <b>b</b>\x1b[1m c\nnothing\npart")}) //nolint:errcheck // it does not fail
	got, at := r.next()
	if got != "<li><b>0</b>a <mark>&lt;b&gt;</mark>b&lt;/b&gt; c</li>" || at != "0.out.25" {
		t.Errorf("a line that is searched for: %q at %s", got, at)
	}
}

// A browser asks again for output that is not to be had now, and not for what there never will be.
func TestOutputThatFails(t *testing.T) {
	s := newSite(t, 2)
	b := s.enter(alice)
	for _, c := range []struct {
		err  error
		ends bool
	}{{wire.ErrNoLeader, false}, {wire.ErrRetry, false}, {wire.ErrUnreachable, false}, {rendezvous.ErrNoJob, false}, {launcher.ErrInvalid, true}} {
		s.mu.Lock()
		s.fails = c.err
		s.mu.Unlock()
		if body := b.get("lines?id=x"); strings.Contains(body, "event: end\n") != c.ends {
			t.Errorf("%v: %q", c.err, body)
		}
	}
}

// What a rank writes costs the agent no more than its size: of many short lines, of matches, of what has to be escaped.
func TestHostileOutputCostsLittle(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for words, data := range map[string]string{"": strings.Repeat("\n", 128<<10), "a": strings.Repeat(strings.Repeat("a", 8000)+"\n", 16)} {
		if err := newReader(words).take(wire.LogChunk{Stream: "out", Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 200<<20 {
		t.Errorf("two chunks took %d MB", (after.TotalAlloc-before.TotalAlloc)>>20)
	}
	synctest.Test(t, func(t *testing.T) {
		r := newReader("")
		go func() {
			for range 100 {
				r.take(wire.LogChunk{Stream: "out", Data: []byte(strings.Repeat(strings.Repeat("<", 8000)+"\n", 16))}) //nolint:errcheck // it does not fail
			}
		}()
		synctest.Wait()
		if n := r.pending.Len(); n > 2<<20 {
			t.Errorf("%d bytes wait for the browser", n)
		}
		r.end(false)
	})
}

// All that a browser is sent by the agent itself is small.
func TestPageIsSmall(t *testing.T) {
	total := int64(0)
	err := fs.WalkDir(assets, ".", func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		fi, err := e.Info()
		total += fi.Size()
		return err
	})
	if err != nil || total > 150<<10 || total == 0 {
		t.Errorf("it has %d bytes, %v; 150 KB are for all", total, err)
	}
	t.Logf("%d bytes", total)
}

// It asks nothing while nobody looks, and once a second for all who do.
func TestAsksForAllWhoLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{n: 1}
		g := newGatherer(c.client(alice))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go g.run(ctx) //nolint:errcheck // ctx's
		asked := func() int {
			c.mu.Lock()
			defer c.mu.Unlock()
			n := c.asked
			c.asked = 0
			return n
		}
		time.Sleep(time.Minute)
		if n := asked(); n != 0 {
			t.Errorf("asked %d times while nobody looked", n)
		}
		one, two := g.watch(), g.watch()
		time.Sleep(time.Minute)
		if n := asked(); n < 59 || n > 61 {
			t.Errorf("asked %d times in a minute", n)
		}
		jobs := g.now.Load().Jobs
		c.mu.Lock()
		if c.askedAll > 3 || len(jobs) != 4 {
			t.Errorf("asked %d times for all jobs, of which there are %d", c.askedAll, len(jobs))
		}
		c.stopped = append(c.stopped, string(jobs[0].Spec.ID))
		c.mu.Unlock()
		time.Sleep(2 * time.Second)
		if now := g.now.Load().Jobs; now[0].Outcome == nil || len(now) != 4 {
			t.Errorf("a job that has ended: %v", now[0].State)
		}
		one()
		two()
		time.Sleep(lingers + time.Second)
		asked()
		time.Sleep(time.Minute)
		if n := asked(); n != 0 {
			t.Errorf("asked %d times after the last one had gone", n)
		}
	})
}
