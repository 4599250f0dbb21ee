package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// handName is the socket in Spec.HandDir on which the two halves meet. After an upgrade
// between prepare and start the halves have different versions: their messages must not
// change.
const handName = "hand.sock"

// Main runs either half, and returns the process's exit code.
func Main(arg string) int {
	switch arg {
	case InnerArg:
		return runInner()
	case OuterArg:
		return runOuter()
	}
	fmt.Fprintf(os.Stderr, "sparkrun: %q is not a half of a container\n", arg)
	return launcher.ExitOwnFailure
}

// Command is the command in a container, in bytes, for it need not be UTF-8.
type Command struct {
	Argv [][]byte `json:"argv"`
	// Env is added to the image's; on equal names ours wins.
	Env [][]byte `json:"env"`
	Dir []byte   `json:"dir"`
	TTY bool     `json:"tty,omitempty"`
}

// toInner is a message to the inner half: the first one is a Command.
type toInner struct {
	Signal  int    `json:"signal"`
	Session string `json:"guest,omitempty"` // instead of a signal: the socket of an exec session, to connect to
}

// toOuter is a message to the outer half: spawned or an error, then, once, an exit.
type toOuter struct {
	Spawned bool   `json:"born,omitempty"`
	Error   string `json:"error,omitempty"`
	// Code of an error, as a shell's: 127 where there is no such program, else 126.
	Code int            `json:"code,omitempty"`
	Exit *launcher.Exit `json:"exit,omitempty"`
	// Outside: the engine had told the container to end before this exit; older halves do
	// not set it.
	Outside bool `json:"outside,omitempty"`
}

// line is one end of the connection.
type line struct {
	*net.UnixConn
	enc *json.Encoder
	dec *json.Decoder
}

func newLine(c *net.UnixConn) *line { return &line{c, json.NewEncoder(c), json.NewDecoder(c)} }

// listenHand makes the folder, writable for us alone, and in it the socket of the rank's
// user. On the host the folder above, the attempt's, keeps all others out.
func listenHand(s Spec) (*net.UnixListener, error) {
	err := os.Mkdir(s.HandDir, 0o711)
	if err == nil {
		err = os.Chmod(s.HandDir, 0o711) // whatever the umask is
	}
	if err != nil {
		return nil, fmt.Errorf("make folder of the container's socket: %w: is %s full, or gone?", err,
			filepath.Dir(s.HandDir))
	}
	ln, err := listenAt(s.HandDir, handName)
	if err != nil {
		return nil, err
	}
	if err := giveSocket(s, handName); err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// listenAt makes a socket. It is removed with the attempt's folder, and not when it is
// closed: by then its path may be another one's.
func listenAt(folder, name string) (*net.UnixListener, error) {
	dir, err := os.OpenFile(folder, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("open folder of the container's socket: %w", err)
	}
	defer dir.Close()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: inDir(dir, name), Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen for the container in %s: %w", folder, err)
	}
	ln.SetUnlinkOnClose(false)
	return ln, nil
}

// inDir is a socket's path by its folder's descriptor: a socket's path has at most 108
// bytes (unix(7)), and folders may be longer.
func inDir(dir *os.File, name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)
}

// giveSocket lets the rank's user connect.
func giveSocket(s Spec, name string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := os.Chown(filepath.Join(s.HandDir, name), int(s.UID), int(s.GID)); err != nil {
		return fmt.Errorf("hand the socket to uid %d: %w", s.UID, err)
	}
	return nil
}

// peer is the process at the other end, according to the kernel.
func peer(c *net.UnixConn) (uid uint32, pid int, err error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	var cred *unix.Ucred
	var cerr error
	err = rc.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, cerr); err != nil {
		return 0, 0, err
	}
	return cred.Uid, int(cred.Pid), nil
}

// maxFDs is how many descriptors a program can get: 0, 1, 2, and one more.
const maxFDs = 4

// give sends a command and its descriptors, which become 0 and up.
func (l *line) give(cmd Command, fds []int) error {
	if _, _, err := l.WriteMsgUnix([]byte{'\n'}, unix.UnixRights(fds...), nil); err != nil {
		return err
	}
	return l.enc.Encode(cmd)
}

// take receives them. The descriptors are closed at an exec.
func (l *line) take() (cmd Command, fds []int, err error) {
	var one [1]byte
	oob := make([]byte, unix.CmsgSpace(maxFDs*4))
	// net sets MSG_CMSG_CLOEXEC.
	n, oobn, _, _, err := l.ReadMsgUnix(one[:], oob)
	if err != nil {
		return cmd, fds, err
	}
	if n == 0 {
		return cmd, fds, io.EOF
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil || len(msgs) != 1 {
		return cmd, fds, fmt.Errorf("receive descriptors: %d messages: %w", len(msgs), errors.Join(err, unix.EPROTO))
	}
	fds, err = unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) < 3 {
		return cmd, fds, fmt.Errorf("receive descriptors: %d of them: %w", len(fds), errors.Join(err, unix.EPROTO))
	}
	return cmd, fds, l.dec.Decode(&cmd)
}
