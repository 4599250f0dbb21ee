package apptest

import (
	"context"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

func at(text string) netip.AddrPort { return netip.MustParseAddrPort(text) }

var (
	PinA = strings.Repeat("A", 43)
	PinB = strings.Repeat("B", 43)
	IdA  = "65a59063-4d7b-4c93-8fa5-4ecc3df44c65"
	IdC  = "75a59063-4d7b-4c93-8fa5-4ecc3df44c65"

	Genuine = discover.Cluster{ID: IdA, CA: PinA,
		Members: []discover.Found{{Host: "spark1", Addr: at("10.0.0.1:7940")}, {Host: "spark2", Addr: at("10.0.0.2:7941")}}}
	Lookals = discover.Cluster{ID: IdA, CA: PinB, Members: []discover.Found{{Host: "spark1", Addr: at("10.0.0.66:7940")}}}
	Another = discover.Cluster{ID: IdC, CA: PinB, Members: []discover.Found{{Host: "zeta", Addr: at("[fd00::1]:7940")}}}

	SshHosts = []discover.Instance{{Host: "spark1.local", Addr: at("10.0.0.1:22"), Link: "eth0"},
		{Host: "a??2J.local", Addr: at("10.0.0.2:2222"), Link: "wlan0"},
		{Host: "spark3.local", Addr: at("[fd00::3]:22"), Link: "eth0"}}
)

// Finding is an app of a command that found these clusters and hosts.
func Finding(t *testing.T, in io.Reader, clusters []discover.Cluster, hosts []discover.Instance) (a *app.App, out,
	err *SyncBuffer) {
	t.Helper()
	out, err = &SyncBuffer{}, &SyncBuffer{}
	return &app.App{In: in, Out: out, Err: err, Environ: []string{"PATH=/bin", "HOME=" + t.TempDir()},
		Columns: func() int { return 100 },
		Dial:    func() *wire.Client { t.Error("something was connected to"); return nil },
		Find: func(context.Context, node.Config) (node.Finding, error) {
			return node.Finding{NIC: "enP7s7", Clusters: clusters}, nil
		},
		BrowseSSH: func(context.Context) ([]discover.Instance, error) { return hosts, nil },
	}, out, err
}

// Types answers each prompt at a terminal as it appears.
func Types(t *testing.T, errs *SyncBuffer, keyboard *os.File, answers ...[2]string) {
	t.Helper()
	done := make(chan struct{})
	t.Cleanup(func() { <-done })
	go func() {
		defer close(done)
		seen := 0
		for _, a := range answers {
			for until := time.Now().Add(30 * time.Second); !strings.Contains(errs.String()[seen:],
				a[0]); time.Sleep(5 * time.Millisecond) {
				if time.Now().After(until) {
					t.Errorf("%q is not asked: %q", a[0], errs)
					return
				}
			}
			seen = len(errs.String())
			if _, err := keyboard.WriteString(a[1] + "\n"); err != nil {
				t.Error(err)
			}
		}
	}()
}
