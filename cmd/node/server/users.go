package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// localConns is how many connections one user, except root, may have open at once.
const localConns = 1024

// listenLocal opens the CLI's socket, for root and the group sparkrun.
func listenLocal(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// locals is the CLI's socket with its users' quotas.
type locals struct {
	net.Listener
	log    *rendezvous.Sparing
	uid    func(net.Conn) (uint32, error)
	name   func(ctx context.Context, uid uint32) (string, error)
	quotas *quotas
}

func newLocals(l net.Listener, log *slog.Logger) *locals {
	return &locals{Listener: l, log: rendezvous.NewSparing(log, quietFor), uid: peerUID, name: loginName,
		quotas: newQuotas("connections", Quota{}.or(localConns))}
}

// local is a user's connection; the kernel says whose (SO_PEERCRED).
type local struct {
	net.Conn
	of   *locals
	uid  uint32
	once sync.Once

	naming sync.Mutex // one lookup at a time
	name   string     // empty: not known yet
}

// Accept never waits for a user's name: a directory server that hangs would lock out root
// too.
func (ls *locals) Accept() (net.Conn, error) {
	for {
		c, err := ls.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := ls.uid(c)
		if err == nil {
			err = ls.quotas.enter(holderOf(uid))
		}
		if err == nil {
			return &local{Conn: c, of: ls, uid: uid}, nil
		}
		c.Close()
	}
}

func holderOf(uid uint32) holder { return holder{name: fmt.Sprintf("uid %d", uid), root: uid == 0} }

// Close also releases the connection from the user's quota.
func (c *local) Close() error {
	c.once.Do(func() { c.of.quotas.leave(holderOf(c.uid)) })
	return c.Conn.Close()
}

// caller is called for each call; the name is looked up once.
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

type localKey struct{}

// server serves users by HTTP/1: HTTP/2 would hand each frame of output from goroutine to goroutine. It understands
// HTTP/2 too, which is all that older commands speak: they follow their jobs over an upgrade of the agent.
func (ls *locals) server(h http.Handler) *http.Server {
	srv := &http.Server{Protocols: new(http.Protocols), ReadHeaderTimeout: 10 * time.Second, MaxHeaderBytes: 8 << 10,
		ErrorLog: errorLog(ls.log),
		HTTP2:    &http.HTTP2Config{MaxReadFrameSize: frameSize, MaxConcurrentStreams: 64},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, localKey{}, c)
		},
	}
	srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(localKey{}).(*local)
		caller, err := c.caller(r.Context())
		if err != nil { // such a uid is no user: the call is refused
			ls.log.Say(slog.LevelWarn, "refuse a local call", strconv.Itoa(int(c.uid)), slog.Any("uid", c.uid),
				slog.Any("error", err))
		}
		r = r.WithContext(wire.WithCaller(r.Context(), caller))
		defer ls.quotas.meter(holderOf(c.uid), r)()
		h.ServeHTTP(w, r)
	})
	srv.Protocols.SetHTTP1(true)
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
	if err := raw.Control(func(fd uintptr) {
		cred,
			credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
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
