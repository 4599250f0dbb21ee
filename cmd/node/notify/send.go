package notify

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/textproto"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/trust"
)

// endpoint is what is sealed of a target: a URL and headers, or a command.
type endpoint struct {
	URL     string   `json:"url,omitempty"`
	Headers []string `json:"headers,omitempty"`
	Command []string `json:"command,omitempty"`
}

// String keeps it out of logs and errors.
func (e endpoint) String() string { return e.kind() + " " + e.shown() }

// GoString does so for %#v.
func (e endpoint) GoString() string { return e.String() }

func (e endpoint) kind() string {
	if len(e.Command) > 0 {
		return "command"
	}
	return "webhook"
}

// shown is what everybody may see: of a URL no path, which is a secret for Slack and others.
func (e endpoint) shown() string {
	if len(e.Command) > 0 {
		if len(e.Command) > 1 {
			return plain.Cut(plain.Line(e.Command[0]), 190) + " …"
		}
		return plain.Cut(plain.Line(e.Command[0]), 190)
	}
	u, err := url.Parse(e.URL)
	if err != nil {
		return ""
	}
	text := u.Scheme + "://" + u.Host
	if u.Path != "" && u.Path != "/" || u.RawQuery != "" {
		text += "/…"
	}
	return plain.Cut(plain.Line(text), 190)
}

// said is a line of an answer or of a command's output, unless it repeats something that is sealed, as servers do with
// the path that they do not know.
func (e endpoint) said(line string) string {
	sealed := slices.Clone(e.Command[min(len(e.Command), 1):])
	for _, arg := range sealed {
		_, value, _ := strings.Cut(arg, "=")
		sealed = append(sealed, value)
	}
	pieces := func(text string) {
		sealed = append(sealed, strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" /?&=:", r) })...)
	}
	for _, h := range e.Headers {
		_, value, _ := strings.Cut(h, ":")
		pieces(value)
	}
	if u, err := url.Parse(e.URL); err == nil {
		text, _ := url.QueryUnescape(u.RequestURI())
		pieces(text + " " + u.RequestURI() + " " + u.User.String())
		password, _ := u.User.Password()
		sealed = append(sealed, password)
	}
	for _, s := range sealed {
		if len(s) >= 4 && strings.Contains(line, s) {
			return ""
		}
	}
	return plain.Cut(plain.Line(line), 200)
}

func (e endpoint) equal(o endpoint) bool {
	return e.URL == o.URL && slices.Equal(e.Headers, o.Headers) && slices.Equal(e.Command, o.Command)
}

func (e endpoint) validate() error {
	if len(e.Command) > 0 {
		switch {
		case e.URL != "" || len(e.Headers) > 0:
			return fmt.Errorf("%w: want a URL or a command", launcher.ErrInvalid)
		case e.Command[0] == "" || strings.Contains(strings.Join(e.Command, ""), "\x00"):
			return fmt.Errorf("%w: the command is empty, or has a zero byte", launcher.ErrInvalid)
		}
		return nil
	}
	u, err := url.Parse(e.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.Fragment != "" { // nor its text
		return fmt.Errorf("%w: want a URL such as https://hooks.example.com/path", launcher.ErrInvalid)
	}
	_, err = e.headers()
	return err
}

func (e endpoint) headers() (http.Header, error) {
	text := strings.Join(e.Headers, "\r\n") + "\r\n\r\n"
	h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(text))).ReadMIMEHeader()
	if err != nil || len(h) != len(e.Headers) || strings.ContainsAny(strings.Join(e.Headers, ""), "\r\n") || h.Get("Host") != "" {
		return nil, fmt.Errorf("%w: headers: want lines such as Authorization: Bearer TOKEN, each name once",
			launcher.ErrInvalid)
	}
	return http.Header(h), nil
}

func (e endpoint) seal(s trust.Sealer, name string) ([]byte, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	return s.Seal(trust.NewSecret(text), rendezvous.NotifyWords(name)...)
}

