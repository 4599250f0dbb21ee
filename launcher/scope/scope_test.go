package scope

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

// fakeSystemd speaks just enough D-Bus to be asked for a transient unit, as
// systemd does on its own socket: it stands for nothing but that conversation.
// The real thing is tried on a machine that has it.
type fakeSystemd struct {
	socket string
	result string // of each job; empty: the call itself is refused
	units  chan []any

	mu      sync.Mutex
	callers []net.Conn // who has authenticated: each hears of each job's end
}

func newFakeSystemd(t *testing.T, result string) *fakeSystemd {
	s := &fakeSystemd{socket: filepath.Join(t.TempDir(), "private"), result: result, units: make(chan []any, 1)}
	ln, err := net.Listen("unix", s.socket)
	must(t, err)
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go s.serve(c)
		}
	}()
	return s
}

// serve authenticates (the D-Bus specification, "Authentication Protocol") and
// answers calls until the client hangs up.
func (s *fakeSystemd) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	if b, err := in.ReadByte(); err != nil || b != 0 {
		return
	}
	for {
		line, err := in.ReadString('\n')
		switch {
		case err != nil:
			return
		case line == "AUTH\r\n":
			fmt.Fprint(c, "REJECTED EXTERNAL\r\n")
		case strings.HasPrefix(line, "AUTH EXTERNAL"):
			s.mu.Lock() // before the client can have another connection ask for a unit
			s.callers = append(s.callers, c)
			s.mu.Unlock()
			fmt.Fprint(c, "OK 0123456789abcdef0123456789abcdef\r\n")
		case strings.HasPrefix(line, "NEGOTIATE_UNIX_FD"):
			fmt.Fprint(c, "ERROR\r\n")
		case strings.HasPrefix(line, "BEGIN"):
			s.answer(c, in)
			return
		}
	}
}

func (s *fakeSystemd) answer(c net.Conn, in *bufio.Reader) {
	send := func(to net.Conn, kind dbus.Type, headers map[dbus.HeaderField]dbus.Variant, body ...any) {
		if len(body) > 0 {
			headers[dbus.FieldSignature] = dbus.MakeVariant(dbus.SignatureOf(body...))
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		_ = (&dbus.Message{Type: kind, Headers: headers, Body: body}).EncodeTo(to, binary.LittleEndian)
	}
	for {
		m, err := dbus.DecodeMessage(in)
		if err != nil {
			return
		}
		to := dbus.MakeVariant(m.Serial())
		if m.Headers[dbus.FieldMember].Value() != "StartTransientUnit" || s.result == "" {
			send(c, dbus.TypeError, map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: to,
				dbus.FieldErrorName: dbus.MakeVariant("org.freedesktop.DBus.Error.AccessDenied")}, "not today")
			continue
		}
		s.units <- m.Body
		job := dbus.ObjectPath("/org/freedesktop/systemd1/job/1")
		send(c, dbus.TypeMethodReply, map[dbus.HeaderField]dbus.Variant{dbus.FieldReplySerial: to}, job)
		signal := map[dbus.HeaderField]dbus.Variant{
			dbus.FieldPath:      dbus.MakeVariant(dbus.ObjectPath("/org/freedesktop/systemd1")),
			dbus.FieldInterface: dbus.MakeVariant("org.freedesktop.systemd1.Manager"),
			dbus.FieldMember:    dbus.MakeVariant("JobRemoved"),
		}
		s.mu.Lock()
		callers := slices.Clone(s.callers)
		s.mu.Unlock()
		for _, to := range callers {
			send(to, dbus.TypeSignal, maps.Clone(signal), uint32(1), job, m.Body[0], s.result)
		}
	}
}

// What systemd is asked for: a scope in our slice, handed over to us, holding
// the process and gone with its last one.
func TestScopeAsFakeSystemdIsAskedForIt(t *testing.T) {
	s := newFakeSystemd(t, "done")
	must(t, enter(t.Context(), s.socket, "sparkrun-n-abcd.1.scope", os.Getpid()))
	unit := <-s.units
	if unit[0] != "sparkrun-n-abcd.1.scope" || unit[1] != "fail" {
		t.Errorf("unit %v, mode %v", unit[0], unit[1])
	}
	got := map[string]any{}
	for _, p := range unit[2].([][]any) {
		got[p[0].(string)] = p[1].(dbus.Variant).Value()
	}
	want := map[string]any{"Description": "Ranks of a sparkrun job", "Slice": "sparkrun.slice", "Delegate": true,
		"CollectMode": "inactive-or-failed", "PIDs": []uint32{uint32(os.Getpid())}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestScopeRefusedByFakeSystemd(t *testing.T) {
	for result, words := range map[string]string{"failed": `systemd says "failed"`, "": "not today"} {
		s := newFakeSystemd(t, result)
		err := enter(t.Context(), s.socket, "sparkrun-x.scope", 1)
		if err == nil || !strings.Contains(err.Error(), words) ||
			!strings.HasPrefix(err.Error(), "enter scope sparkrun-x.scope: ") {
			t.Errorf("result %q: %v", result, err)
		}
	}
	if err := enter(t.Context(), filepath.Join(t.TempDir(), "none"), "x.scope", 1); err == nil {
		t.Error("a scope without a systemd")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
