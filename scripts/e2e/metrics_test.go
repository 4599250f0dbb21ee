package e2e

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// alerts are the package's, without their patience.
func alerts(t *testing.T) string {
	b, err := os.ReadFile("../package/monitoring/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`\bfor: \w+`).ReplaceAllString(string(b), "for: 1s")
}

// query asks the Prometheus of a host; nil: it has nothing.
func (l *lab) query(host, expr string) (found []map[string]string) {
	r := l.on(host, "python3", "-c", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())",
		"http://127.0.0.1:9090/api/v1/query?query="+url.QueryEscape(expr))
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  []any
			}
		}
	}
	if r.code == 0 {
		if err := json.Unmarshal([]byte(r.out), &answer); err != nil {
			l.t.Fatalf("%v: %s", err, r)
		}
	}
	for _, one := range answer.Data.Result {
		one.Metric["value"] = fmt.Sprint(one.Value[1])
		found = append(found, one.Metric)
	}
	return found
}

// reads is what a host's agent serves at a path of its loopback.
func (l *lab) reads(host, path string) result {
	l.t.Helper()
	return l.on(host, "python3", "-c", "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())",
		"http://127.0.0.1:7942"+path)
}

// Debian's Prometheus finds every member and every engine by one URL and one key that asks no model, through TLS, has
// nothing against what members tell, and has alerts of the package fire when a GPU is hot and slow, and when a machine loses its power.
func TestPrometheus(t *testing.T) {
	t.Parallel()
	l := up(t, 2, "--gpu")
	leader := l.leader("spark1")
	lost := other(2, leader)[0]
	l.on(leader, append([]string{"sparkrun", "launch", "-d", "exec", "--name", "llm", "--on", leader, "--serve", "8000",
		"--health", "/health", "--metrics", "/metrics"}, standIn(t, "8000", "", "work")...)...).must(t)
	page := l.reads(leader, "/metrics").must(t).out
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = strings.NewReader(page)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v: %s", err, out)
	}
	t.Logf("the leader's page: %d bytes", len(page))

	dir := scratch(t)
	key := l.on(leader, "sparkrun", "gateway", "key", "create", "prometheus", "--metrics").must(t).out
	l.on(leader, "sparkrun", "gateway", "ca", "create").must(t)
	if r := l.reads(lost, "/metrics"); r.code == 0 || !strings.Contains(r.err, "401") {
		t.Errorf("without the key: %s", r)
	}
	addr := strings.Fields(l.on(lost, "sh", "-c", "getent hosts "+lost+" || hostname -I").must(t).out)[0]
	for name, text := range map[string]string{
		"key":        key,
		"ca.pem":     l.on(leader, "sparkrun", "gateway", "ca", "show").must(t).out,
		"alerts.yml": alerts(t),
		"prometheus.yml": fmt.Sprintf(`global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}
rule_files: [alerts.yml]
scrape_configs:
  - job_name: sparkrun
    authorization: {credentials_file: key}
    tls_config: {ca_file: ca.pem}
    http_sd_configs:
      - url: https://%s:7942/metrics/targets
        refresh_interval: 1s
        authorization: {type: Bearer, credentials_file: key}
        tls_config: {ca_file: ca.pem}
`, addr),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []string{"rules", "config"} {
		file := filepath.Join(dir, map[string]string{"rules": "alerts.yml", "config": "prometheus.yml"}[kind])
		if out, err := exec.Command("promtool", "check", kind, file).CombinedOutput(); err != nil {
			t.Fatalf("promtool check %s: %v: %s", kind, err, out)
		}
	}
	prometheus := l.start(leader, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090", "--log.level=warn")
	t.Cleanup(func() {
		l.on(leader, "pkill", "-TERM", "-x", "prometheus")
		if r := prometheus.within(20 * time.Second); t.Failed() {
			t.Logf("prometheus: %s", r)
		}
	})
	eventually(t, 30*time.Second, "two members and an engine are up", func() bool {
		return len(l.query(leader, "up == 1")) == 3
	})
	for expr, want := range map[string]int{
		`sparkrun_build_info{sparkrun_host="spark1"}`:                                   1,
		`sparkrun_node_ready == 1`:                                                      2,
		`sum(sparkrun_is_leader) == 1`:                                                  1,
		`vllm:num_requests_running{sparkrun_name="llm",sparkrun_host="` + leader + `"}`: 1,
		`ALERTS`: 0,
	} {
		if found := l.query(leader, expr); len(found) != want {
			t.Errorf("%s: %v, want %d", expr, found, want)
		}
	}

	file := "/var/tmp/sparkrun-lab/" + l.name + "/hosts/" + lost + "/gpu"
	if err := os.WriteFile(file, []byte("util=97\nclock=507\ntemp=91\nreasons=0x20\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	told := eventually(t, 30*time.Second, "three alerts of a GPU fire", func() bool {
		return len(l.query(leader, `ALERTS{alertname=~"SparkrunGPU.*",alertstate="firing",sparkrun_host="`+lost+`"}`)) == 3
	})
	t.Logf("a hot and slow GPU was told of after %s", told.Round(100*time.Millisecond))
	l.do("kill", lost)
	took := eventually(t, 30*time.Second, "the alert fires", func() bool {
		fires := l.query(leader, `ALERTS{alertname="SparkrunNodeLost",alertstate="firing"}`)
		return len(fires) == 1 && fires[0]["node"] == lost
	})
	t.Logf("%s was told of %s after its power was cut", lost, took.Round(100*time.Millisecond))
}
