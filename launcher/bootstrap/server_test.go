package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/pem"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// server is an SSH server in this process, for what OpenSSH's cannot be made to do
// in a test; scripts/up_test has the real one.
type server struct {
	addr string
	keys []ssh.Signer

	mu       sync.Mutex
	commands []string
	input    []string
}

type serverConfig struct {
	keys     []ssh.Signer // host keys
	login    ssh.PublicKey
	password string
	silent   bool // it accepts connections and says nothing
	// answer is a command's output, error output and exit code.
	answer func(command, input string) (string, string, uint32)
}

func serve(t *testing.T, c serverConfig) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String(), keys: c.keys}
	conf := &ssh.ServerConfig{MaxAuthTries: 6}
	for _, k := range c.keys {
		conf.AddHostKey(k)
	}
	if c.login != nil {
		conf.PublicKeyCallback = func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if string(key.Marshal()) != string(c.login.Marshal()) {
				return nil, io.EOF
			}
			return nil, nil
		}
	}
	if c.password != "" {
		conf.PasswordCallback = func(_ ssh.ConnMetadata, p []byte) (*ssh.Permissions, error) {
			if string(p) != c.password {
				return nil, io.EOF
			}
			return nil, nil
		}
	}
	var all sync.WaitGroup
	var conns sync.Map
	all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(conn, true)
			if c.silent {
				continue
			}
			all.Go(func() { s.serve(conn, conf, c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Range(func(conn, _ any) bool { conn.(net.Conn).Close(); return true })
		all.Wait()
	})
	return s
}

func (s *server) serve(conn net.Conn, conf *ssh.ServerConfig, c serverConfig) {
	sc, channels, requests, err := ssh.NewServerConn(conn, conf)
	if err != nil {
		conn.Close()
		return
	}
	defer sc.Close()
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { ssh.DiscardRequests(requests) })
	for n := range channels {
		switch n.ChannelType() {
		case "session":
			ch, reqs, err := n.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.session(ch, reqs, c) })
		case "direct-tcpip":
			var to struct {
				Host string
				Port uint32
				From string
				At   uint32
			}
			_ = ssh.Unmarshal(n.ExtraData(), &to)
			out, err := net.Dial("tcp", net.JoinHostPort(to.Host, strconv.FormatUint(uint64(to.Port), 10)))
			if err != nil {
				_ = n.Reject(ssh.ConnectionFailed, err.Error())
				continue
			}
			ch, reqs, err := n.Accept()
			if err != nil {
				return
			}
			all.Go(func() { ssh.DiscardRequests(reqs) })
			all.Go(func() { _, _ = io.Copy(ch, out); ch.Close() })
			all.Go(func() { _, _ = io.Copy(out, ch); out.Close() })
		default:
			_ = n.Reject(ssh.UnknownChannelType, "")
		}
	}
}

func (s *server) session(ch ssh.Channel, reqs <-chan *ssh.Request, c serverConfig) {
	defer ch.Close()
	for r := range reqs {
		if r.Type != "exec" {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		var command struct{ Line string }
		_ = ssh.Unmarshal(r.Payload, &command)
		in, _ := io.ReadAll(ch)
		s.mu.Lock()
		s.commands, s.input = append(s.commands, command.Line), append(s.input, string(in))
		s.mu.Unlock()
		var out, errs string
		var code uint32
		if c.answer != nil {
			out, errs, code = c.answer(command.Line, string(in))
		}
		_, _ = io.WriteString(ch, out)
		_, _ = io.WriteString(ch.Stderr(), errs)
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
		return
	}
}

func ed25519Key(t *testing.T) ssh.Signer {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func ecdsaKey(t *testing.T) ssh.Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// home is a login's home with an .ssh.
func home(t *testing.T) string {
	t.Helper()
	h := t.TempDir()
	if err := os.Mkdir(filepath.Join(h, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// write writes a file below a home's .ssh.
func write(t *testing.T, home, name, text string) string {
	t.Helper()
	path := filepath.Join(home, ".ssh", name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// loginKey writes a private key.
func loginKey(t *testing.T, home, name string) ssh.PublicKey {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(k, "")
	if err != nil {
		t.Fatal(err)
	}
	write(t, home, name, string(pem.EncodeToMemory(block)))
	s, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return s.PublicKey()
}

// dialTo logs in to a target with what a home holds.
func dialTo(t *testing.T, s SSH, to string) (*remote, error) {
	t.Helper()
	if s.User == "" {
		s.User = "zeta"
	}
	if s.ConfigFiles == nil {
		s.ConfigFiles = []string{filepath.Join(s.Home, ".ssh/config")}
	}
	d, err := newDialer(s)
	if err != nil {
		t.Fatal(err)
	}
	at, err := parseTarget(to)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.dial(t.Context(), at)
	if err == nil {
		t.Cleanup(r.close)
	}
	return r, err
}

// answering is a host that lets us in and answers each command, and the connection to it.
func answering(t *testing.T, answer func(command, input string) (string, string, uint32)) (*server, *remote) {
	t.Helper()
	h, hostKey := home(t), ed25519Key(t)
	s := serve(t, serverConfig{keys: []ssh.Signer{hostKey}, login: loginKey(t, h, "id_ed25519"), answer: answer})
	write(t, h, "known_hosts", line(s.addr, hostKey))
	r, err := dialTo(t, SSH{Home: h}, s.addr)
	if err != nil {
		t.Fatal(err)
	}
	return s, r
}

// asked answers questions and counts them.
type asked struct {
	keys, secrets []string
	yes           bool
	answers       []string
}

func (a *asked) ask() *Ask {
	return &Ask{
		HostKey: func(_ context.Context, host, _, print string) (bool, error) {
			a.keys = append(a.keys, host+" "+print)
			return a.yes, nil
		},
		Secret: func(_ context.Context, prompt string) (string, error) {
			a.secrets = append(a.secrets, prompt)
			if len(a.answers) == 0 {
				return "", io.EOF
			}
			text := a.answers[0]
			a.answers = a.answers[1:]
			return text, nil
		},
	}
}
