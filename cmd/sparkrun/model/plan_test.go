package model

import (
	"errors"
	"io"
	"syscall"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
)

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Half a plan is none.
func TestPlanOnAFullDisk(t *testing.T) {
	a := &app.App{Out: fullDisk{}, Err: io.Discard}
	if err := showPlan(a, recipePlan{Recipe: "r"}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a plan that could not be written: %v", err)
	}
}
