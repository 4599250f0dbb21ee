package shim

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A second has one stamp at most, a month as many as are quickly read; what was
// written says when its bytes came.
func TestStamps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rank-0.out")
	s := stamper{path: path}
	t0 := time.UnixMilli(1_700_000_000_000)
	for i := range 40 { // ten seconds, four writes in each
		s.mark(t0.Add(time.Duration(i)*250*time.Millisecond), int64(i))
	}
	got, err := ReadStamps(path, 0)
	must(t, err)
	var want []Stamp
	for i := range 10 {
		want = append(want, Stamp{t0.Add(time.Duration(i) * time.Second), int64(4 * i)})
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for i := range 30 * 24 * 60 { // a month, a write each minute
		s.mark(t0.Add(time.Duration(i)*time.Minute), int64(100+i))
	}
	if n := s.count; n < 10_000 || n > 40_000 {
		t.Errorf("%d stamps of a month", n)
	}
	if got, err := ReadStamps(path, 10); len(got) != int(s.count)-10 || err != nil {
		t.Errorf("but for ten: %d of %d, %v", len(got), s.count, err)
	}
	if got, err := ReadStamps(path+".other", 0); got != nil || err != nil {
		t.Errorf("of nothing: %v, %v", got, err)
	}
}
