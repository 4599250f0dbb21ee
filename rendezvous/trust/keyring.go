package trust

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// GossipKey is one of memberlist's keys, 32 bytes. Its number says how many members had been removed from the
// cluster when it was made: if it is lower than the current count, a removed member knows the key.
type GossipKey struct {
	Number uint64
	Secret
}

// NewGossipKey makes a key.
func NewGossipKey(number uint64) GossipKey { return GossipKey{number, randomSecret(gossipKeyBytes)} }

// compare orders keys by age. Two leaders that were cut off from each other may have made keys with the same
// number.
func (k GossipKey) compare(o GossipKey) int {
	return cmp.Or(cmp.Compare(k.Number, o.Number), bytes.Compare(k.Reveal(), o.Reveal()))
}

// Keyring is a node's gossip keys: the first encrypts, all decrypt. There is more than one only while keys are rotated.
type Keyring []GossipKey

// Newest is the newest key of a keyring that is not empty.
func (r Keyring) Newest() GossipKey { return slices.MaxFunc(r, GossipKey.compare) }

// Equal tells whether the keys and their order are the same.
func (r Keyring) Equal(o Keyring) bool {
	return slices.EqualFunc(r, o, func(a, b GossipKey) bool { return a.Number == b.Number && a.Secret.Equal(b.Secret) })
}

func (r Keyring) has(k GossipKey) bool {
	return slices.ContainsFunc(r, func(o GossipKey) bool { return o.Secret.Equal(k.Secret) })
}

// Step gives the next keyring on the way to a single key that no removed member knows; false: this one is there
// already. Each step may be taken only when every member that is up has acknowledged the one before: the key that
// one member encrypts with, all others must have.
func (r Keyring) Step(removals uint64) (Keyring, bool) {
	newest := r.Newest()
	switch {
	case newest.Number < removals:
		return append(slices.Clone(r), NewGossipKey(removals)), true // add: it decrypts
	case !r[0].Secret.Equal(newest.Secret):
		rest := slices.DeleteFunc(slices.Clone(r), func(k GossipKey) bool { return k.Secret.Equal(newest.Secret) })
		return append(Keyring{newest}, rest...), true // use
	case len(r) > 1:
		return Keyring{newest}, true // remove
	}
	return r, false
}

// Merge adds newer keys of another keyring: a rotation that an earlier leader had begun. The old key does not
// encrypt any more once a newer one is known.
func (r Keyring) Merge(o Keyring) (Keyring, bool) {
	if len(o) == 0 || r.has(o.Newest()) || o.Newest().compare(r.Newest()) < 0 {
		return r, false
	}
	out := slices.Clone(r)
	for _, k := range o {
		if !out.has(k) {
			out = append(out, k)
		}
	}
	slices.SortStableFunc(out, func(a, b GossipKey) int { return b.compare(a) })
	return out, true
}

// Keys are the raw bytes, for memberlist.
func (r Keyring) Keys() [][]byte {
	out := make([][]byte, len(r))
	for i, k := range r {
		out[i] = k.Reveal()
	}
	return out
}

// Check returns an error for a keyring that cannot be used.
func (r Keyring) Check() error {
	if len(r) == 0 {
		return errors.New("the list is empty")
	}
	for i, k := range r {
		if n := len(k.Reveal()); n != gossipKeyBytes {
			return fmt.Errorf("key %d has %d bytes, want %d", i, n, gossipKeyBytes)
		}
	}
	return nil
}

// Without is the keys of r that are not in o.
func (r Keyring) Without(o Keyring) Keyring {
	return slices.DeleteFunc(slices.Clone(r), o.has)
}

// keyOnDisk is a key in gossip.json and retired.json; []byte is base64 in JSON.
type keyOnDisk struct {
	Number uint64 `json:"number"`
	Key    []byte `json:"key"`
}

// SaveGossipKeys writes the keyring.
func SaveGossipKeys(dir string, keyring Keyring) error {
	if err := keyring.Check(); err != nil {
		return fmt.Errorf("save gossip keys: %w", err)
	}
	if err := saveKeys(dir, gossipFile, keyring); err != nil {
		return fmt.Errorf("save gossip keys: %w", err)
	}
	return nil
}

func saveKeys(dir, file string, keyring Keyring) error {
	keys := make([]keyOnDisk, len(keyring))
	for i, k := range keyring {
		keys[i] = keyOnDisk{k.Number, k.Reveal()}
	}
	text, err := json.Marshal(keys)
	if err != nil {
		return err
	}
	return writeFile(dir, file, append(text, '\n'))
}

// LoadGossipKeys returns a keyring of at least one key.
func LoadGossipKeys(dir string) (Keyring, error) {
	keyring, err := loadKeys(dir, gossipFile)
	if err == nil {
		err = keyring.Check()
	}
	if err != nil {
		return nil, fmt.Errorf("load gossip keys %s: %w", filepath.Join(dir, gossipFile), err)
	}
	return keyring, nil
}

func loadKeys(dir, file string) (Keyring, error) {
	text, err := readFile(filepath.Join(dir, file))
	if err != nil {
		return nil, err
	}
	var keys []keyOnDisk
	if json.Unmarshal(text, &keys) != nil { // its error text could quote a key
		var old [][]byte // the format before keys had numbers
		keys = nil
		if json.Unmarshal(text, &old) != nil {
			return nil, errors.New("it is not a JSON list of keys")
		}
		for _, k := range old {
			keys = append(keys, keyOnDisk{Key: k})
		}
	}
	keyring := make(Keyring, len(keys))
	for i, k := range keys {
		keyring[i] = GossipKey{k.Number, NewSecret(k.Key)}
	}
	return keyring, nil
}
