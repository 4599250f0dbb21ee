package netplan

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Echo asks a peer once by ICMP (RFC 792), over the peer's NIC and no other: it is for Config.Reachable. Routes play
// no part, so that an answer over another interface does not count. It needs CAP_NET_RAW.
func Echo(ctx context.Context, p Peer) error {
	if !p.Addr.Is4() {
		return errors.New("ask for an echo: want an IPv4 address")
	}
	listen := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var bound error
		err := c.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), p.NIC) })
		return errors.Join(err, bound)
	}}
	conn, err := listen.ListenPacket(ctx, "ip4:icmp", "0.0.0.0")
	if err != nil {
		return fmt.Errorf("ask for an echo on %s: %w", p.NIC, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	question := echoRequest(rand.Text())
	if _, err := conn.WriteTo(question, &net.IPAddr{IP: p.Addr.AsSlice()}); err != nil {
		return fmt.Errorf("send an echo request: %w", err)
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if ctx.Err() != nil {
			return errors.New("no echo")
		}
		if err != nil {
			return fmt.Errorf("wait for an echo: %w", err)
		}
		if ip, ok := from.(*net.IPAddr); ok && ip.IP.Equal(p.Addr.AsSlice()) && answers(question, buf[:n]) {
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
