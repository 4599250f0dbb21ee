package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/diagnose"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

const (
	// explainWait bounds the reading: a disk that hangs must not delay an exit.
	explainWait = time.Second
	// explainMost is how many failed ranks of an attempt are explained: when a thousand
	// fail, the first ones say why.
	explainMost = 16
	// explainLooks bounds the reads of one user's files that hang, over all jobs; they
	// count towards maxLooks.
	explainLooks = 100

	recordMost = 256 << 10 // bytes of an error file
)

// explained adds to a rank's failure what this node knows of its cause. It is called
// outside the attempt's loop, for it reads files.
func (t *attempt) explained(ctx context.Context, ev shim.Event) shim.Event {
	if ev.Kind != shim.Exited || ev.Exit == nil || ev.Exit.Error != "" {
		return ev
	}
	// For a service an exit with 0 is a failure, too; and a rank that was ended with the
	// others may have been the cause.
	if serves := t.assignment != nil && t.assignment.Spec.Service != nil; !serves && (!ev.Exit.Failed() || ev.Exit.ByUs) {
		return ev
	}
	if t.explains.Add(1) > explainMost {
		return ev
	}
	user := ""
	if t.assignment != nil {
		user = t.assignment.Spec.User
	}
	done, err := t.a.looks(user, explainLooks)
	if err != nil {
		t.a.cfg.Logger.Warn("explain exit", "job", t.key.Job, "rank", ev.Rank, "error", err)
		return ev
	}
	told := make(chan launcher.Exit, 1)
	go func() { // ends when its reads do; it is waited for no longer than explainWait
		defer done()
		told <- t.diagnose(ctx, ev)
	}()
	wait := time.NewTimer(explainWait)
	defer wait.Stop()
	select {
	case exit := <-told:
		ev.Exit = &exit
	case <-wait.C:
		t.a.cfg.Logger.Warn("explain exit: reading takes too long", "job", t.key.Job, "rank", ev.Rank)
	case <-ctx.Done():
	}
	return ev
}

// diagnose finds out why a rank ended.
func (t *attempt) diagnose(ctx context.Context, ev shim.Event) launcher.Exit {
	record, err := t.errorFile(ctx, ev.Rank)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.a.cfg.Logger.Warn("read error file", "job", t.key.Job, "rank", ev.Rank, "error", err)
	}
	of := diagnose.Case{PID: ev.PID, Ended: ev.Time, LogDir: t.a.logDir(t.key), Rank: ev.Rank, Record: record,
		Group:     string(t.a.cfg.Node) + "-" + t.key.String(),
		Contained: t.assignment != nil && t.assignment.Spec.MainStage().Container != nil}
	if ev.ContainerPID != 0 { // the process that the kernel's log names, if it killed one
		of.PID = ev.ContainerPID
	}
	return t.a.servers.Explain(of, *ev.Exit)
}

// errorDir lies outside RunDir and LogDir, which the ranks' user cannot enter, and
// belongs to that user. It depends on key and node alone, so that it is known after
// a restart too.
func errorDir(k launcher.Key, node launcher.NodeID) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("sparkrun-%s-%s", k, node))
}

func errorPath(as launcher.Assignment, rank int) string {
	return filepath.Join(errorDir(as.Key, as.Node), fmt.Sprintf("rank-%d.json", rank))
}

// makeErrorDir makes the folder. Anybody may write beside it, and who has seen one attempt
// of a job can guess the names of the next ones: a folder of theirs with links in it would
// make the rank write where the links lead. So whatever is there and is not the rank's
// user's alone is removed, if we are root, or refused.
func makeErrorDir(as launcher.Assignment, who login.User) error {
	if err := makeAlone(errorDir(as.Key, as.Node), who); err != nil {
		return fmt.Errorf("make folder for error files: %w", err)
	}
	return nil
}

// makeAlone makes a folder that is the user's alone, in place of anything else that is there.
func makeAlone(dir string, who login.User) error {
	err := os.Mkdir(dir, 0o700)
	for again := 0; errors.Is(err, fs.ErrExist) && again < 10; again++ {
		if who.HasAlone(dir) {
			return nil
		}
		if rerr := removeTree(dir); rerr != nil {
			return fmt.Errorf("%s belongs to another user: remove it: %w", dir, rerr)
		}
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = who.Own(dir)
	}
	return err
}

// errorFile reads a rank's error file with its user's rights, as it may be a link.
func (t *attempt) errorFile(ctx context.Context, rank int) (data []byte, err error) {
	if t.assignment == nil {
		return nil, nil
	}
	who, err := login.Lookup(ctx, t.assignment.Spec.User)
	if err != nil {
		return nil, err
	}
	err = who.Do(func() error {
		f, err := os.OpenFile(errorPath(*t.assignment, rank), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil || !st.Mode().IsRegular() {
			return err
		}
		data, err = io.ReadAll(io.LimitReader(f, recordMost))
		return err
	})
	return data, err
}
