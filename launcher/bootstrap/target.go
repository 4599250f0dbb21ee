package bootstrap

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/kevinburke/ssh_config"
)

// target is a host as the user named it.
type target struct {
	user, host string
	port       int // 0: ssh_config's, or 22
}

// parseTarget reads [user@]host[:port]; an IPv6 address is in brackets if a port follows.
func parseTarget(text string) (target, error) {
	var t target
	rest := text
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		t.user, rest = rest[:i], rest[i+1:]
		if t.user == "" {
			return t, fmt.Errorf("host %q: no user before the @", text)
		}
	}
	t.host = rest
	if host, port, err := net.SplitHostPort(rest); err == nil {
		n, err := strconv.Atoi(port)
		if err != nil || n < 1 || n > 65535 {
			return t, fmt.Errorf("host %q: port %q: want 1 to 65535", text, port)
		}
		t.host, t.port = host, n
	}
	t.host = strings.TrimSuffix(strings.TrimPrefix(t.host, "["), "]")
	if strings.ContainsAny(t.user, " \t\n/:") {
		return t, fmt.Errorf("host %q: want [user@]host[:port]", text)
	}
	if t.host == "" || strings.HasPrefix(t.host, "-") || strings.ContainsAny(t.host, " \t\n/") {
		return t, fmt.Errorf("host %q: want [user@]host[:port]", text)
	}
	return t, nil
}

// endpoint is what ssh_config makes of a target.
type endpoint struct {
	user, host string // host: the address of the connection
	typed      string // the host as the user typed it
	port       int
	keyName    string // host:port as known_hosts has it
	identities []string
	only       bool // IdentitiesOnly
	agent      string
	known      []string // user's known_hosts files; a new key goes to the first
	global     []string
	hash       bool // HashKnownHosts
	jumps      []target
}

func (e endpoint) addr() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

// shown names the host for people: as they typed it, and its address.
func (e endpoint) shown() string {
	at := e.host
	if e.port != 22 {
		at = e.addr()
	}
	if e.typed == e.host {
		return at
	}
	return fmt.Sprintf("%s (%s)", e.typed, at)
}

// settings are the ssh_config files.
type settings struct {
	ssh   SSH
	files []*ssh_config.Config
}

func openSettings(s SSH) (*settings, error) {
	out := &settings{ssh: s}
	for _, path := range s.ConfigFiles {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read ssh_config: %w", err)
		}
		c, err := ssh_config.DecodeBytes(text)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w: give an ssh_config without it (--ssh-config FILE)", path, err)
		}
		out.files = append(out.files, c)
	}
	return out, nil
}

// get is the first value for a host; all gives all of them where a key may be repeated.
func (s *settings) get(host, key string) (string, error) {
	for _, c := range s.files {
		if v, err := c.Get(host, key); err != nil || v != "" {
			return v, err
		}
	}
	return "", nil
}

func (s *settings) all(host, key string) ([]string, error) {
	var out []string
	for _, c := range s.files {
		v, err := c.GetAll(host, key)
		if err != nil {
			return nil, err
		}
		out = append(out, v...)
	}
	return out, nil
}

// endpoint resolves a target.
func (s *settings) endpoint(t target) (endpoint, error) {
	e := endpoint{user: t.user, host: t.host, typed: t.host, port: t.port}
	one := map[string]string{}
	for _, key := range []string{"HostName", "User", "Port", "HostKeyAlias", "ProxyJump", "ProxyCommand",
		"IdentitiesOnly", "IdentityAgent", "HashKnownHosts", "UserKnownHostsFile", "GlobalKnownHostsFile"} {
		v, err := s.get(t.host, key)
		if err != nil {
			return e, fmt.Errorf("ssh_config: %s of %s: %w", key, t.host, err)
		}
		one[key] = v
	}
	if one["HostName"] != "" {
		e.host = strings.ReplaceAll(one["HostName"], "%h", t.host)
	} else if at := s.ssh.Addresses[t.host]; at != "" {
		e.host = at
	}
	if e.user == "" {
		e.user = one["User"]
	}
	if e.user == "" {
		e.user = s.ssh.User
	}
	if e.port == 0 && one["Port"] != "" {
		n, err := strconv.Atoi(one["Port"])
		if err != nil || n < 1 || n > 65535 {
			return e, fmt.Errorf("ssh_config: Port %s of %s: want 1 to 65535", one["Port"], t.host)
		}
		e.port = n
	}
	if e.port == 0 {
		e.port = 22
	}
	e.keyName = e.addr()
	if alias := one["HostKeyAlias"]; alias != "" {
		e.keyName = net.JoinHostPort(alias, "22") // known_hosts has an alias without a port
	}
	if c := one["ProxyCommand"]; c != "" && c != "none" && one["ProxyJump"] == "" {
		return e, fmt.Errorf("ssh_config gives %s a ProxyCommand, which sparkrun does not run: use ProxyJump", t.host)
	}
	if err := e.jumpsOf(one["ProxyJump"]); err != nil {
		return e, err
	}
	expand := func(path string) string {
		if path == "~" || strings.HasPrefix(path, "~/") {
			path = filepath.Join(s.ssh.Home, strings.TrimPrefix(path[1:], "/"))
		}
		return strings.NewReplacer("%%", "%", "%d", s.ssh.Home, "%h", e.host, "%n", t.host, "%p", strconv.Itoa(e.port),
			"%r", e.user, "%u", s.ssh.User).Replace(path)
	}
	files, err := s.all(t.host, "IdentityFile")
	if err != nil {
		return e, fmt.Errorf("ssh_config: IdentityFile of %s: %w", t.host, err)
	}
	for _, f := range files {
		if f != "none" {
			e.identities = append(e.identities, expand(f))
		}
	}
	if len(files) == 0 {
		for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
			e.identities = append(e.identities, filepath.Join(s.ssh.Home, ".ssh", name))
		}
	}
	e.only = strings.EqualFold(one["IdentitiesOnly"], "yes")
	e.hash = strings.EqualFold(one["HashKnownHosts"], "yes")
	switch a := one["IdentityAgent"]; a {
	case "none":
	case "", "SSH_AUTH_SOCK":
		e.agent = s.ssh.AgentSocket
	default:
		e.agent = expand(a)
	}
	e.known = listOf(one["UserKnownHostsFile"], expand, filepath.Join(s.ssh.Home, ".ssh/known_hosts"),
		filepath.Join(s.ssh.Home, ".ssh/known_hosts2"))
	e.global = listOf(one["GlobalKnownHostsFile"], expand, "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
	return e, nil
}

// listOf reads a list of files from one value; "none" is an empty list.
func listOf(value string, expand func(string) string, otherwise ...string) []string {
	switch value {
	case "":
		return otherwise
	case "none":
		return nil
	}
	var out []string
	for _, f := range strings.Fields(value) {
		out = append(out, expand(strings.Trim(f, `"`)))
	}
	return out
}

func (e *endpoint) jumpsOf(value string) error {
	if value == "" || value == "none" {
		return nil
	}
	for j := range strings.SplitSeq(value, ",") {
		t, err := parseTarget(strings.TrimPrefix(strings.TrimSpace(j), "ssh://"))
		if err != nil {
			return fmt.Errorf("ssh_config: ProxyJump %s: %w", value, err)
		}
		e.jumps = append(e.jumps, t)
	}
	return nil
}
