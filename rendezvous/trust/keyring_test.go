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

func numbers(r Keyring) string {
	var out []string
	for _, k := range r {
		out = append(out, fmt.Sprint(k.Number))
	}
	return strings.Join(out, " ")
}

func TestRingSteps(t *testing.T) {
	keyring := Keyring{NewGossipKey(3)}
	if same, changed := keyring.Step(3); changed || !same.Equal(keyring) {
		t.Errorf("nobody was removed: %s", numbers(same))
	}
	var got []string
	for changed := true; changed; {
		if keyring, changed = keyring.Step(5); changed {
			got = append(got, numbers(keyring))
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
		own, other, want Keyring
		changed          bool
	}{
		"the same":                           {Keyring{a}, Keyring{a}, Keyring{a}, false},
		"an older one":                       {Keyring{b}, Keyring{a}, Keyring{b}, false},
		"a newer one":                        {Keyring{a}, Keyring{b}, Keyring{b, a}, true},
		"one that is being brought in":       {Keyring{a}, Keyring{a, b}, Keyring{b, a}, true},
		"known, and ahead by a step":         {Keyring{a, b}, Keyring{b, a}, Keyring{a, b}, false},
		"two leaders made one of one number": {Keyring{b}, Keyring{c}, Keyring{c, b}, true},
		"and the other hears of it":          {Keyring{c}, Keyring{b}, Keyring{c}, false},
		"nothing":                            {Keyring{a}, nil, Keyring{a}, false},
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
		first := Keyring{NewGossipKey(0)}
		keyrings := make([]Keyring, members)
		for i := range keyrings {
			keyrings[i] = first
		}
		leader := 0
		// tell has a member take the leader's keyring, as cmd/node does.
		tell := func(i int) (acked bool) {
			if _, newer := keyrings[leader].Merge(keyrings[i]); !newer {
				keyrings[i] = keyrings[leader]
				return true
			}
			keyrings[leader], _ = keyrings[leader].Merge(keyrings[i])
			return false
		}
		steady := true // no leader has died in the middle: the promise holds step by step
		for range rapid.IntRange(0, 20).Draw(t, "passes") {
			acked := 0
			for i := range keyrings {
				if rapid.Bool().Draw(t, "reached") && tell(i) {
					acked++
				}
			}
			if acked == members {
				keyrings[leader], _ = keyrings[leader].Step(removals)
			}
			if rapid.IntRange(0, 9).Draw(t, "dies") == 0 {
				leader, steady = rapid.IntRange(0, members-1).Draw(t, "leader"), false
			}
			for i := range keyrings {
				for j := range keyrings {
					if steady && !keyrings[j].has(keyrings[i][0]) {
						t.Fatalf("member %d encrypts with what %d cannot read: %s, %s", i, j, numbers(keyrings[i]), numbers(keyrings[j]))
					}
				}
			}
		}
		for range 10 {
			all := true
			for i := range keyrings {
				all = tell(i) && all
			}
			if all {
				keyrings[leader], _ = keyrings[leader].Step(removals)
			}
		}
		for i := range keyrings {
			if len(keyrings[i]) != 1 || keyrings[i][0].Number != removals || !keyrings[i].Equal(keyrings[0]) {
				t.Fatalf("member %d ends with %s", i, numbers(keyrings[i]))
			}
		}
	})
}

// A keyring of before keys had numbers is read, as of number 0.
func TestOldRingIsRead(t *testing.T) {
	dir := t.TempDir()
	key := NewGossipKey(0)
	if err := SaveGossipKeys(dir, Keyring{key}); err != nil {
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
	if got, err := LoadGossipKeys(dir); err != nil || !got.Equal(Keyring{key}) {
		t.Errorf("keyring %s, %v", numbers(got), err)
	}
}
