package trust

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/sparkrun/sparkrun/launcher"
)

// Retired are former gossip keys, the latest first. They only open what was sealed with them, for further attempts
// of jobs: nothing is sealed with them any more, and gossip does not accept them.
type Retired Keyring

// Add adds more retired keys.
func (r Retired) Add(more Keyring) Retired {
	out := append(Keyring(slices.Clone(r)), more.Without(Keyring(r))...)
	slices.SortStableFunc(out, func(a, b GossipKey) int { return b.compare(a) })
	return Retired(out)
}

// Equal tells whether the keys are the same.
func (r Retired) Equal(o Retired) bool { return Keyring(r).Equal(Keyring(o)) }

// Sealed is a sealed box and the words that it is bound to.
type Sealed struct {
	Box   []byte
	Words []string
}

// SecretWords are the words that a job's secret is bound to: in the spec of another job or user the same box does
// not open.
func SecretWords(job launcher.JobID, user, name string) []string {
	return []string{string(job), user, name}
}

// SealedIn lists the sealed secrets of jobs.
func SealedIn(specs []launcher.Spec) (out []Sealed) {
	for _, s := range specs {
		for _, x := range s.Secrets {
			out = append(out, Sealed{Box: x.Box, Words: SecretWords(s.ID, s.User, x.Name)})
		}
	}
	return out
}

// Keep drops the keys that none of the boxes needs, except the latest: somebody may have sealed with it just now.
// It is false if a box opens with none of these keys and none of the keyring's: then a key is missing here, and
// other nodes cannot be told which keys to drop.
func (r Retired) Keep(keyring Keyring, boxes []Sealed) (Retired, bool, error) {
	used := make([]bool, len(r))
	all := true
	for i := range r {
		used[i] = i == 0
	}
	current, err := NewSealer(keyring, nil)
	if err != nil {
		return nil, false, err
	}
	old := make([]Sealer, len(r))
	for i, k := range r {
		if old[i], err = NewSealer(Keyring{k}, nil); err != nil {
			return nil, false, err
		}
	}
	for _, b := range boxes {
		if current.opens(b) {
			continue
		}
		i := slices.IndexFunc(old, func(s Sealer) bool { return s.opens(b) })
		if i < 0 {
			all = false
			continue
		}
		used[i] = true
	}
	var out Retired
	for i, k := range r {
		if used[i] {
			out = append(out, k)
		}
	}
	return out, all, nil
}

// SaveRetired writes them.
func SaveRetired(dir string, r Retired) error {
	err := Keyring(r).Check()
	if len(r) == 0 {
		err = nil
	}
	if err == nil {
		err = saveKeys(dir, retiredFile, Keyring(r))
	}
	if err != nil {
		return fmt.Errorf("save retired keys: %w", err)
	}
	return nil
}

// LoadRetired returns none if there is no file: no key has been rotated yet.
func LoadRetired(dir string) (Retired, error) {
	keyring, err := loadKeys(dir, retiredFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && len(keyring) > 0 {
		err = keyring.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("load retired keys %s: %w", filepath.Join(dir, retiredFile), err)
	}
	return Retired(keyring), nil
}
