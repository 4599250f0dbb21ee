package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// dialer opens connections for all hosts of a run.
type dialer struct {
	settings *settings
	keys     hostKeys
	secrets  *secrets
}

func newDialer(s SSH) (*dialer, error) {
	files, err := openSettings(s)
	if err != nil {
		return nil, err
	}
	for _, f := range s.Accept {
		if !strings.HasPrefix(f, "SHA256:") {
			return nil, fmt.Errorf("--accept-host-key %s: want SHA256:..., as `ssh-keygen -lf` prints it", f)
		}
	}
	questions := &sync.Mutex{}
	return &dialer{
		settings: files,
		keys:     hostKeys{accept: s.Accept, ask: s.Ask, mu: questions},
		secrets:  &secrets{given: s.Password, ask: s.Ask, mu: questions, has: map[string]string{}},
	}, nil
}

// remote is a connection to a host, with those to its jump hosts.
type remote struct {
	*ssh.Client
	at      endpoint
	through []*ssh.Client
	beat    chan struct{}
	beaten  sync.WaitGroup
}

// maxJumps bounds a ProxyJump that leads in a circle.
const maxJumps = 8

func (d *dialer) dial(ctx context.Context, t target) (*remote, error) {
	e, err := d.settings.endpoint(t)
	if err != nil {
		return nil, err
	}
	hops, err := d.hops(e, 0)
	if err != nil {
		return nil, err
	}
	r := &remote{at: e, beat: make(chan struct{})}
	for i, hop := range hops {
		c, err := d.connect(ctx, hop, r.Client)
		if err != nil {
			if r.Client != nil {
				r.Client.Close()
			}
			r.closeHops()
			if i < len(hops)-1 {
				err = fmt.Errorf("jump host %s: %w", hop.host, err)
			}
			return nil, err
		}
		if r.Client != nil {
			r.through = append(r.through, r.Client)
		}
		r.Client = c
	}
	r.beaten.Go(r.keepAlive)
	return r, nil
}

// hops are the connections to open, each through the one before, the last to e itself. Only
// the first jump's own ProxyJump counts, as with ssh -J.
func (d *dialer) hops(e endpoint, depth int) ([]endpoint, error) {
	if depth > maxJumps {
		return nil, fmt.Errorf("ssh_config: ProxyJump of %s: more than %d hops: does it lead in a circle?", e.host, maxJumps)
	}
	var out []endpoint
	for i, j := range e.jumps {
		next, err := d.settings.endpoint(j)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out = append(out, next)
			continue
		}
		if out, err = d.hops(next, depth+1); err != nil {
			return nil, err
		}
	}
	return append(out, e), nil
}

// connect opens one hop, through another one where that is given.
func (d *dialer) connect(ctx context.Context, e endpoint, through *ssh.Client) (*ssh.Client, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	dial := (&net.Dialer{}).DialContext
	if through != nil {
		dial = through.DialContext
	}
	conn, err := dial(dialCtx, "tcp", e.addr())
	if err != nil {
		if dialCtx.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("no answer within %s", dialTimeout)
		} else if _, ok := errors.AsType[*net.DNSError](err); ok {
			err = fmt.Errorf("that name has no known address: give one, such as zeta@10.0.0.2, or name it in "+
				"~/.ssh/config (%w)", err)
		}
		return nil, fmt.Errorf("connect to %s: %w", e.addr(), err)
	}
	// The host may be silent for dialTimeout; a person may think for longer. (A timer and
	// not a deadline: a connection through a jump host has none.)
	silent := time.AfterFunc(dialTimeout, func() { conn.Close() })
	defer silent.Stop()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	thinking := func() func() {
		silent.Stop()
		return func() { silent.Reset(dialTimeout) }
	}
	var verdict error // our own error about the key; x/crypto wraps it as text only
	algos, verify, err := d.keys.check(ctx, e, thinking)
	if err != nil {
		conn.Close()
		return nil, err
	}
	methods, closeAgent := d.secrets.auth(ctx, e, thinking)
	defer closeAgent()
	c, channels, requests, err := ssh.NewClientConn(conn, e.addr(), &ssh.ClientConfig{
		User: e.user, Auth: methods, HostKeyAlgorithms: algos,
		HostKeyCallback: func(host string, remote net.Addr, key ssh.PublicKey) error {
			verdict = verify(host, remote, key)
			return verdict
		},
	})
	if err == nil {
		return ssh.NewClient(c, channels, requests), nil
	}
	conn.Close()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case verdict != nil:
		return nil, verdict
	case strings.Contains(err.Error(), "unable to authenticate"):
		return nil, fmt.Errorf("log in to %s as %s: the host accepts none of the keys and passwords that were offered: %w",
			e.host, e.user, bare(err))
	case !silent.Stop():
		return nil, fmt.Errorf("log in to %s: it was silent for %s", e.addr(), dialTimeout)
	}
	return nil, fmt.Errorf("log in to %s as %s: %w", e.host, e.user, bare(err))
}

