package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// What one user, root excepted, can have the agent hold for them: it is spared by the
// OOM killer, and its descriptors are raft's and the ranks' too.
const (
	localConns = 1024      // connections open at once
	localBytes = 256 << 20 // of requests that have not been answered
)

// listenLocal opens the CLI's socket: for root and the group sparkrun.
func listenLocal(path string) (net.Listener, error) {
	if err := os.Remove(path); ignoreMissing(err) != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	gid := -1
	if g, err := user.LookupGroup(socketGroup); err == nil {
		gid, _ = strconv.Atoi(g.Gid)
	}
	if err := errors.Join(os.Chown(path, -1, gid), os.Chmod(path, 0o660)); err != nil {
		l.Close()
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return l, nil
}

// locals is the CLI's socket with its users' books.
type locals struct {
	net.Listener
	log      *slog.Logger
	uid      func(net.Conn) (uint32, error)
	name     func(ctx context.Context, uid uint32) (string, error)
	maxBytes int64 // localBytes; less in tests

	mu    sync.Mutex
	conns map[uint32]int   // open, by uid
	bytes map[uint32]int64 // held, by uid
}

func newLocals(l net.Listener, log *slog.Logger) *locals {
	return &locals{Listener: l, log: log, uid: peerUID, name: loginName, maxBytes: localBytes, conns: map[uint32]int{}, bytes: map[uint32]int64{}}
}

// local is a connection of a user's: the kernel says whose (SO_PEERCRED).
type local struct {
	net.Conn
	of   *locals
	uid  uint32
	once sync.Once

	naming sync.Mutex // one question at a time
	name   string     // empty: not known yet
}

// Accept never waits for a name: a directory server that hangs would keep root out too.
func (ls *locals) Accept() (net.Conn, error) {
	for {
		c, err := ls.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if uid, err := ls.uid(c); err != nil || !ls.enter(uid) {
			c.Close()
		} else {
			return &local{Conn: c, of: ls, uid: uid}, nil
		}
	}
}

func (ls *locals) enter(uid uint32) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if uid != 0 && ls.conns[uid] >= localConns {
		return false
	}
	ls.conns[uid]++
	return true
}

// Close takes it out of the books.
func (c *local) Close() error {
	c.once.Do(func() {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		if c.of.conns[c.uid]--; c.of.conns[c.uid] == 0 {
			delete(c.of.conns, c.uid)
		}
	})
	return c.Conn.Close()
}

// caller is asked for in each call, and found out once.
func (c *local) caller(ctx context.Context) (wire.Caller, error) {
	c.naming.Lock()
	defer c.naming.Unlock()
	if c.name == "" {
		ctx, cancel := context.WithTimeout(ctx, directoryTimeout)
		defer cancel()
		name, err := c.of.name(ctx, c.uid)
		if err != nil {
			return wire.Caller{}, err
		}
		c.name = name
	}
	return wire.Caller{User: &wire.User{Name: c.name, UID: c.uid}}, nil
}

// hold counts bytes of a user's requests; n below zero lets go of some.
func (ls *locals) hold(uid uint32, n int64) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	held := ls.bytes[uid] + n
	if n > 0 && uid != 0 && held > ls.maxBytes {
		return fmt.Errorf("uid %d has %d bytes of requests under way: wait for their answers", uid, ls.bytes[uid])
	}
	if ls.bytes[uid] = held; held == 0 {
		delete(ls.bytes, uid)
	}
	return nil
}

// body counts what is read of a request, until that is answered.
type body struct {
	io.ReadCloser
	hold func(n int64) error
	held int64
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if over := b.hold(int64(n)); over != nil {
		return 0, over
	}
	b.held += int64(n)
	return n, err
}

type localKey struct{}

// server serves users.
func (ls *locals) server(h http.Handler) *http.Server {
	srv := &http.Server{Protocols: new(http.Protocols), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10,
		HTTP2: &http.HTTP2Config{MaxReadFrameSize: frameSize, MaxConcurrentStreams: 64},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, localKey{}, c)
		},
	}
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(localKey{}).(*local)
		caller, err := c.caller(r.Context())
		if err != nil { // no user: the call is refused
			ls.log.Warn("refuse a local call", "uid", c.uid, "error", err)
		}
		b := &body{ReadCloser: r.Body, hold: func(n int64) error { return ls.hold(c.uid, n) }}
		r = r.WithContext(wire.WithCaller(r.Context(), caller))
		r.Body = b
		defer func() { _ = ls.hold(c.uid, -b.held) }()
		h.ServeHTTP(w, r)
	})
	srv.Protocols.SetUnencryptedHTTP2(true)
	return srv
}

func peerUID(c net.Conn) (uint32, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a unix socket")
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, credErr
	}
	return cred.Uid, nil
}

// loginName gives a uid's login on this node.
func loginName(ctx context.Context, uid uint32) (string, error) {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username, nil
	}
	// Built without cgo, os/user reads /etc/passwd only: LDAP and SSSD users
	// are known to the C library.
	out, err := exec.CommandContext(ctx, "getent", "passwd", id).Output()
	name, _, found := strings.Cut(string(out), ":")
	if ctx.Err() != nil {
		return "", fmt.Errorf("find the login of uid %d: getent: %w", uid, ctx.Err())
	}
	if err != nil || !found || name == "" {
		return "", fmt.Errorf("uid %d has no login on this node", uid)
	}
	return name, nil
}
