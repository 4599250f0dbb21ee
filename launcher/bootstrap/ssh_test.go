package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

func line(addr string, key ssh.Signer) string {
	return xknownhosts.Line([]string{xknownhosts.Normalize(addr)}, key.PublicKey()) + "\n"
}

func TestHostKeys(t *testing.T) {
	old, other := ed25519Key(t), ecdsaKey(t)
	for name, c := range map[string]struct {
		known   func(addr string) string // known_hosts before
		config  string
		accept  bool
		yes     bool // what a person answers
		want    string
		asked   int
		written bool
	}{
		"known": {known: func(a string) string { return line(a, old) }},
		"known by its hash": {known: func(a string) string {
			return xknownhosts.Line([]string{xknownhosts.HashHostname(xknownhosts.Normalize(a))}, old.PublicKey()) + "\n"
		}},
		"known by its other kind of key": {known: func(a string) string { return line(a, other) }},
		"known by its alias, without port": {config: "Host *\nHostKeyAlias spark1\n",
			known: func(string) string { return line("spark1:22", old) }},
		"known to be another": {known: func(a string) string {
			return "# note\n" + line(a,
				ed25519Key(t))
		}, accept: true, yes: true, want: "known_hosts:2"},
		"revoked":                       {known: func(string) string { return "@revoked * " + strings.SplitN(line("x:22", old), " ", 2)[1] }, accept: true, yes: true, want: "is revoked by"},
		"unknown, accepted by a person": {yes: true, asked: 1, written: true},
		"unknown, not accepted":         {asked: 1, want: "was not accepted"},
		"unknown, accepted on the line": {accept: true, written: true},
		"unknown, a file without its end": {accept: true, written: true,
			known: func(string) string { return strings.TrimSuffix(line("far:22", old), "\n") }},
		"unknown, hashed when written": {config: "Host *\nHashKnownHosts yes\n", accept: true, written: true},
		"unknown, and ssh_config is lax": {config: "Host *\nStrictHostKeyChecking no\n", asked: 1,
			want: "was not accepted"},
		"known_hosts that cannot be parsed": {known: func(string) string { return "x ssh-ed25519 %%%\n" },
			want: "read known_hosts"},
	} {
		t.Run(name, func(t *testing.T) {
			h := home(t)
			s := serve(t, serverConfig{keys: []ssh.Signer{old, other}, login: loginKey(t, h, "id_ed25519")})
			before := ""
			if c.known != nil {
				before = c.known(s.addr)
				write(t, h, "known_hosts", before)
			}
			write(t, h, "config", c.config)
			person := &asked{yes: c.yes}
			conf := SSH{Home: h, Ask: person.ask()}
			if c.accept {
				conf.Accept = []string{ssh.FingerprintSHA256(old.PublicKey())}
			}
			_, err := dialTo(t, conf, s.addr)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if len(person.keys) != c.asked {
				t.Errorf("asked %q, want %d questions", person.keys, c.asked)
			}
			after, _ := os.ReadFile(filepath.Join(h, ".ssh/known_hosts"))
			if c.written != (string(after) != before) {
				t.Errorf("known_hosts is %q, was %q", after, before)
			}
			if !c.written {
				return
			}
			if strings.Contains(c.config, "Hash") == strings.Contains(string(after), "127.0.0.1") {
				t.Errorf("known_hosts is %q: hashed or not, as ssh_config says", after)
			}
			// It is known from now on, to a run that can ask nobody.
			if _, err := dialTo(t, SSH{Home: h}, s.addr); err != nil {
				t.Errorf("a second time: %v", err)
			}
			if st, err := os.Stat(filepath.Join(h, ".ssh/known_hosts")); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("known_hosts: %v, %v", st.Mode(), err)
			}
		})
	}
}

