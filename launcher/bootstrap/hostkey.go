package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

// hostKeys decides whether a host key belongs to its host. It cannot be bypassed.
type hostKeys struct {
	accept []string
	ask    *Ask
	// mu: one question at a time, and one write to known_hosts.
	mu *sync.Mutex
}

// check gives the algorithms to ask a host for, and the callback that checks its key. A
// host that is known by one kind of key must be asked for that kind: else it would show
// another of its keys, and look like an impostor.
func (v hostKeys) check(ctx context.Context, e endpoint, thinking func() (done func())) ([]string, ssh.HostKeyCallback,
	error) {
	db, err := known(e)
	if err != nil {
		return nil, nil, err
	}
	algos := db.HostKeyAlgorithms(e.keyName)
	if len(algos) == 0 {
		algos = unknownHostAlgorithms()
	}
	return algos, func(_ string, remote net.Addr, key ssh.PublicKey) error {
		err := db.HostKeyCallback()(e.keyName, remote, key)
		if err == nil {
			return nil
		}
		if !knownhosts.IsHostUnknown(err) {
			return refusal(e, key, err)
		}
		defer thinking()()
		v.mu.Lock()
		defer v.mu.Unlock()
		// Another connection may have asked meanwhile.
		if now, err := known(e); err == nil && now.HostKeyCallback()(e.keyName, remote, key) == nil {
			return nil
		}
		return v.unknown(ctx, e, key)
	}, nil
}

// unknownHostAlgorithms is what an unknown host is asked for: the key that ssh would show, too. A
// certificate whose authority is not known proves nothing.
func unknownHostAlgorithms() []string {
	algos := slices.DeleteFunc(ssh.SupportedAlgorithms().HostKeys,
		func(a string) bool { return strings.Contains(a, "-cert-") })
	slices.SortStableFunc(algos, func(a, b string) int {
		switch {
		case a == ssh.KeyAlgoED25519 && b != a:
			return -1
		case b == ssh.KeyAlgoED25519 && b != a:
			return 1
		}
		return 0
	})
	return algos
}

func (v hostKeys) unknown(ctx context.Context, e endpoint, key ssh.PublicKey) error {
	print := ssh.FingerprintSHA256(key)
	name := knownhosts.Normalize(e.keyName)
	if !slices.Contains(v.accept, print) {
		if v.ask == nil {
			return fmt.Errorf("the host key of %s is not known: %s %s: %w: compare it with `ssh-keygen -lf` of its "+
				"key on that host's own console, then give --accept-host-key %s",
				e.shown(), key.Type(), print, ErrNobodyToAsk, print)
		}
		yes, err := v.ask.HostKey(ctx, e.shown(), key.Type(), print)
		if err != nil {
			return err
		}
		if !yes {
			return fmt.Errorf("the host key of %s (%s) was not accepted", name, print)
		}
	}
	return remember(e, name, key)
}

// remember writes a key to known_hosts.
func remember(e endpoint, name string, key ssh.PublicKey) error {
	if len(e.known) == 0 {
		return nil // UserKnownHostsFile none: accepted for this run only
	}
	path := e.known[0]
	if e.hash {
		name = xknownhosts.HashHostname(name)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("remember the host key of %s: %w", e.host, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("remember the host key of %s: %w", e.host, err)
	}
	defer f.Close()
	line := xknownhosts.Line([]string{name}, key) + "\n"
	if st, err := f.Stat(); err == nil && st.Size() > 0 {
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, st.Size()-1); err == nil && last[0] != '\n' {
			line = "\n" + line
		}
	}
	if _, err := f.WriteString(line); err != nil {
		return fmt.Errorf("remember the host key of %s: %w", e.host, err)
	}
	return nil
}

func known(e endpoint) (*knownhosts.HostKeyDB, error) {
	var files []string
	for _, f := range append(slices.Clone(e.known), e.global...) {
		if st, err := os.Stat(f); err == nil && !st.IsDir() {
			files = append(files, f)
		}
	}
	db, err := knownhosts.NewDB(files...)
	if err != nil {
		return nil, fmt.Errorf("read known_hosts: %w", err)
	}
	return db, nil
}

// refusal names the line that a host's key contradicts.
func refusal(e endpoint, key ssh.PublicKey, err error) error {
	name := knownhosts.Normalize(e.keyName)
	var changed *xknownhosts.KeyError
	var revoked *xknownhosts.RevokedError
	switch {
	case errors.As(err, &revoked):
		return fmt.Errorf("the host key of %s is revoked by %s:%d", name, revoked.Revoked.Filename, revoked.Revoked.Line)
	case errors.As(err, &changed):
		var lines []string
		for _, k := range changed.Want {
			lines = append(lines, fmt.Sprintf("%s:%d (%s)", k.Filename, k.Line, ssh.FingerprintSHA256(k.Key)))
		}
		return fmt.Errorf("the host key of %s has changed: it shows %s, and known_hosts has %s: somebody may be in "+
			"between; if the host was set up anew, `ssh-keygen -R %q` forgets the old key",
			name, ssh.FingerprintSHA256(key), strings.Join(lines, ", "), name)
	}
	return fmt.Errorf("the host key of %s: %w", name, err)
}
