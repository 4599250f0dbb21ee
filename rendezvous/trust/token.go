package trust

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// ErrTokenMalformed: the text is not a token, or not a whole one. Whether a token may be used, the record says.
var ErrTokenMalformed = errors.New("not a sparkrun token")

const (
	// TokenLifetime is the default time in which a token must be used.
	TokenLifetime = 15 * time.Minute

	tokenPrefix = "spk1" // the number is the format's version
	secretBytes = 16
	maxToken    = 256 // bytes of text that are read; a token has 71
)

// Token is an invitation: whom to trust (Pin) and the proof of being invited (Secret). Printed or logged it shows
// only its ID.
type Token struct {
	Pin    Pin
	Secret Secret
}

// TokenRecord is what the cluster keeps of a token. Nothing in it helps to join: the secret has 128 random bits, so
// it cannot be found from its hash.
type TokenRecord struct {
	ID      string    `json:"id"`      // [TokenID]; for audit lines, `token ls`, and as the key
	Hash    string    `json:"hash"`    // [HashSecret]
	Role    Role      `json:"role"`    // what it admits
	Uses    int       `json:"uses"`    // joins still allowed; each join subtracts 1
	Expires time.Time `json:"expires"` // from this moment on it is refused
}

// NewToken makes a token for uses (at least 1) joins within lifetime (above 0) and the record that recognises it.
func NewToken(ca *x509.Certificate, role Role, uses int, lifetime time.Duration, now time.Time) (Token, TokenRecord,
	error) {
	switch {
	case role != RoleNode && role != RoleClient && role != RoleWitness:
		return Token{}, TokenRecord{}, fmt.Errorf("make token: role %q is not known: want node, witness or client", role)
	case uses < 1:
		return Token{}, TokenRecord{}, fmt.Errorf("make token: uses %d is below 1", uses)
	case lifetime <= 0:
		return Token{}, TokenRecord{}, fmt.Errorf("make token: lifetime %s is not above 0", lifetime)
	}
	t := Token{Pin: PinOf(ca), Secret: randomSecret(secretBytes)}
	return t, TokenRecord{ID: t.ID(), Hash: HashSecret(t.Secret), Role: role, Uses: uses, Expires: now.Add(lifetime)}, nil
}

// ParseToken reads a token; white space around it is allowed. Errors wrap ErrTokenMalformed and quote nothing of the
// text.
func ParseToken(text string) (Token, error) {
	malformed := func(why string) (Token, error) {
		return Token{}, fmt.Errorf("%w: %s: copy the whole line that `sparkrun token create` printed", ErrTokenMalformed, why)
	}
	text = strings.TrimSpace(text)
	if text == "" {
		return malformed("it is empty")
	}
	if len(text) > maxToken {
		return malformed(fmt.Sprintf("it has %d characters", len(text)))
	}
	parts := strings.Split(text, ".")
	if parts[0] != tokenPrefix {
		return malformed("it does not begin with " + tokenPrefix + ".")
	}
	if len(parts) != 3 {
		return malformed(fmt.Sprintf("it has %d parts, want 3", len(parts)))
	}
	pin, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || len(pin) != len(Pin{}) {
		return malformed("its second part is damaged")
	}
	secret, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil || len(secret) != secretBytes {
		return malformed("its third part is damaged")
	}
	t := Token{Pin: Pin(pin), Secret: NewSecret(secret)}
	// The decoder skips line breaks and ignores spare bits, but a token must have only one spelling.
	if subtle.ConstantTimeCompare([]byte(t.Reveal()), []byte(text)) != 1 {
		return malformed("it has characters that do not belong")
	}
	return t, nil
}

// Reveal is the token's text, spk1.PIN.SECRET, to be shown once to the person who asked for it.
func (t Token) Reveal() string {
	return tokenPrefix + "." + t.Pin.String() + "." + base64.RawURLEncoding.EncodeToString(t.Secret.Reveal())
}

// ID names the token without revealing it.
func (t Token) ID() string { return TokenID(t.Secret) }

// String is for display: the ID, never the secret.
func (t Token) String() string { return "token " + t.ID() + " " + redacted }

// Format prints String for every verb of fmt.
func (t Token) Format(f fmt.State, _ rune) { fmt.Fprint(f, t.String()) }

// LogValue is the ID, for slog.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.ID()) }

// MarshalText is String for JSON and other encoders, for a field of something that is logged.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// HashSecret is what is kept of a token's secret: SHA-256 in hex, prefixed so that it means nothing elsewhere.
func HashSecret(s Secret) string {
	sum := sha256.Sum256(append([]byte("sparkrun token secret\x00"), s.Reveal()...))
	return hex.EncodeToString(sum[:])
}

// TokenID is the first 48 bits of the hash, in hex: enough to tell tokens apart, useless for joining.
func TokenID(s Secret) string { return HashSecret(s)[:12] }
