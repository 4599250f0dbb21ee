package node

import (
	"flag"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// halfOpen is how many connections the flood holds open; the bar is 5000, which takes some 10 s of two cores.
var halfOpen = flag.Int("halfopen", 1200, "half-open handshakes of the flood")

// While thousands of handshakes to every node are begun and never finished, nodes that connect anew, newcomers and users
// are served.
func TestFloodOfHandshakes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.hosts[0].waitVoters(3)
	before := c.hosts[0].wait(3)
	var held []net.Conn
	var mu sync.Mutex
	flood := func() {
		var workers sync.WaitGroup
		for w := range 10 {
			workers.Go(func() {
				d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("127.0.50.%d", 100+w))}, Timeout: time.Minute}
				for i := range *halfOpen / 10 {
					conn, err := d.Dial("tcp", net.JoinHostPort(c.hosts[i%3].addr, strconv.Itoa(membership.DefaultRPCPort)))
					if err != nil {
						continue
					}
					if i%2 == 0 {
						conn.Write([]byte{22, 3, 1, 2, 0}) // the beginning of a ClientHello
					}
					mu.Lock()
					held = append(held, conn)
					mu.Unlock()
				}
			})
		}
		workers.Wait()
	}
	defer func() {
		for _, conn := range held {
			conn.Close()
		}
	}()
	flooded := make(chan struct{})
	go func() {
		defer close(flooded)
		flood()
	}()
	fresh := c.newcomer("spark4")
	if _, err := Join(t.Context(), fresh.cfg, c.hosts[0].addr, c.hosts[1].token(wire.TokenRequest{Uses: 1, TTL: time.Minute})); err != nil {
		t.Errorf("a newcomer: %v", err)
	}
	for _, h := range c.hosts {
		if out := h.run(command(3, 1, "true")); out.End != rendezvous.Completed {
			t.Errorf("a launch on %s: %+v", h.cfg.Host, out)
		}
	}
	<-flooded
	fresh.start()
	c.hosts[0].wait(4)
	if out := fresh.run(command(4, 1, "true")); out.End != rendezvous.Completed {
		t.Errorf("a launch with the newcomer: %+v", out)
	}
	if after := c.hosts[0].wait(4); after.Term != before.Term || after.Leader != before.Leader {
		t.Logf("the leadership moved, as it may on a busy machine: %s in term %d, then %s in term %d", before.Leader, before.Term, after.Leader, after.Term)
	}
	for _, h := range c.hosts {
		told := ""
		h.eventually("the flood is audited on "+h.cfg.Host, func() bool {
			told = h.refusals()
			return strings.Contains(told, trust.ErrTooMany.Error()) || strings.Contains(told, trust.ErrSlow.Error())
		})
		if n := strings.Count(told, "\n"); n > 200 {
			t.Errorf("%s has %d lines about it", h.cfg.Host, n)
		}
	}
}
