package trust

import (
	"crypto/ecdsa"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func newTestToken(t testing.TB, ca *CA, role Role, uses int) (Token, TokenRecord) {
	t.Helper()
	token, record, err := NewToken(ca.Cert, role, uses, TokenLifetime, start)
	if err != nil {
		t.Fatal(err)
	}
	return token, record
}

func TestTokenRoundTrip(t *testing.T) {
	ca := newCA(t, clusterA)
	token, record := newTestToken(t, ca, RoleNode, 1)
	got, err := ParseToken(" " + token.Reveal() + "\r\n")
	if err != nil {
		t.Fatal(err)
	}
	if got.Pin != PinOf(ca.Cert) || !got.Secret.Equal(token.Secret) || len(token.Secret.Reveal()) != 16 {
		t.Errorf("token changed in print")
	}
	want := TokenRecord{ID: token.ID(), Hash: HashSecret(token.Secret), Role: RoleNode, Uses: 1,
		Expires: start.Add(15 * time.Minute)}
	if diff := cmp.Diff(want, record); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if other, _ := newTestToken(t, ca, RoleNode, 1); other.Secret.Equal(token.Secret) || other.ID() == token.ID() {
		t.Error("two tokens are the same")
	}
}

func TestParseTokenRefusesWithoutQuoting(t *testing.T) {
	token, _ := newTestToken(t, newCA(t, clusterA), RoleNode, 1)
	text := token.Reveal()
	parts := strings.Split(text, ".")
	secret := parts[2]
	// The last of 22 characters carries 2 bits of the secret and 4 spare ones: another spelling of the same bytes.
	spare := text[:len(text)-1] + string("BRhx"[strings.IndexByte("AQgw", text[len(text)-1])])
	for name, tc := range map[string]struct{ text, says string }{
		"empty":             {" \n", "empty"},
		"only the secret":   {secret, "begin with spk1"},
		"secret cut":        {text[:len(text)-3], "third part"},
		"pin cut":           {parts[0] + "." + parts[1][:40] + "." + secret, "second part"},
		"pin lost":          {parts[0] + "." + secret, "2 parts"},
		"later version":     {"spk2" + text[4:], "begin with spk1"},
		"text after it":     {text + ".", "4 parts"},
		"broken line":       {text[:60] + "\n" + text[60:], "do not belong"},
		"spare bits":        {spare, "do not belong"},
		"padding":           {text + "==", "third part"},
		"not base64":        {text[:len(text)-1] + "%", "third part"},
		"space within":      {text[:60] + " " + text[60:], "third part"},
		"a file instead":    {strings.Repeat(text+"\n", 100), "characters"},
		"URL of something":  {"https://spark1/" + text, "begin with spk1"},
		"upper-case prefix": {"SPK1" + text[4:], "begin with spk1"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseToken(tc.text)
			wantErr(t, "parse", err, ErrTokenMalformed)
			if err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("error is %q, want it to say %q", err, tc.says)
			}
			if err != nil && strings.Contains(err.Error(), secret[:8]) {
				t.Errorf("error %q quotes the secret", err)
			}
		})
	}
}

