package trust

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func numbers(r Ring) string {
	var out []string
	for _, k := range r {
		out = append(out, fmt.Sprint(k.Number))
	}
	return strings.Join(out, " ")
}

func TestRingSteps(t *testing.T) {
	ring := Ring{NewGossipKey(3)}
	if same, changed := ring.Step(3); changed || !same.Equal(ring) {
		t.Errorf("nobody was removed: %s", numbers(same))
	}
	var got []string
	for changed := true; changed; {
		if ring, changed = ring.Step(5); changed {
			got = append(got, numbers(ring))
		}
	}
	if diff := cmp.Diff([]string{"3 5", "5 3", "5"}, got); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestRingMerge(t *testing.T) {
	a, b, c := NewGossipKey(1), NewGossipKey(2), NewGossipKey(2)
	if b.compare(c) > 0 {
		b, c = c, b
	}
	for name, tc := range map[string]struct {
		own, other, want Ring
		changed          bool
	}{
		"the same":                           {Ring{a}, Ring{a}, Ring{a}, false},
		"an older one":                       {Ring{b}, Ring{a}, Ring{b}, false},
		"a newer one":                        {Ring{a}, Ring{b}, Ring{b, a}, true},
		"one that is being brought in":       {Ring{a}, Ring{a, b}, Ring{b, a}, true},
		"known, and ahead by a step":         {Ring{a, b}, Ring{b, a}, Ring{a, b}, false},
		"two leaders made one of one number": {Ring{b}, Ring{c}, Ring{c, b}, true},
		"and the other hears of it":          {Ring{c}, Ring{b}, Ring{c}, false},
		"nothing":                            {Ring{a}, nil, Ring{a}, false},
	} {
		if got, changed := tc.own.Merge(tc.other); changed != tc.changed || !got.Equal(tc.want) {
			t.Errorf("%s: %s, changed %v", name, numbers(got), changed)
		}
	}
}

// Whatever leaders come and go, and whoever is told when: nobody ever encrypts with a key that a member which
// acknowledges every step lacks, and in the end all have one key alone.
func TestRotationNeverLosesAMember(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const members, removals = 4, 2
		first := Ring{NewGossipKey(0)}
		rings := make([]Ring, members)
		for i := range rings {
			rings[i] = first
		}
		leader := 0
		// tell has a member take the leader's ring, as cmd/node does.
		tell := func(i int) (acked bool) {
			if _, newer := rings[leader].Merge(rings[i]); !newer {
				rings[i] = rings[leader]
				return true
			}
			rings[leader], _ = rings[leader].Merge(rings[i])
			return false
		}
		steady := true // no leader has died in the middle: the promise holds step by step
		for range rapid.IntRange(0, 20).Draw(t, "passes") {
			acked := 0
			for i := range rings {
				if rapid.Bool().Draw(t, "reached") && tell(i) {
					acked++
				}
			}
			if acked == members {
				rings[leader], _ = rings[leader].Step(removals)
			}
			if rapid.IntRange(0, 9).Draw(t, "dies") == 0 {
				leader, steady = rapid.IntRange(0, members-1).Draw(t, "leader"), false
			}
			for i := range rings {
				for j := range rings {
					if steady && !rings[j].has(rings[i][0]) {
						t.Fatalf("member %d encrypts with what %d cannot read: %s, %s", i, j, numbers(rings[i]), numbers(rings[j]))
					}
				}
			}
		}
		for range 10 {
			all := true
			for i := range rings {
				all = tell(i) && all
			}
			if all {
				rings[leader], _ = rings[leader].Step(removals)
			}
		}
		for i := range rings {
			if len(rings[i]) != 1 || rings[i][0].Number != removals || !rings[i].Equal(rings[0]) {
				t.Fatalf("member %d ends with %s", i, numbers(rings[i]))
			}
		}
	})
}

// A ring of before keys had numbers is read, as of number 0.
func TestOldRingIsRead(t *testing.T) {
	dir := t.TempDir()
	key := NewGossipKey(0)
	if err := SaveGossipKeys(dir, Ring{key}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, gossipFile))
	if err != nil {
		t.Fatal(err)
	}
	encoded := strings.Split(string(text), `"`)
	old := `["` + encoded[len(encoded)-2] + `"]`
	if err := os.WriteFile(filepath.Join(dir, gossipFile), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := LoadGossipKeys(dir); err != nil || !got.Equal(Ring{key}) {
		t.Errorf("ring %s, %v", numbers(got), err)
	}
}