// A host with a certificate of an authority that known_hosts names.
func TestHostCertificate(t *testing.T) {
	authority, hostKey := ed25519Key(t), ed25519Key(t)
	sign := func(principal string) ssh.Signer {
		c := &ssh.Certificate{Key: hostKey.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{principal},
			ValidBefore: ssh.CertTimeInfinity}
		if err := c.SignCert(strings.NewReader(strings.Repeat("x", 64)), authority); err != nil {
			t.Fatal(err)
		}
		s, err := ssh.NewCertSigner(c, hostKey)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for principal, fine := range map[string]bool{"127.0.0.1": true, "spark9": false} {
		h := home(t)
		s := serve(t, serverConfig{keys: []ssh.Signer{sign(principal), hostKey}, login: loginKey(t, h, "id_ed25519")})
		write(t, h, "known_hosts", "@cert-authority * "+string(ssh.MarshalAuthorizedKey(authority.PublicKey())))
		if _, err := dialTo(t, SSH{Home: h}, s.addr); (err == nil) != fine {
			t.Errorf("a certificate for %s: %v", principal, err)
		}
	}
}

func TestLogins(t *testing.T) {
	hostKey := ed25519Key(t)
	// ssh-keygen -a 1 made it: another's lock takes seconds under the race detector.
	lockedText, err := os.ReadFile("testdata/locked")
	if err != nil {
		t.Fatal(err)
	}
	lockedKey, err := publicOf("testdata/locked")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		passphrase string // of the login's key: "open" or none
		password   string // the server's
		given      string // --password-file
		answers    []string
		nobody     bool // nobody can be asked
		asked      int
		want       string
	}{
		"a key":                           {},
		"a key with a passphrase":         {passphrase: "open", answers: []string{"open"}, asked: 1},
		"a passphrase, at the second try": {passphrase: "open", answers: []string{"shut", "open"}, asked: 2},
		"a passphrase, never": {passphrase: "open", answers: []string{"a", "b", "c"}, asked: 3,
			want: "the passphrase of"},
		"a passphrase, nobody there":   {passphrase: "open", nobody: true, want: ErrNobodyToAsk.Error()},
		"a password":                   {password: "sesame", answers: []string{"sesame"}, asked: 1},
		"a password, at the third try": {password: "sesame", answers: []string{"a", "b", "sesame"}, asked: 3},
		"a password, never": {password: "sesame", answers: []string{"a", "b", "c"}, asked: 3,
			want: "accepts none of the keys and passwords"},
		"a password of a file":                 {password: "sesame", given: "sesame"},
		"a password of a file, which is wrong": {password: "sesame", given: "a", want: errWrongPassword.Error()},
		"a password, nobody there":             {password: "sesame", nobody: true, want: "--password-file"},
	} {
		t.Run(name, func(t *testing.T) {
			h := home(t)
			sc := serverConfig{keys: []ssh.Signer{hostKey}, password: c.password}
			switch {
			case c.passphrase != "":
				sc.login = lockedKey
				write(t, h, "id_ed25519", string(lockedText))
			case c.password == "":
				sc.login = loginKey(t, h, "id_ed25519")
			default:
				// One with a passphrase that the host does not take: it is not asked for.
				write(t, h, "id_ed25519", string(lockedText))
			}
			s := serve(t, sc)
			person := &asked{answers: c.answers}
			conf := SSH{Home: h, Accept: []string{ssh.FingerprintSHA256(hostKey.PublicKey())}}
			if !c.nobody {
				conf.Ask = person.ask()
			}
			if c.given != "" {
				conf.Password = &c.given
			}
			_, err := dialTo(t, conf, s.addr)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if len(person.secrets) != c.asked {
				t.Errorf("asked %q, want %d questions", person.secrets, c.asked)
			}
			for i, prompt := range person.secrets {
				if strings.HasPrefix(prompt, "that was wrong; ") != (i > 0) {
					t.Errorf("question %d is %q", i+1, prompt)
				}
			}
			for _, p := range append(c.answers, c.given) {
				if len(p) > 1 && err != nil && strings.Contains(err.Error(), p) {
					t.Errorf("the error shows the secret %q: %v", p, err)
				}
			}
		})
	}
}

