package mpi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// lastWords passes on what mpirun writes on stderr, and finds in it that mpirun ends the job because ranks have
// failed. Open MPI 5 says so with its own process number, "Process name: [prterun-spark1-123@1,3]" and "Exit code: 1"
// (prrte/src/docs/show-help-files/help-prterun.txt), and has to be gone soon after. Where all ranks fail at once
// it sometimes waits for its daemons without an end (5.0.11: 8 of 62 launches on five machines, 3 of them by ssh).
type lastWords struct {
	to   io.Writer
	says *regexp.Regexp
	late []byte // what may be the beginning of it
	code int    // of the rank that failed first; 0: mpirun has not said
	said chan struct{}
}

// longestWords is how many bytes of stderr may hold both lines.
const longestWords = 1 << 10

func (w *lastWords) Write(p []byte) (int, error) {
	if w.code == 0 {
		w.late = append(w.late, p...)
		if m := w.says.FindSubmatch(w.late); m != nil {
			w.code, _ = strconv.Atoi(string(m[1])) // three digits
			close(w.said)
		}
		w.late = bytes.Clone(w.late[max(0, len(w.late)-longestWords):])
	}
	return w.to.Write(p)
}

// startHeard starts mpirun, whose stderr goes through lastWords, and ends it once it has had mpirunGrace after them and
// is still there when ctx is not done. heard, called once mpirun is gone, passes on the rest of stderr; what others
// that have it write later than two seconds is lost. It returns the job's code where mpirun was ended so, else 0.
func startHeard(ctx context.Context, cmd *exec.Cmd) (heard func() int, err error) {
	r, stderr, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = stderr
	err = cmd.Start()
	stderr.Close()
	if err != nil {
		r.Close()
		return nil, err
	}
	w := &lastWords{to: os.Stderr, said: make(chan struct{}),
		says: regexp.MustCompile(fmt.Sprintf(`The first process to do so was:\s+Process name: \[\S*-%d@\d+,\d+\]\s+Exit code:\s+([1-9]\d{0,2})\s`, cmd.Process.Pid))}
	var both sync.WaitGroup
	ended := false
	both.Go(func() {
		// A reader that is gone is mpirun's trouble, as it would be without this.
		_, err := io.Copy(w, r)
		if errors.Is(err, os.ErrDeadlineExceeded) { // what was in the pipe by then still is
			_ = r.SetReadDeadline(time.Now().Add(time.Second))
			rest := make([]byte, 64<<10) // a pipe's size (pipe(7))
			n, _ := r.Read(rest)
			_, _ = w.Write(rest[:n])
		}
		r.Close()
	})
	both.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-w.said:
		}
		select {
		case <-ctx.Done():
		case <-time.After(mpirunGrace):
			if ended = cmd.Process.Kill() == nil; ended {
				fmt.Fprintf(os.Stderr, "sparkrun: mpirun had said that a rank failed, and did not end within %s: it was killed\n", mpirunGrace)
			}
		}
	})
	return func() int {
		_ = r.SetReadDeadline(time.Now().Add(time.Second)) // a pipe has them
		both.Wait()
		if ended {
			return w.code
		}
		return 0
	}, nil
}