func openEndpoint(s trust.Sealer, t rendezvous.NotifyTarget) (e endpoint, err error) {
	text, err := s.Open(t.Box, rendezvous.NotifyWords(t.Name)...)
	if err == nil {
		err = json.Unmarshal(text.Reveal(), &e)
	}
	if err != nil {
		return e, &failed{err: fmt.Errorf("%w: remove it, and add it again", err), final: true}
	}
	return e, nil
}

// failed is why a message has not arrived.
type failed struct {
	err   error
	final bool          // another try would end as this one
	after time.Duration // that the other side asks for before the next try
}

func (f *failed) Error() string { return f.err.Error() }
func (f *failed) Unwrap() error { return f.err }

const (
	webhookWithin = 15 * time.Second
	commandWithin = 30 * time.Second
	maxAfter      = 2 * time.Minute
	maxOutput     = 4 << 10 // bytes of a command's output, or of an answer
)

// newClient follows no redirect: it would carry what is secret elsewhere.
func newClient() *http.Client {
	return &http.Client{
		Timeout: webhookWithin,
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, ForceAttemptHTTP2: true,
			TLSHandshakeTimeout: webhookWithin / 2, MaxResponseHeaderBytes: 64 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// send brings a message to an endpoint once.
func (l *Leader) send(ctx context.Context, e endpoint, m Message) error {
	m = m.finished()
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(e.Command) > 0 {
		return runCommand(ctx, e, m.environment(), body)
	}
	header, err := e.headers()
	if err != nil {
		return &failed{err: err, final: true}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL, bytes.NewReader(body))
	if err != nil {
		return &failed{err: errors.New("its URL cannot be used"), final: true}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "sparkrun/"+l.Version)
	for name, values := range header {
		req.Header[name] = values
	}
	res, err := l.client.Do(req)
	if err != nil {
		if u := new(url.Error); errors.As(err, &u) {
			err = u.Err // without the URL
		}
		what, _, _ := strings.Cut(err.Error(), ` "`) // what net/http quotes, the other side has said: it may be the path
		return &failed{err: fmt.Errorf("%s: %s", e.shown(), what)}
	}
	defer res.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(res.Body, maxOutput))
	return answered(e, res, answer)
}

// answered judges an answer. What a server says of a refusal helps, and is shown with its first line.
func answered(e endpoint, res *http.Response, answer []byte) error {
	code := res.StatusCode
	if code >= 200 && code < 300 {
		return nil
	}
	f := &failed{err: fmt.Errorf("%s answers %s", e.shown(), http.StatusText(code)), final: true}
	if http.StatusText(code) == "" {
		f.err = fmt.Errorf("%s answers %d", e.shown(), code)
	}
	line, _, _ := strings.Cut(strings.TrimSpace(string(answer)), "\n")
	switch {
	case code >= 300 && code < 400:
		f.err = fmt.Errorf("%w: redirects are not followed: add the URL that it leads to", f.err)
	case e.said(line) != "":
		f.err = fmt.Errorf("%w: %s", f.err, e.said(line))
	}
	if code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout {
		f.final = false
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
			f.after = min(time.Duration(s)*time.Second, maxAfter)
		}
	}
	return f
}

// runCommand runs a command as the agent's user, root. It and what it started in its process group are ended when its
// time is over.
func runCommand(ctx context.Context, e endpoint, env []string, input []byte) error {
	argv := e.Command
	ctx, cancel := context.WithTimeoutCause(ctx, commandWithin, fmt.Errorf("it took longer than %s", commandWithin))
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"},
		env...)
	cmd.Stdin = bytes.NewReader(input)
	out := &tail{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay): // it has left something behind that keeps its output open
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, exec.ErrNotFound):
		return &failed{err: fmt.Errorf("%w: it has to be on every machine that may lead", err), final: true}
	}
	err = fmt.Errorf("%s: %w", filepath.Base(argv[0]), err)
	if line := e.said(out.last()); line != "" {
		err = fmt.Errorf("%w: %s", err, line)
	}
	return &failed{err: err}
}

// tail keeps the end of what is written.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p...)
	t.b = t.b[max(0, len(t.b)-maxOutput):]
	return len(p), nil
}

// last is the last line.
func (t *tail) last() string {
	text := strings.TrimSpace(string(t.b))
	return text[strings.LastIndex(text, "\n")+1:]
}
