package app

import (
	"slices"
	"testing"
)

func TestRankListFlag(t *testing.T) {
	for text, want := range map[string][]int{"3": {3}, "0,4": {0, 4}, "0-2,7": {0, 1, 2, 7}, "65535": {65535}} {
		var got []int
		if err := (RankList{&got}).Set(text); err != nil || !slices.Equal(got, want) {
			t.Errorf("--rank %s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "2-0", "a", "0-", "65536", "0,,1"} {
		if err := (RankList{new([]int)}).Set(text); err == nil {
			t.Errorf("--rank %s is taken", text)
		}
	}
}
