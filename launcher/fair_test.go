package launcher

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBeyond(t *testing.T) {
	for name, tc := range map[string]struct {
		items string // a user's letter each, oldest first; a capital one has five times the size
		room  int64
		want  string // their places
	}{
		"nothing there":                    {"", 0, ""},
		"all fit":                          {"aba", 3, ""},
		"one's oldest":                     {"aaaa", 3, "0"},
		"many of one leave others' alone":  {"baaaa", 2, "123"},
		"then each loses the same":         {"bbbaaaaa", 4, "3405"},
		"one too large is not for others":  {"baA", 6, "1"},
		"nor is one that alone is too big": {"bbA", 3, "2"},
		"no room":                          {"ba", 0, "01"},
	} {
		var items []int
		for i := range tc.items {
			items = append(items, i)
		}
		owner := func(i int) string { return strings.ToLower(tc.items[i : i+1]) }
		size := func(i int) int64 {
			if tc.items[i] <= 'Z' {
				return 5
			}
			return 1
		}
		got := ""
		for _, i := range Beyond(items, tc.room, owner, size) {
			got += string(rune('0' + i))
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s (-want +got): %s", name, d)
		}
	}
}
