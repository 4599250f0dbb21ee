package netplan

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Echo asks a peer once by ICMP (RFC 792), for Config.Reachable. The question leaves by the peer's NIC whatever the
// routes say. The answer may come in by another: twins share a wire and answer ARP for each other, so that the peer may
// have the sibling's MAC. It needs CAP_NET_RAW.
func Echo(ctx context.Context, p Peer) error {
	if !p.Addr.Is4() {
		return errors.New("ask for an echo: want an IPv4 address")
	}
	nic, err := net.InterfaceByName(p.NIC)
	if err != nil {
		return fmt.Errorf("ask for an echo on %s: %w", p.NIC, err)
	}
	conn, err := net.ListenIP("ip4:icmp", &net.IPAddr{IP: net.IPv4zero})
	if err != nil {
		return fmt.Errorf("ask for an echo on %s: %w", p.NIC, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	question := echoRequest(rand.Text())
	by := unix.PktInfo4(&unix.Inet4Pktinfo{Ifindex: int32(nic.Index)})
	if _, _, err := conn.WriteMsgIP(question, by, &net.IPAddr{IP: p.Addr.AsSlice()}); err != nil {
		return fmt.Errorf("send an echo request: %w", err)
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFromIP(buf)
		if ctx.Err() != nil {
			return errors.New("no echo")
		}
		if err != nil {
			return fmt.Errorf("wait for an echo: %w", err)
		}
		if from.IP.Equal(p.Addr.AsSlice()) && answers(question, buf[:n]) {
			return nil
		}
	}
}

const (
	icmpEcho      = 8
	icmpEchoReply = 0
	icmpHeader    = 8 // type, code, checksum, identifier, sequence number
)

// echoRequest is an ICMP echo request. Raw sockets see everybody's answers: the token tells ours.
func echoRequest(token string) []byte {
	b := append(make([]byte, icmpHeader), token...)
	b[0] = icmpEcho
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// answers reports whether a packet is the answer to the question.
func answers(question, packet []byte) bool {
	return len(packet) >= icmpHeader && packet[0] == icmpEchoReply && packet[1] == 0 && slices.Equal(packet[4:], question[4:])
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
