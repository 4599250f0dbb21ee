package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// An exec session is a command in a container beside its program. On the host it has an
// outer half of its own, which asks the rank's outer half, at sessionSocket, to have the
// inner half connect to the session's own socket, and sends the command there. No engine is
// used and no namespace is entered: the command is the inner half's child, and has what
// that has.

// sessionSocket is in Spec.HandDir. It is ours alone: processes in the container see it and
// may not connect.
const sessionSocket = "door.sock"

// sessionRequest asks the inner half to connect to a socket beside sessionSocket.
type sessionRequest struct {
	Session string `json:"guest"`
}

// maxSessionRequest bounds what is read of one, in bytes.
const maxSessionRequest = 4 << 10

// listenSessions listens for exec sessions.
func listenSessions(s Spec) (*net.UnixListener, error) {
	ln, err := listenAt(s.HandDir, sessionSocket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Join(s.HandDir, sessionSocket), 0o600); err != nil {
		ln.Close()
		return nil, fmt.Errorf("listen for exec sessions: %w", err)
	}
	return ln, nil
}

// answerSessions passes on requests until the listener is closed.
func answerSessions(listener *net.UnixListener, pass func(toInner) error) {
	for {
		c, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(askAgain) // EMFILE: sessions end, and free descriptors
			continue
		}
		go func() { // ends with its deadline
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(handWait))
			var k sessionRequest
			if json.NewDecoder(io.LimitReader(c, maxSessionRequest)).Decode(&k) == nil && k.Session != "" {
				_ = pass(toInner{Session: filepath.Base(k.Session)})
			}
		}()
	}
}

// askAgain is the time between two attempts when descriptors are short.
const askAgain = 200 * time.Millisecond

// execInside runs a command in the container of another outer half.
func (o *outer) execInside(ctx context.Context) (err error) {
	s := o.order.Spec
	name := fmt.Sprintf("guest-%d.sock", os.Getpid())
	_ = os.Remove(filepath.Join(s.HandDir, name)) // left by a killed session of this number
	ln, err := listenAt(s.HandDir, name)
	if err != nil {
		return err
	}
	defer os.Remove(filepath.Join(s.HandDir, name))
	defer ln.Close()
	if err := giveSocket(s, name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handWait,
		fmt.Errorf("container %s did not connect within %s: is it stopped (docker pause)?", s.Name, handWait))
	defer cancel()
	if err := o.requestSession(name); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = o.accept(ln)
	return cause(ctx, err)
}

func (o *outer) requestSession(session string) error {
	s := o.order.Spec
	dir, err := os.OpenFile(s.HandDir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open folder of the container's socket: %w", err)
	}
	defer dir.Close()
	c, err := net.Dial("unix", inDir(dir, sessionSocket))
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("container %s was started by an older sparkrun, which cannot run commands beside its ranks: "+
			"docker exec -it %[1]s COMMAND, on its machine", s.Name)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("container %s is ending", s.Name)
	case err != nil:
		return fmt.Errorf("reach container %s: %w", s.Name, err)
	}
	defer c.Close()
	return json.NewEncoder(c).Encode(sessionRequest{Session: session})
}
