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

// A guest is a command in a container beside its program. What stands for it on the host is a half of its own: it
// knocks at the outer half's door, which has the inner half call at the guest's own socket, and hands over the
// command there as an outer half does. Neither an engine nor a namespace that is entered has a part in it: the
// command is the inner half's child, and has what that has.

// doorName is the socket in Spec.HandDir at which guests knock. It is ours alone: what runs in the container
// sees it and may not connect.
const doorName = "door.sock"

// knock asks the inner half to call at a socket beside the door's.
type knock struct {
	Guest string `json:"guest"`
}

// maxKnock bounds what is read of one, in bytes.
const maxKnock = 4 << 10

// openDoor listens for guests.
func openDoor(s Spec) (*net.UnixListener, error) {
	ln, err := listenAt(s.HandDir, doorName)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(filepath.Join(s.HandDir, doorName), 0o600); err != nil {
		ln.Close()
		return nil, fmt.Errorf("listen for guests: %w", err)
	}
	return ln, nil
}

// answerDoor passes on who knocks, until the door is closed.
func answerDoor(door *net.UnixListener, pass func(toInner) error) {
	for {
		c, err := door.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(askAgain) // EMFILE: guests go as well as they come
			continue
		}
		go func() { // ends with its deadline
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(handWait))
			var k knock
			if json.NewDecoder(io.LimitReader(c, maxKnock)).Decode(&k) == nil && k.Guest != "" {
				_ = pass(toInner{Guest: filepath.Base(k.Guest)})
			}
		}()
	}
}

// askAgain is between two tries of what fails for want of descriptors.
const askAgain = 200 * time.Millisecond

// visit hands a command over to the container of another outer half.
func (o *outer) visit(ctx context.Context) (err error) {
	s := o.order.Spec
	name := fmt.Sprintf("guest-%d.sock", os.Getpid())
	_ = os.Remove(filepath.Join(s.HandDir, name)) // of one of this number that was killed
	ln, err := listenAt(s.HandDir, name)
	if err != nil {
		return err
	}
	defer os.Remove(filepath.Join(s.HandDir, name))
	defer ln.Close()
	if err := giveSocket(s, name); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handWait, fmt.Errorf("container %s did not call for %s: is it stopped (docker pause)?", s.Name, handWait))
	defer cancel()
	if err := o.knock(name); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err = o.accept(ln)
	return cause(ctx, err)
}

func (o *outer) knock(guest string) error {
	s := o.order.Spec
	dir, err := os.OpenFile(s.HandDir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return fmt.Errorf("open folder of the hand-over: %w", err)
	}
	defer dir.Close()
	c, err := net.Dial("unix", inDir(dir, doorName))
	switch {
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("container %s was started by an older sparkrun, which lets no guest in: docker exec -it %[1]s COMMAND, on its machine", s.Name)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("container %s is ending", s.Name)
	case err != nil:
		return fmt.Errorf("reach container %s: %w", s.Name, err)
	}
	defer c.Close()
	return json.NewEncoder(c).Encode(knock{Guest: guest})
}
