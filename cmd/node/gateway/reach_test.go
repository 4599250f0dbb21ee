package gateway

import (
	"net/http"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// TestAvoided: after one request has found that a service is not reached, no other tries it, until a dial beside all
// requests has; then it has its share again.
func TestAvoided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newGateway(t, viewOf(at("j", "10.0.0.1:8000", "a"), at("k", "10.0.0.2:8000", "a")))
		var mu sync.Mutex
		off, asked := true, map[string]int{}
		w.g.transport = fake(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			defer mu.Unlock()
			if asked[r.URL.Host]++; off && r.URL.Host == "10.0.0.1:8000" {
				return refused(r)
			}
			return answers(200, "application/json", "{}")
		})
		ask := func(n int) {
			t.Helper()
			for range n {
				rec, done := w.begin(t.Context(), chatPath, `{"model":"a"}`)
				<-done
				if rec.Code != 200 {
					t.Errorf("%d %s", rec.Code, rec.Body)
				}
				time.Sleep(time.Second)
			}
		}
		ask(20)
		if asked["10.0.0.1:8000"] != 1 || asked["10.0.0.2:8000"] != 20 {
			t.Errorf("while one is not reached: %v", asked)
		}
		mu.Lock()
		off = false
		mu.Unlock()
		w.reached.Store(true)
		time.Sleep(redialMost)
		clear(asked)
		ask(20)
		if asked["10.0.0.1:8000"] != 10 || asked["10.0.0.2:8000"] != 10 {
			t.Errorf("once it is reached: %v", asked)
		}
	})
}

// TestSilentMachine: the kernel gives a connection up soon if nothing is acknowledged, but not while an engine is slow
// to read a long body. (What that comes to without a machine, scripts/bench_gateway_faults shows.)
func TestSilentMachine(t *testing.T) {
	w := newWorld(t, viewOf(engine(t, "j", echo, "a")))
	addr := w.view.Load().Backends[0].Addr.String()
	for what, tt := range map[string]struct {
		rq   request
		want int
	}{
		"short":            {request{whole: true, head: make([]byte, 100)}, 2000},
		"long, and whole":  {request{whole: true, head: make([]byte, 60<<10)}, 60000},
		"long, and coming": {request{head: make([]byte, 100)}, 60000},
	} {
		tr := w.g.transportOf(&tt.rq).(*http.Transport)
		c, err := tr.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := c.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(fd uintptr) {
			got, _ := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
			idle, _ := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
			each, _ := unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPINTVL)
			if got != tt.want || idle != 1 || each != 1 {
				t.Errorf("%s: given up after %d ms, probed after %d s, each %d s", what, got, idle, each)
			}
		})
		c.Close()
	}
}