func TestNewTokenRefuses(t *testing.T) {
	ca := newCA(t, clusterA)
	for name, tc := range map[string]struct {
		role     Role
		uses     int
		lifetime time.Duration
	}{
		"unknown role": {"admin", 1, time.Minute},
		"no use":       {RoleNode, 0, time.Minute},
		"no lifetime":  {RoleNode, 1, 0},
	} {
		if _, _, err := NewToken(ca.Cert, tc.role, tc.uses, tc.lifetime, start); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Nothing that holds a token, a secret or a key gives it away, however it is printed, logged or encoded.
func TestSecretsAreNotShown(t *testing.T) {
	ca := newCA(t, clusterA)
	member := newMember(t, ca, node1, "spark1", RoleNode)
	token, record := newTestToken(t, ca, RoleNode, 1)
	_, parseErr := ParseToken(token.Reveal() + "x")
	type hidden struct {
		token  Token
		secret *Secret
		key    Key
	}
	values := map[string]any{
		"token": token, "token pointer": &token, "secret": token.Secret, "secret pointer": &token.Secret,
		"in an exported field":    struct{ Token Token }{token},
		"in an unexported field":  hidden{token, &token.Secret, member.key},
		"pointer to such":         &hidden{token, &token.Secret, member.key},
		"secret value unexported": struct{ s Secret }{token.Secret},
		"secret, two levels down": struct{ a struct{ s Secret } }{struct{ s Secret }{token.Secret}},
		"slice":                   []Token{token}, "map": map[string]Token{"a": token},
		"any":    []any{token, &token, token.Secret},
		"record": record, "CA": ca, "CA value": *ca, "identity": member, "identity value": *member, "key": member.key,
		"gate": newGate(t, member, everyone), "keyring": []Secret{token.Secret},
		"parse error": parseErr, "joined": errors.Join(parseErr),
	}
	var forbidden []string
	for _, b := range [][]byte{token.Secret.Reveal(), privateBytes(t, member.key), privateBytes(t, ca.key)} {
		decimal := strings.Trim(fmt.Sprintf("%d", b[:6]), "[]")
		quoted := fmt.Sprintf("%#v", b[:6])
		forbidden = append(forbidden, base64.RawURLEncoding.EncodeToString(b)[:20],
			base64.RawStdEncoding.EncodeToString(b)[:20],
			hex.EncodeToString(b[:6]), decimal, strings.ReplaceAll(decimal, " ", ","),
			quoted[len("[]byte{"):len(quoted)-1], string(b[:6]))
	}
	// The numbers of a key are printed as one decimal number.
	for _, key := range []*ecdsa.PrivateKey{member.key.value(), ca.key.value()} {
		forbidden = append(forbidden, key.D.String()) //nolint:staticcheck // read, not used
	}

	for name, v := range values {
		var shown strings.Builder
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%c", "%U",
			"%08.3f", "%t", "% x", "%#x"} {
			fmt.Fprintf(&shown, verb+"\n", v)
		}
		for _, h := range []slog.Handler{slog.NewTextHandler(&shown, nil), slog.NewJSONHandler(&shown, nil)} {
			slog.New(h).Info("event", "value", v, slog.Group("g", "value", v))
			slog.New(h).With("value", v).Info("event")
		}
		text, _ := json.Marshal(v)
		shown.Write(text)
		for _, f := range forbidden {
			if strings.Contains(strings.ToLower(shown.String()), strings.ToLower(f)) {
				t.Errorf("%s shows the secret as %q", name, f)
			}
		}
	}
	// What is shown instead says what it is.
	if got, want := fmt.Sprintf("%#v %d %v", token, token, token.Secret),
		fmt.Sprintf("token %[1]s [redacted] token %[1]s [redacted] [redacted]", record.ID); got != want {
		t.Errorf("token and secret print as %q, want %q", got, want)
	}
}

func privateBytes(t *testing.T, k Key) []byte {
	t.Helper()
	b, err := k.value().Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func FuzzParseToken(f *testing.F) {
	f.Add("")
	f.Add("spk1..")
	f.Add("spk1." + strings.Repeat("A", 43) + "." + strings.Repeat("A", 22))
	f.Add("spk1." + strings.Repeat("_", 42) + "8." + strings.Repeat("-", 21) + "w")
	f.Add("spk1." + strings.Repeat("A", 43) + "." + strings.Repeat("A", 21) + "\n")
	f.Fuzz(func(t *testing.T, text string) {
		token, err := ParseToken(text)
		if err != nil {
			if !errors.Is(err, ErrTokenMalformed) || token.Secret.Reveal() != nil {
				t.Fatalf("error %v is untyped or came with a token", err)
			}
			return
		}
		if got := token.Reveal(); got != strings.TrimSpace(text) {
			t.Fatalf("a token has two spellings: %q and %q", text, got)
		}
		if len(token.Secret.Reveal()) != secretBytes {
			t.Fatalf("secret has %d bytes", len(token.Secret.Reveal()))
		}
	})
}
