package netplan

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestEchoOnTheWire(t *testing.T) {
	for _, token := range []string{"even", "odd"} {
		question := echoRequest(token)
		if sum := checksum(question); sum != 0 {
			t.Errorf("%s: the checksum of a whole packet is %#x, want 0", token, sum)
		}
		answer := append([]byte{}, question...)
		answer[0] = icmpEchoReply
		if !answers(question, answer) {
			t.Errorf("%s: its answer is not known", token)
		}
		if answers(question, question) || answers(question, answer[:len(answer)-1]) || answers(question, nil) || answers(echoRequest("other"), answer) {
			t.Errorf("%s: taken for an answer what is none", token)
		}
	}
}

// Needs root: the rest of what it does is seen in scripts/e2e.
func TestEcho(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := Echo(ctx, Peer{NIC: "lo", Addr: netip.MustParseAddr("127.0.0.1")}); err != nil {
		t.Errorf("this machine over lo: %v", err)
	}
	if err := Echo(ctx, Peer{NIC: "none", Addr: netip.MustParseAddr("127.0.0.1")}); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("over an interface that is not there: %v", err)
	}
	if err := Echo(ctx, Peer{NIC: "lo"}); err == nil {
		t.Error("no address was asked")
	}
	over, end := context.WithCancel(ctx)
	end()
	if err := Echo(over, Peer{NIC: "lo", Addr: netip.MustParseAddr("127.0.0.1")}); err == nil {
		t.Error("asked although nobody waits")
	}
}