// An agent with more keys than a server has patience for: the one that ssh_config
// names comes first.
func TestAgentWithManyKeys(t *testing.T) {
	h, hostKey := home(t), ed25519Key(t)
	ring := agent.NewKeyring()
	var login ssh.PublicKey
	for range 11 { // the last one is it
		login = loginKey(t, h, "work")
		raw, err := ssh.ParseRawPrivateKey([]byte(readFile(t, h, "work")))
		if err != nil {
			t.Fatal(err)
		}
		if err := ring.Add(agent.AddedKey{PrivateKey: raw}); err != nil {
			t.Fatal(err)
		}
	}
	// The key itself is in the agent only: its public half says which it is.
	if err := os.Remove(filepath.Join(h, ".ssh/work")); err != nil {
		t.Fatal(err)
	}
	write(t, h, "work.pub", string(ssh.MarshalAuthorizedKey(login)))
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = agent.ServeAgent(ring, c) }()
		}
	}()
	s := serve(t, serverConfig{keys: []ssh.Signer{hostKey}, login: login})
	write(t, h, "known_hosts", line(s.addr, hostKey))
	write(t, h, "config", "Host 127.*\nIdentityFile ~/.ssh/work\n")
	if _, err := dialTo(t, SSH{Home: h, AgentSocket: socket}, s.addr); err != nil {
		t.Error(err)
	}
}