// bare strips x/crypto's own prefixes.
func bare(err error) error {
	text := err.Error()
	for _, prefix := range []string{"ssh: handshake failed: ", "ssh: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	return errors.New(text)
}

// Keepalives: a host that loses its power does not close the connection.
const heartbeat = 15 * time.Second

func (r *remote) keepAlive() {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.beat:
			return
		}
		answered := make(chan error, 1)
		go func() { // ends with the answer, or with the connection
			_, _, err := r.SendRequest("keepalive@openssh.com", true, nil)
			answered <- err
		}()
		late := time.NewTimer(3 * heartbeat)
		select {
		case err := <-answered:
			late.Stop()
			if err == nil {
				continue
			}
		case <-late.C:
		case <-r.beat:
			late.Stop()
			return
		}
		r.Client.Close()
		return
	}
}

func (r *remote) close() {
	close(r.beat)
	r.Client.Close()
	r.closeHops()
	r.beaten.Wait()
}

func (r *remote) closeHops() {
	for i := len(r.through) - 1; i >= 0; i-- {
		r.through[i].Close()
	}
}

// maxAnswer bounds what is kept of a command's output, in bytes.
const maxAnswer = 4 << 20

// run runs a command line in the login's shell. The error has the last lines of its
// standard error.
func (r *remote) run(ctx context.Context, timeout time.Duration, command string, stdin io.Reader) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	session, err := r.NewSession()
	if err != nil {
		return "", fmt.Errorf("the connection is lost: %w", bare(err))
	}
	defer session.Close()
	var out, errs limited
	session.Stdin, session.Stdout, session.Stderr = stdin, &out, &errs
	// Without this a host that reads nothing would block Run.
	defer context.AfterFunc(ctx, func() { session.Close(); r.Client.Close() })()
	if err = session.Run(command); err == nil {
		return out.String(), nil
	}
	if ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			return out.String(), fmt.Errorf("not done within %s", timeout)
		}
		return out.String(), context.Cause(ctx)
	}
	var exit *ssh.ExitError
	if !errors.As(err, &exit) {
		return out.String(), fmt.Errorf("the connection was lost: %w", bare(err))
	}
	return out.String(), &commandError{code: exit.ExitStatus(), words: lastLines(errs.String())}
}

// commandError is a command that failed on the host.
type commandError struct {
	code  int
	words string
}

func (e *commandError) Error() string {
	if e.words == "" {
		return fmt.Sprintf("exit %d", e.code)
	}
	return e.words
}

// lastLines are the last three lines of an error output, in one.
func lastLines(text string) string {
	var lines []string
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }) {
		line = strings.TrimPrefix(strings.TrimSpace(plain.Line(line)), "sparkrun: ")
		if line != "" && !strings.HasPrefix(line, "sudo: unable to resolve host") { // harmless, with every command
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-3):], "; ")
}

// limited keeps the first maxAnswer bytes and drops the rest.
type limited struct{ bytes.Buffer }

func (l *limited) Write(p []byte) (int, error) {
	if room := maxAnswer - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
