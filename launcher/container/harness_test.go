package container

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sparkrun/sparkrun/launcher/container/enginetest"
)

// patience is how long a test waits for what has to happen.
const patience = 90 * time.Second

// rig is the engine that the tests share.
type rig struct{ *enginetest.Engine }

var theRig = sync.OnceValues(enginetest.New)

func TestMain(m *testing.M) {
	code := m.Run()
	if rigWanted {
		if e, err := theRig(); err == nil {
			if err := e.Close(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = 1
			}
		}
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var rigWanted bool // no test runs beside another

// open gives the engine, and a connection to it.
func open(t *testing.T) (rig, *Engine) {
	t.Helper()
	rigWanted = true
	r, err := theRig()
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(t.Context(), r.Socket)
	if err != nil {
		t.Fatal(err)
	}
	return rig{r}, e
}
