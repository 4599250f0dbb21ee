package bootstrap

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

// secrets are the passwords and passphrases of one run, in memory only. Each is asked for
// once and then used for all hosts.
type secrets struct {
	given *string
	ask   *Ask
	mu    *sync.Mutex // shared with hostKeys: questions do not overlap
	has   map[string]string
	many  bool // there is more than one host
}

var errWrongPassword = errors.New("the password is wrong")

// password gives a user's password; what says what it is for. wrong is one that this host
// refused; nil for the first attempt.
func (s *secrets) password(ctx context.Context, user, host, what string, wrong *string) (string, error) {
	if s.given != nil {
		if wrong != nil {
			return "", errWrongPassword
		}
		return *s.given, nil
	}
	others := ""
	if s.many {
		others = " (and tried on the other hosts)"
	}
	return s.get(ctx, "password of "+user, fmt.Sprintf("password of %s on %s, %s%s: ", user, host, what, others), wrong)
}

func (s *secrets) get(ctx context.Context, name, prompt string, wrong *string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v, ok := s.has[name]; ok && (wrong == nil || v != *wrong) {
		return v, nil
	}
	if s.ask == nil {
		if wrong != nil {
			return "", errWrongPassword
		}
		return "", fmt.Errorf("the %s: %w (--password-file gives it)", name, ErrNobodyToAsk)
	}
	if wrong != nil { // else it would look as if nothing had been typed
		prompt = "that was wrong; " + prompt
	}
	v, err := s.ask.Secret(ctx, prompt)
	if err != nil {
		return "", err
	}
	s.has[name] = v
	return v, nil
}

// auth is how we authenticate: keys first, then a password.
func (s *secrets) auth(ctx context.Context, e endpoint, thinking func() (done func())) (methods []ssh.AuthMethod,
	closeAgent func()) {
	var held agent.ExtendedAgent
	closeAgent = func() {}
	if e.agent != "" {
		if c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "unix", e.agent); err == nil {
			held, closeAgent = agent.NewClient(c), func() { c.Close() }
		}
	}
	password := func() func() (string, error) {
		var last *string
		return func() (string, error) {
			defer thinking()()
			p, err := s.password(ctx, e.user, e.shown(), "to log in", last)
			last = &p
			return p, err
		}
	}
	plain, asked := password(), password()
	// x/crypto uses each kind of method once: all keys must be in one.
	return []ssh.AuthMethod{
		ssh.PublicKeysCallback(func() ([]ssh.Signer, error) { return s.signers(ctx, e, held, thinking), nil }),
		ssh.RetryableAuthMethod(ssh.PasswordCallback(plain), 3),
		ssh.RetryableAuthMethod(ssh.KeyboardInteractive(func(_, _ string, questions []string, echos []bool) ([]string,
			error) {
			answers := make([]string, len(questions))
			for i := range questions {
				if echos[i] {
					return nil, fmt.Errorf("the host asks %q, and not for a password", questions[i])
				}
				var err error
				if answers[i], err = asked(); err != nil {
					return nil, err
				}
			}
			return answers, nil
		}), 3),
	}, closeAgent
}

// signers are the keys to offer: first those that were named, then the others of the agent.
// A server disconnects after some six, so the likely ones come first.
func (s *secrets) signers(ctx context.Context, e endpoint, held agent.ExtendedAgent,
	thinking func() func()) []ssh.Signer {
	var inAgent, out []ssh.Signer
	if held != nil {
		inAgent, _ = held.Signers() // an agent that is locked or gone gives none
	}
	has := func(key ssh.PublicKey) ssh.Signer {
		for _, a := range inAgent {
			if bytes.Equal(a.PublicKey().Marshal(), key.Marshal()) {
				return a
			}
		}
		return nil
	}
	for _, path := range e.identities {
		k, err := s.file(ctx, path, thinking)
		if err != nil { // most default keys do not exist; of some only the agent has the private half
			if public, err := publicOf(path); err == nil {
				k = has(public)
			}
		} else if a := has(k.PublicKey()); a != nil {
			k = a
		}
		if k != nil {
			out = append(out, k)
		}
	}
	if e.only {
		return out
	}
	for _, a := range inAgent {
		double := false
		for _, k := range out {
			double = double || bytes.Equal(a.PublicKey().Marshal(), k.PublicKey().Marshal())
		}
		if !double {
			out = append(out, a)
		}
	}
	return out
}

// file reads a private key. The passphrase of one is asked for only when the host has said
// that it would take that key.
func (s *secrets) file(ctx context.Context, path string, thinking func() func()) (ssh.Signer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	k, err := ssh.ParsePrivateKey(text)
	var locked *ssh.PassphraseMissingError
	if !errors.As(err, &locked) {
		return k, err
	}
	public := locked.PublicKey
	if public == nil { // an old PEM key: its public half lies beside it
		if public, err = publicOf(path); err != nil {
			return nil, err
		}
	}
	return &lockedKey{ctx: ctx, secrets: s, path: path, text: text, public: public, thinking: thinking}, nil
}

// publicOf reads the public half that lies beside a private key.
func publicOf(path string) (ssh.PublicKey, error) {
	text, err := os.ReadFile(strings.TrimSuffix(path, ".pub") + ".pub")
	if err != nil {
		return nil, err
	}
	public, _, _, _, err := ssh.ParseAuthorizedKey(text)
	return public, err
}

type lockedKey struct {
	ctx      context.Context //nolint:containedctx // ssh.Signer's methods take none, and asking must end with the run
	secrets  *secrets
	path     string
	text     []byte
	public   ssh.PublicKey
	thinking func() func()
}

func (k *lockedKey) PublicKey() ssh.PublicKey { return k.public }

func (k *lockedKey) Sign(r io.Reader, data []byte) (*ssh.Signature, error) {
	return k.SignWithAlgorithm(r, data, "")
}

// SignWithAlgorithm is what RSA keys need: ssh-rsa alone means SHA-1, which servers refuse.
func (k *lockedKey) SignWithAlgorithm(_ io.Reader, data []byte, algorithm string) (*ssh.Signature, error) {
	defer k.thinking()()
	var wrong *string
	for range 3 {
		p, err := k.secrets.get(k.ctx, "passphrase of "+k.path, "passphrase of "+k.path+": ", wrong)
		if err != nil {
			return nil, err
		}
		key, err := ssh.ParsePrivateKeyWithPassphrase(k.text, []byte(p))
		if err != nil {
			wrong = &p
			continue
		}
		signer, ok := key.(ssh.AlgorithmSigner)
		if !ok || algorithm == "" {
			return key.Sign(rand.Reader, data)
		}
		return signer.SignWithAlgorithm(rand.Reader, data, algorithm)
	}
	return nil, fmt.Errorf("the passphrase of %s is wrong", k.path)
}
