package job

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// A person is told what stop waits for, once it takes a while; a script is not.
func TestStopSaysWhatItWaitsFor(t *testing.T) {
	own, long := (*time.Duration)(nil), time.Minute
	for name, tc := range map[string]struct {
		tty   bool
		takes time.Duration
		grace *time.Duration
		want  string
	}{
		"a terminal": {true, 2 * time.Second, own,
			"KILL follows TERM after the grace it was launched with (`sparkrun stop --kill k3x`: at once)\n"},
		"a long grace": {true, 2 * time.Second, &long, "KILL follows TERM after 1m0s"},
		"killed": {true, 2 * time.Second, new(time.Duration),
			"the ranks of job k3x are being killed; waiting until none is left\n"},
		"at once":  {true, time.Second / 2, own, ""},
		"a script": {false, 2 * time.Second, own, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var o, e apptest.SyncBuffer
				a := &app.App{Out: &o, Err: &e, ErrTTY: tc.tty}
				b := apptest.Agent(&apptest.FakeRunner{OnWatch: func(_ context.Context, _ int,
					tell func(rendezvous.Progress) error) error {
					time.Sleep(tc.takes)
					return apptest.TellAll(tell, apptest.Planned(2), apptest.Ended(apptest.Stopped))
				}})
				err := awaitEnd(t.Context(), a, b, wire.StopRequest{Job: "k3x", Grace: tc.grace})
				if err != nil || o.String() != "job k3x has ended\n" || !strings.Contains(e.String(), tc.want) ||
					tc.want == "" && e.String() != "" {
					t.Errorf("%v, stdout %q, stderr %q", err, o.String(), e.String())
				}
			})
		})
	}
}
