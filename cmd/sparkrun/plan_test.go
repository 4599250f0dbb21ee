package main

import (
	"errors"
	"io"
	"syscall"
	"testing"
)

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// Half a plan is none.
func TestPlanOnAFullDisk(t *testing.T) {
	a := &app{out: fullDisk{}, err: io.Discard}
	if err := a.showPlan(recipePlan{Recipe: "r"}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a plan that could not be written: %v", err)
	}
}
