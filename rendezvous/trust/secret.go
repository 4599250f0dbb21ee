package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// sealed holds a value that no formatter, logger or encoder shows. Methods alone are not enough: fmt calls none on
// an unexported field of a struct, and follows a pointer there when the verb does not fit. Of a func it prints only
// the address. A func also makes == a compile error, so that nobody compares secrets in a time that depends on
// them.
type sealed[T any] struct{ open func() T }

func seal[T any](v T) sealed[T] { return sealed[T]{func() T { return v }} }

// value is the zero T for the zero sealed.
func (s sealed[T]) value() (v T) {
	if s.open != nil {
		v = s.open()
	}
	return v
}

// Format prints the placeholder for every verb of fmt.
func (sealed[T]) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue is the placeholder for slog.
func (sealed[T]) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText is the placeholder for JSON and other encoders, for a field of something that is logged.
func (sealed[T]) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Secret is bytes that only Reveal shows: half a token, a gossip key. Encoders write "[redacted]" for it: to send
// or store it, use Reveal.
type Secret struct{ sealed[[]byte] }

// NewSecret keeps b, which the caller must not change afterwards.
func NewSecret(b []byte) Secret { return Secret{seal(b)} }

func randomSecret(n int) Secret {
	b := make([]byte, n)
	rand.Read(b) // never returns an error: it would end the process instead
	return NewSecret(b)
}

// Reveal returns the bytes, nil for the zero Secret; for the wire, the disk and memberlist only.
func (s Secret) Reveal() []byte { return s.value() }

// Equal takes the same time whatever differs.
func (s Secret) Equal(o Secret) bool { return subtle.ConstantTimeCompare(s.Reveal(), o.Reveal()) == 1 }

// Key is an ECDSA P-256 private key. It is never shown; it can only be saved.
type Key struct{ sealed[*ecdsa.PrivateKey] }

// NewKey makes a key. A key never leaves the machine that made it, except a CA's ([CA.MarshalPEM]).
func NewKey() (Key, error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("make key: %w", err)
	}
	return Key{seal(k)}, nil
}
