package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// engineImages has the images lab/NAME on a host, each with gatewaytest as the engine NAME.
func (l *lab) engineImages(host, program string, names ...string) {
	l.t.Helper()
	for _, name := range names {
		l.on(host, "sh", "-ec", `c=$(docker create lab/busybox true); docker cp "$0" $c:/bin/engine
			docker commit --change "ENV ENGINE=$1" $c lab/$1; docker rm $c`, program, name).must(l.t)
	}
}

// answeredBy checks that each request of a load was answered whole, by an engine of these names, and gives how many
// were by each.
func answeredBy(t testing.TB, what string, all []outcome, names ...string) map[string]int {
	t.Helper()
	by, lost := map[string]int{}, 0
	for _, a := range all {
		by[a.Engine]++
		if a.Error != "" || !slices.Contains(names, a.Engine) {
			if lost++; lost <= 5 {
				t.Errorf("%s: %+v", what, a)
			}
		}
	}
	longest := slices.MaxFunc(all, func(a, b outcome) int { return int(a.Ended.Sub(a.Began) - b.Ended.Sub(b.Began)) })
	t.Logf("%s: %d requests, %d lost, by %v, the longest took %s", what, len(all), lost, by,
		longest.Ended.Sub(longest.Began).Round(time.Millisecond))
	return by
}

// at is where a host's gateway answers others.
func at(host string) string { return "http://172.30.0.1" + strings.TrimPrefix(host, "spark") + ":7942" }

// A service gets another image while many ask for it at two machines, and none of them is let down. One whose engine
// does not come up gives way to the one before, by itself.
func TestServiceUpdate(t *testing.T) {
	t.Parallel()
	program := gatewayProgram(t)
	l := up(t, 3)
	l.do("engine", "spark2")
	l.engineImages("spark2", program, "one", "two", "broken")
	l.on("spark2", "sh", "-c", "mkdir -p /etc/sparkrun; echo 'containers: {users: [root]}' > /etc/sparkrun/policy.yaml").must(t)
	run := func(args ...string) result { return l.on("spark1", append([]string{"sparkrun"}, args...)...) }
	run("gateway", "open").must(t)
	run("launch", "exec", "--name", "llm", "--on", "spark2", "--image", "lab/one", "--serve", "8000", "--health", "/health",
		"--metrics", "/metrics", "--model", "qwen", "--env", "ANSWER=200ms", "--", "engine", "service", ":8000").must(t)
	urls := []string{at("spark1"), at("spark3")}
	for _, url := range append(urls, at("spark2")) {
		eventually(t, 30*time.Second, "the model at "+url, func() bool {
			return strings.Contains(l.on("switch", "curl", "-s", "-m", "5", url+"/v1/models").out, `"qwen"`)
		})
	}
	update := func(image string) result { return run("service", "update", "llm", "--image", image) }
	image := func() string {
		return l.on("spark2", "sh", "-c", "docker inspect -f '{{.Config.Env}}' $(docker ps -q)").out
	}

	end := l.load(program, "qwen", urls, "--clients", "8")
	update("lab/two").must(t)
	l.serves("spark1", "llm", 2)
	time.Sleep(2 * time.Second) // some go to the new one
	by := answeredBy(t, "to another image", end(), "one", "two")
	if by["one"] == 0 || by["two"] == 0 || !strings.Contains(image(), "ENGINE=two") {
		t.Errorf("after the update: %v, in %s", by, image())
	}

	end = l.load(program, "qwen", urls, "--clients", "8")
	update("lab/broken").must(t)
	l.serves("spark1", "llm", 4)
	run("service", "update", "llm", "--image", "lab/none", "--no-pull").must(t)
	back := l.serves("spark1", "llm", 6)
	time.Sleep(2 * time.Second)
	answeredBy(t, "to one that does not come up, and one that is nowhere", end(), "two")
	if back.Service.Failures != 0 || !strings.Contains(image(), "ENGINE=two") {
		t.Errorf("it went back to %s with %d failures", image(), back.Service.Failures)
	}

	leader := l.leader("spark1") // which is lost before it has begun
	rest := other(3, leader)
	end = l.load(program, "qwen", []string{at(rest[0]), at(rest[1])}, "--clients", "8")
	l.on(rest[0], "sparkrun", "service", "update", "llm", "--image", "lab/one").must(t)
	l.do("kill", leader, "--agent")
	l.serves(rest[0], "llm", 7)
	time.Sleep(2 * time.Second)
	answeredBy(t, "under a new leader", end(), "one", "two")
	l.do("start", leader, "--agent")
	l.on("spark1", "sparkrun", "status", "--wait-nodes", "3", "--timeout", "90s").must(t)

	for _, tc := range []struct {
		what, says string
		args       []string
	}{
		{"the image that it has", "it has the image lab/one already", []string{"llm", "--image", "lab/one"}},
		{"an image that is nowhere", "runs on in lab/one: pull lab/none: ", []string{"llm", "--image", "lab/none"}},
		{"no service", `job "nothing": no such job`, []string{"nothing", "--image", "lab/one"}},
		{"no image", "--image names the image", []string{"llm"}},
	} {
		r := run(append([]string{"service", "update"}, tc.args...)...)
		t.Log(tc.what, fmt.Sprint(r))
		if r.code == 0 || !strings.Contains(r.err, tc.says) {
			t.Errorf("%s: want %q: %s", tc.what, tc.says, r)
		}
	}
	l.serves("spark1", "llm", 7)
	run("stop", "llm").must(t)
	l.noContainerLeft("spark2")
	l.assertNothingLeft("spark1", "spark3")
}

// Another model takes another's place behind an alias, and nobody who asks by that is let down.
func TestAnotherModel(t *testing.T) {
	t.Parallel()
	program := gatewayProgram(t)
	l := up(t, 3)
	run := func(args ...string) result { return l.on("spark1", append([]string{"sparkrun"}, args...)...).must(t) }
	serve := func(model, host string) {
		t.Helper()
		run("launch", "exec", "--name", model, "--on", host, "--serve", "8000", "--health", "/health", "--metrics", "/metrics",
			"--model", model, "--env", "ANSWER=200ms", "--env", "ENGINE="+model, "--", program, "service", ":8000")
	}
	run("gateway", "open")
	serve("one", "spark2")
	run("gateway", "alias", "set", "chat", "one")
	urls := []string{at("spark1"), at("spark3")}
	for _, url := range urls {
		eventually(t, 30*time.Second, "the alias at "+url, func() bool {
			return strings.Contains(l.on("switch", "curl", "-s", "-m", "5", url+"/v1/models").out, `"chat"`)
		})
	}
	end := l.load(program, "chat", urls)
	time.Sleep(time.Second)
	serve("two", "spark3")
	run("gateway", "alias", "set", "chat", "two")
	eventually(t, 30*time.Second, "nobody asks the old one", func() bool {
		return strings.Contains(l.on("spark2", "curl", "-s", "http://127.0.0.1:8000/metrics").out, `_running{model_name="one"} 0`)
	})
	run("stop", "one")
	time.Sleep(time.Second)
	if by := answeredBy(t, "another model", end(), "one", "two"); by["one"] == 0 || by["two"] == 0 {
		t.Errorf("answered by %v", by)
	}
	run("stop", "two")
	l.assertNothingLeft("spark1", "spark2", "spark3")
}
