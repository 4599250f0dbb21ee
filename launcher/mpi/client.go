package mpi

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Client speaks PMI-1 as a rank does: for sparkrun's own ranks, of an Open MPI job and of
// ib-test.
type Client struct {
	conn io.ReadWriteCloser
	in   *bufio.Reader
	Rank int
	Size int
	name string
}

// pmiVars say where a rank's process manager is. They must not reach an Open MPI program,
// which would take them as its own.
var pmiVars = []string{"PMI_FD", "PMI_RANK", "PMI_SIZE"}

// ClientFromEnv connects to the process manager of this process.
func ClientFromEnv() (*Client, error) {
	fd, err := strconv.Atoi(os.Getenv("PMI_FD"))
	rank, err1 := strconv.Atoi(os.Getenv("PMI_RANK"))
	size, err2 := strconv.Atoi(os.Getenv("PMI_SIZE"))
	if err := errors.Join(err, err1, err2); err != nil || fd < 3 {
		return nil, errors.New("no PMI_FD, PMI_RANK and PMI_SIZE: this command works only as a part of a job")
	}
	unix.CloseOnExec(fd)
	return NewClient(os.NewFile(uintptr(fd), "pmi"), rank, size)
}

// NewClient begins PMI-1 on a connection.
func NewClient(conn io.ReadWriteCloser, rank, size int) (*Client, error) {
	c := &Client{conn: conn, in: bufio.NewReader(conn), Rank: rank, Size: size}
	if _, err := c.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init"); err != nil {
		return nil, err
	}
	m, err := c.ask("cmd=get_my_kvsname", "my_kvsname")
	if err != nil {
		return nil, err
	}
	c.name = m.args["kvsname"]
	return c, nil
}

// Put publishes a value of any length and any bytes, in pieces. The others can Get it after
// the next Barrier.
func (c *Client) Put(key, value string) error {
	text := base64.StdEncoding.EncodeToString([]byte(value))
	for i := 0; ; i++ {
		piece := text[:min(len(text), MaxValue-1)]
		text = text[len(piece):]
		more := "."
		if text != "" {
			more = "+"
		}
		if _, err := c.ask(fmt.Sprintf("cmd=put kvsname=%s key=%s-%d value=%s%s", c.name, key, i, more, piece),
			"put_result"); err != nil {
			return err
		}
		if text == "" {
			return nil
		}
	}
}

// Get gives a value that was Put before the last Barrier.
func (c *Client) Get(key string) (string, error) {
	var text strings.Builder
	for i := 0; ; i++ {
		m, err := c.ask(fmt.Sprintf("cmd=get kvsname=%s key=%s-%d", c.name, key, i), "get_result")
		if err != nil {
			return "", err
		}
		piece := m.args["value"]
		if piece == "" {
			return "", fmt.Errorf("get %s: %w: an empty piece", key, ErrMalformed)
		}
		text.WriteString(piece[1:])
		if piece[0] == '.' {
			break
		}
	}
	value, err := base64.StdEncoding.DecodeString(text.String())
	if err != nil {
		return "", fmt.Errorf("get %s: %w", key, err)
	}
	return string(value), nil
}

// Barrier waits for all ranks.
func (c *Client) Barrier() error {
	_, err := c.ask("cmd=barrier_in", "barrier_out")
	return err
}

// Finalize ends PMI-1 and closes the connection.
func (c *Client) Finalize() error {
	_, err := c.ask("cmd=finalize", "finalize_ack")
	return errors.Join(err, c.conn.Close())
}

func (c *Client) ask(line, want string) (message, error) {
	cmd, _, _ := strings.Cut(strings.TrimPrefix(line, "cmd="), " ")
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		return message{}, fmt.Errorf("%s: %w", cmd, err)
	}
	text, err := c.in.ReadString('\n')
	if err != nil {
		return message{}, fmt.Errorf("%s: the process manager hung up: %w", cmd, err)
	}
	m, err := parse(strings.TrimSuffix(text, "\n"))
	switch {
	case err != nil:
		return m, fmt.Errorf("%s: %w", cmd, err)
	case m.cmd != want:
		return m, fmt.Errorf("%s: %w: answered %s, not %s", cmd, ErrMalformed, m.cmd, want)
	case m.args["rc"] != "" && m.args["rc"] != "0":
		return m, fmt.Errorf("%s: refused: %s", cmd, m.args["msg"])
	}
	return m, nil
}
