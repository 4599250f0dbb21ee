package trust

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// sealInfo separates the sealing keys from every other use of a gossip key (RFC 5869, section 3.2).
const sealInfo = "sparkrun job secrets v1"

// sealVersion is the first byte of each box; the nonce and the AES-256-GCM text follow.
const sealVersion = 1

// ErrSealed: a box was not sealed with any key that this node has, or is bound to other words.
var ErrSealed = errors.New("it does not open here")

// Sealer seals what may be in the record but only members may read. Its keys are derived from the gossip keys,
// which every member has and the record never: a node that joins later can open what was sealed before; a removed
// node cannot open what is sealed after these keys have changed. Members keep former keys for the jobs that need
// them.
type Sealer struct{ keys []cipher.AEAD } // the first one seals

// NewSealer takes a keyring as LoadGossipKeys gives it, and the retired keys, which only open.
func NewSealer(keyring Keyring, retired Retired) (Sealer, error) {
	if len(keyring) == 0 {
		return Sealer{}, errors.New("make sealer: no key")
	}
	var s Sealer
	for _, k := range slices.Concat(keyring, Keyring(retired)) {
		key, err := hkdf.Key(sha256.New, k.Secret.Reveal(), nil, sealInfo, 32)
		if err != nil {
			return Sealer{}, fmt.Errorf("make sealer: %w", err)
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return Sealer{}, fmt.Errorf("make sealer: %w", err)
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return Sealer{}, fmt.Errorf("make sealer: %w", err)
		}
		s.keys = append(s.keys, aead)
	}
	return s, nil
}

// LoadSealer uses the keys that are in a member's folder.
func LoadSealer(dir string) (Sealer, error) {
	keyring, err := LoadGossipKeys(dir)
	if err != nil {
		return Sealer{}, err
	}
	retired, err := LoadRetired(dir)
	if err != nil {
		return Sealer{}, err
	}
	return NewSealer(keyring, retired)
}

// Seal gives a box that opens only with the same words, which say whose it is and what
// for.
func (s Sealer) Seal(plain Secret, words ...string) ([]byte, error) {
	bound, err := json.Marshal(words)
	if err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return s.keys[0].Seal([]byte{sealVersion}, nil, plain.Reveal(), bound), nil
}

// Open gives what was sealed, or ErrSealed.
func (s Sealer) Open(box []byte, words ...string) (Secret, error) {
	bound, err := json.Marshal(words)
	if err != nil {
		return Secret{}, fmt.Errorf("open what was sealed: %w", err)
	}
	if len(box) == 0 || box[0] != sealVersion {
		return Secret{}, fmt.Errorf("open what was sealed: %w: another version of sparkrun sealed it", ErrSealed)
	}
	for _, k := range s.keys {
		if plain, err := k.Open(nil, nil, box[1:], bound); err == nil {
			return NewSecret(plain), nil
		}
	}
	return Secret{}, fmt.Errorf("open what was sealed: %w", ErrSealed)
}

func (s Sealer) opens(b Sealed) bool {
	_, err := s.Open(b.Box, b.Words...)
	return err == nil
}
