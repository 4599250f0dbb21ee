package help

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAlign(t *testing.T) {
	in := "# T\n\n| a | what |\n|---|---|\n| a longer é | |\n\n```\n| as | is|\n```\n| last | row |\n"
	want := "# T\n\n| a          | what |\n|------------|------|\n| a longer é |      |\n\n```\n| as | is|\n```\n| last | row |\n"
	if diff := cmp.Diff(want, align(in)); diff != "" {
		t.Error(diff)
	}
}
