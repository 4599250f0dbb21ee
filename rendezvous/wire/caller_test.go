package wire

import (
	"errors"
	"testing"
)

// Only root may run ranks as somebody else, whatever a message asks for.
func TestRunsAs(t *testing.T) {
	root, ada := Caller{User: &User{Name: "root"}}, Caller{User: &User{Name: "ada", UID: 1001}}
	for _, tc := range []struct {
		c            Caller
		wanted, want string
		err          error
	}{
		{ada, "", "ada", nil}, {ada, "ada", "ada", nil}, {ada, "root", "", ErrDenied}, {ada, "bea", "", ErrDenied},
		{root, "", "root", nil}, {root, "ada", "ada", nil},
	} {
		if got, err := tc.c.RunsAs(tc.wanted); got != tc.want || !errors.Is(err, tc.err) {
			t.Errorf("%s as %q: %q, %v", tc.c.User.Name, tc.wanted, got, err)
		}
	}
}
