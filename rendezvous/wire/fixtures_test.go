package wire

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	quiet   = slog.New(slog.DiscardHandler)
	alice   = Caller{User: &User{Name: "alice", UID: 1000}}
	spark2  = Caller{Node: "id2", Host: "spark2"}
	byValue = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})
)

func diff(want, got any) string { return cmp.Diff(want, got, byValue) }

// serve answers over HTTP/2 on a unix socket; every connection is the caller's.
func serve(t testing.TB, caller Caller, calls ...Call) *Client {
	t.Helper()
	return serveBy(t, caller, serverOf(calls...))
}

// serverOf answers all, those that go to the leader as well.
func serverOf(calls ...Call) *Server {
	var led, all []Call
	for _, c := range calls {
		if c.row.To == leader {
			led = append(led, c)
		} else {
			all = append(all, c)
		}
	}
	to := NewToLeader(ToLeaderConfig{Host: "spark1"})
	to.Lead(led...)
	return NewServer(ServerConfig{Leader: to}, all...)
}

func serveBy(t testing.TB, caller Caller, h http.Handler) *Client {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: h, Protocols: new(http.Protocols),
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context { return WithCaller(ctx, caller) }}
	srv.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		srv.Serve(l)
	}()
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", l.Addr().String())
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		srv.Close()
		<-done
	})
	return NewClient(&http.Client{Transport: tr}, "http://node")
}

// full makes a value in which every exported field is set, each differently:
// what a codec or a forgotten tag loses shows as a difference.
func full[T any]() T {
	var v T
	n := 0
	fill(reflect.ValueOf(&v).Elem(), &n)
	return v
}

func fill(v reflect.Value, n *int) {
	*n++
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(time.Date(2026, 3, 1, 12, 0, *n%60, 123456789, time.UTC)))
		return
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{10, 0, 0, byte(*n)})))
		return
	case netip.AddrPort:
		v.Set(reflect.ValueOf(netip.AddrPortFrom(netip.MustParseAddr("fe80::1%eth0"), uint16(*n))))
		return
	case rendezvous.KeyHash:
		v.Set(reflect.ValueOf(rendezvous.KeyHash{0: byte(*n), 31: 1}))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(*n), 0, 0}), 16)))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Slice:
		s := reflect.MakeSlice(v.Type(), 2, 2)
		fill(s.Index(0), n)
		fill(s.Index(1), n)
		v.Set(s)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n)
		fill(value, n)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(fmt.Sprintf("text %d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(int64(*n))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(uint64(*n % 256))
	case reflect.Float64:
		v.SetFloat(float64(*n) + 0.5)
	default:
		panic("no way to fill a " + v.Type().String())
	}
}

func orderFor(job string) launcher.Order {
	return launcher.Order{Fence: launcher.Fence{Epoch: launcher.Epoch{N: 1}, Term: 2}, End: &launcher.End{Key: launcher.Key{Job: launcher.JobID(job), Generation: 1}, Grace: time.Second, Reason: "test"}}
}