func readFile(t *testing.T, home, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(home, ".ssh", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestThroughAJumpHost(t *testing.T) {
	h := home(t)
	login := loginKey(t, h, "id_ed25519")
	jumpKey, hostKey := ed25519Key(t), ed25519Key(t)
	jump := serve(t, serverConfig{keys: []ssh.Signer{jumpKey}, login: login})
	s := serve(t, serverConfig{keys: []ssh.Signer{hostKey}, login: login,
		answer: func(string, string) (string, string, uint32) { return "hello", "", 0 }})
	jumpAt, jumpPort, _ := net.SplitHostPort(jump.addr)
	at, port, _ := net.SplitHostPort(s.addr)
	write(t, h, "config", fmt.Sprintf("Include %s/.ssh/more\nHost far\nProxyJump gate\nHostName %s\nPort %s\n", h, at,
		port))
	write(t, h, "more", fmt.Sprintf("Host gate\nHostName %s\nPort %s\nUser porter\n", jumpAt, jumpPort))
	write(t, h, "known_hosts", line(s.addr, hostKey))
	conf := SSH{Home: h}
	if _, err := dialTo(t, conf, "far"); err == nil ||
		!strings.Contains(err.Error(), "jump host 127.0.0.1: the host key of") {
		t.Errorf("a jump host that nobody knows: %v", err)
	}
	write(t, h, "known_hosts", line(s.addr, hostKey)+line(jump.addr, jumpKey))
	r, err := dialTo(t, conf, "far")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := r.run(t.Context(), lookTimeout, "x", nil); err != nil || out != "hello" {
		t.Errorf("%q, %v", out, err)
	}
	if jump.commands != nil {
		t.Errorf("the jump host ran %q", jump.commands)
	}
	write(t, h, "config", "Host a\nProxyJump b\nHost b\nProxyJump a\n")
	if _, err := dialTo(t, conf, "a"); err == nil || !strings.Contains(err.Error(), "does it lead in a circle?") {
		t.Errorf("a circle: %v", err)
	}
}

func TestEndpoint(t *testing.T) {
	h := home(t)
	write(t, h, "config", `Host spark?
	HostName %h.lab
	User root
	Port 2222
	IdentityFile ~/.ssh/%n
	IdentitiesOnly yes
	UserKnownHostsFile ~/.ssh/lab "/etc/known %h"
Host piped
	ProxyCommand nc %h %p
Host odd
	Port http
`)
	s, err := openSettings(SSH{Home: h, User: "zeta",
		ConfigFiles: []string{filepath.Join(h, ".ssh/config"), "/nonexistent"}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.endpoint(target{host: "spark1"})
	if err != nil {
		t.Fatal(err)
	}
	if got.addr() != "spark1.lab:2222" || got.user != "root" || !got.only ||
		!cmp.Equal(got.identities, []string{h + "/.ssh/spark1"}) || got.known[0] != h+"/.ssh/lab" {
		t.Errorf("%+v", got)
	}
	if got, err := s.endpoint(target{user: "me", host: "spark2", port: 22}); err != nil ||
		got.addr() != "spark2.lab:22" || got.user != "me" {
		t.Errorf("what is typed comes first: %+v, %v", got, err)
	}
	if got, err := s.endpoint(target{host: "else"}); err != nil || got.addr() != "else:22" || got.user != "zeta" ||
		len(got.identities) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	for host, want := range map[string]string{"piped": "use ProxyJump", "odd": "Port"} {
		if _, err := s.endpoint(target{host: host}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", host, err, want)
		}
	}
	write(t, h, "config", "Match exec true\n\tUser x\n")
	if _, err := openSettings(SSH{ConfigFiles: []string{filepath.Join(h, ".ssh/config")}}); err == nil ||
		!strings.Contains(err.Error(), "--ssh-config") {
		t.Errorf("a Match that is not understood: %v", err)
	}
}

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]target{
		"spark1": {host: "spark1"}, "zeta@spark1": {user: "zeta", host: "spark1"},
		"zeta@spark1:2222": {user: "zeta", host: "spark1", port: 2222},
		"::1":              {host: "::1"}, "[::1]:22": {host: "::1", port: 22}, "a@b@spark1": {user: "a@b", host: "spark1"},
	} {
		if got, err := parseTarget(text); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "@spark1", "zeta@", "spark1:0", "spark1:ssh", "-oProxyCommand=x", "a b",
		"ssh://zeta@spark1"} {
		if got, err := parseTarget(text); err == nil {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
}

// sudo reads a second try from what follows a wrong password: nothing else is sent
// before the password is known to be right.
func TestSudo(t *testing.T) {
	s, r := answering(t, func(command, input string) (string, string, uint32) {
		if strings.HasPrefix(command, "sudo ") && !strings.HasPrefix(input, "sesame\n") {
			return "", "Sorry, try again.\nsudo: 1 incorrect password attempt\n", 1
		}
		return "", "", 0
	})
	person := &asked{answers: []string{"guess", "sesame"}}
	d, err := newDialer(SSH{Ask: person.ask()})
	if err != nil {
		t.Fatal(err)
	}
	x := &host{remote: r, fleet: &fleet{secrets: d.secrets}, target: "spark1", facts: facts{user: "zeta"}}
	if err := x.becomeRoot(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := x.asRoot(t.Context(), commandTimeout, "cat", strings.NewReader("spk1.token")); err != nil {
		t.Fatal(err)
	}
	if want := []string{"guess\n", "sesame\n", "sesame\nspk1.token"}; !cmp.Equal(s.input, want) {
		t.Errorf("the host read %q, want %q", s.input, want)
	}
	for _, c := range s.commands {
		if strings.Contains(c, "sesame") || strings.Contains(c, "spk1.token") || !strings.Contains(c, " -k ") {
			t.Errorf("command line %q", c)
		}
	}
	if len(person.secrets) != 2 {
		t.Errorf("asked %q", person.secrets)
	}
}

// A host where root logs in may have no sudo, as Debian's smallest.
func TestRootNeedsNoSudo(t *testing.T) {
	_, r := answering(t, func(command, _ string) (string, string, uint32) {
		if strings.HasPrefix(command, "sudo ") {
			return "", "bash: line 1: sudo: command not found\n", 127
		}
		return "", "", 0
	})
	x := &host{remote: r, fleet: &fleet{}, facts: facts{user: "root", root: true}}
	if _, err := x.asRoot(t.Context(), commandTimeout, "true", nil); err != nil {
		t.Error(err)
	}
}

func TestCommandThatFails(t *testing.T) {
	_, r := answering(t, func(string, string) (string, string, uint32) {
		return "", "one\ntwo\nthree\nsparkrun: no \x1b[2Jroom\r\n", 3
	})
	_, err := r.run(t.Context(), commandTimeout, "x", nil)
	var said *commandError
	if !errors.As(err, &said) || said.code != 3 || said.words != "two; three; no ?[2Jroom" {
		t.Errorf("%#v", err)
	}
}

// Ctrl-C ends a login to a host that accepts connections and then says nothing.
func TestSilentHost(t *testing.T) {
	h := home(t)
	s := serve(t, serverConfig{silent: true})
	ctx, cancel := context.WithCancel(t.Context())
	d, err := newDialer(SSH{Home: h, User: "zeta"})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	at, _ := parseTarget(s.addr)
	go func() {
		_, err := d.dial(ctx, at)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that it was ended", err)
	}
}
