// Command witness is what a test has sparkrun run as ranks: it writes down what
// happens to it, in a folder that all hosts share. See the package above it for
// what is made of that.
//
//	witness rank DIR [flags]    a rank: identity from its environment
//	witness stray DIR           forked by a rank, in a session of its own
//	witness watch DIR [flags]   asks `sparkrun ps` again and again, until it is ended
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sparkrun/sparkrun/scripts/e2e/witness"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "witness:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("want rank, stray or watch, and the folder to write to")
	}
	dir, flags := args[1], flag.NewFlagSet(args[0], flag.ContinueOnError)
	switch args[0] {
	case "rank":
		r := &rank{dir: dir}
		flags.StringVar(&r.stage, "stage", "", "the stage that it is of")
		flags.DurationVar(&r.life, "life", 0, "how long it lives; 0: until it is ended")
		flags.IntVar(&r.code, "code", 0, "its exit code at the end of its life; 137: it is killed")
		flags.IntVar(&r.only, "only", -1, "the rank that ends then; -1: everyone")
		flags.BoolVar(&r.spares, "spares", false, "its exit ends no other rank")
		flags.BoolVar(&r.deaf, "deaf", false, "ignore TERM")
		flags.BoolVar(&r.forks, "forks", false, "leave a process behind in another session")
		flags.DurationVar(&r.pace, "pace", 50*time.Millisecond, "between two lines")
		if err := flags.Parse(args[2:]); err != nil {
			return err
		}
		return r.run()
	case "stray":
		return stray(dir, len(args) > 2)
	case "watch":
		every := flags.Duration("every", 250*time.Millisecond, "how often")
		if err := flags.Parse(args[2:]); err != nil {
			return err
		}
		return watch(dir, *every)
	}
	return fmt.Errorf("%q: want rank, stray or watch", args[0])
}

// beat is how often a process says that it lives.
const beat = 50 * time.Millisecond

type rank struct {
	dir, stage string
	life, pace time.Duration
	code, only int
	deaf       bool
	forks      bool
	spares     bool
}

// self reads who this process is. The attempt is in the mark that the shim gives to
// whatever it execs; what a rank forks inherits it.
func self(stage string) (witness.Record, error) {
	job, rest, _ := strings.Cut(os.Getenv("SPARKRUN_GANG"), ".")
	gen, _, _ := strings.Cut(rest, "/")
	r := witness.Record{Job: job, Stage: stage, PID: int32(os.Getpid())}
	var err error
	if r.Generation, err = strconv.ParseUint(gen, 10, 64); err != nil {
		return r, fmt.Errorf("SPARKRUN_GANG=%q: %w", os.Getenv("SPARKRUN_GANG"), err)
	}
	for name, to := range map[string]*int32{"RANK": &r.Rank, "WORLD_SIZE": &r.World, "SPARKRUN_NODE_COUNT": &r.Nodes} {
		n, err := strconv.ParseInt(os.Getenv(name), 10, 32)
		if err != nil {
			return r, fmt.Errorf("%s=%q: %w", name, os.Getenv(name), err)
		}
		*to = int32(n)
	}
	r.Host, err = os.Hostname()
	return r, err
}

func (r *rank) run() error {
	me, err := self(r.stage)
	if err != nil {
		return err
	}
	book, err := witness.Open(r.dir, fmt.Sprintf("%s-%d", me.Key(), me.Rank))
	if err != nil {
		return err
	}
	say := func(kind witness.Kind, fill func(*witness.Record)) error {
		rec := me
		rec.Kind = kind
		if fill != nil {
			fill(&rec)
		}
		return book.Write(rec)
	}
	if err := say(witness.Start, nil); err != nil {
		return err
	}
	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	signal.Ignore(syscall.SIGPIPE)
	if r.forks {
		// A session of its own, and a parent that is gone: what KILL to a process
		// group misses.
		cmd := exec.Command("/proc/self/exe", "stray", r.dir, "fork")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("fork a stray: %w", err)
		}
	}
	exit := func(code int) error {
		err := say(witness.Exit, func(x *witness.Record) {
			if x.Code = int32(code); r.spares {
				x.State = witness.Spares
			}
		})
		if err != nil {
			return err
		}
		if code == 128+int(syscall.SIGKILL) {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		os.Exit(code)
		return nil
	}
	var end <-chan time.Time
	if r.life > 0 && (r.only < 0 || int32(r.only) == me.Rank) {
		end = time.After(r.life)
	}
	beats, lines := time.NewTicker(beat), time.NewTicker(r.pace)
	for n := uint64(1); ; {
		select {
		case <-beats.C:
			if err := say(witness.Beat, nil); err != nil {
				return err
			}
		case <-lines.C:
			text := witness.Text(me.Key(), me.Rank, n)
			if err := say(witness.Line, func(x *witness.Record) { x.Number, x.Hash = n, witness.Hash(text) }); err != nil {
				return err
			}
			n++
			if _, err := os.Stdout.WriteString(text); err != nil {
				return err
			}
		case <-terms:
			if !r.deaf {
				return exit(128 + int(syscall.SIGTERM))
			}
		case <-end:
			return exit(r.code)
		}
	}
}

// stray forks another and leaves it, or is that other: then it writes that it
// lives, deaf to TERM, until it is killed.
func stray(dir string, forks bool) error {
	if forks {
		cmd := exec.Command("/proc/self/exe", "stray", dir)
		return cmd.Start()
	}
	me, err := self("")
	if err != nil {
		return err
	}
	book, err := witness.Open(dir, fmt.Sprintf("%s-%d-stray", me.Key(), me.Rank))
	if err != nil {
		return err
	}
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP)
	for me.Kind = witness.Beat; ; time.Sleep(beat) {
		if err := book.Write(me); err != nil {
			return err
		}
	}
}

// doubts finds the machines that a cause tells were given up: "spark2 has not answered for 10s".
var doubts = regexp.MustCompile(`\b(\w+) has (?:not answered|lost)\b`)

// watch writes down what this host is told of all jobs.
func watch(dir string, every time.Duration) error {
	book, err := witness.Open(dir, "watch")
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	ended := map[string]witness.Record{}
	for ctx.Err() == nil {
		if err := ask(ctx, book, host, ended); err != nil {
			return err
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
		}
	}
	return nil
}

// ask takes down one answer. One that no leader gave is none: it says what one
// node happens to know, and says so on standard error. That a job has ended is
// taken down once, as long as nothing else is said of it; and then also that it is gone.
func ask(ctx context.Context, book *witness.Book, host string, ended map[string]witness.Record) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sparkrun", "ps", "--all", "--json")
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	asked := witness.Record{Kind: witness.State, Host: host, PID: int32(os.Getpid())}.Stamp()
	err := cmd.Run()
	asked.Until = witness.Now()
	if err != nil || complaint.Len() > 0 {
		return nil // no leader, no agent: the next one may answer
	}
	var jobs []struct {
		Job        string `json:"job_id"`
		Name       string `json:"name"`
		Generation uint64 `json:"generation"`
		State      string `json:"state"`
		Code       *int32 `json:"exit_code"`
		Cause      string `json:"cause"`
	}
	if err := json.Unmarshal(out.Bytes(), &jobs); err != nil {
		return fmt.Errorf("ps --json: %w: %s", err, out.Bytes())
	}
	gone := maps.Clone(ended)
	for _, j := range jobs {
		delete(gone, j.Job)
		r := asked
		r.Job, r.Name, r.Generation, r.State, r.Code = j.Job, j.Name, j.Generation, j.State, -1
		if j.Code != nil {
			r.Code = *j.Code
		}
		for _, m := range doubts.FindAllStringSubmatch(j.Cause, 3) { // more names would not fit
			r.Doubts += " " + m[1]
		}
		if was, ok := ended[r.Job]; ok && was.State == r.State && was.Code == r.Code && was.Generation == r.Generation {
			continue
		}
		if delete(ended, r.Job); j.Code != nil {
			ended[r.Job] = r
		}
		if err := book.Append(r); err != nil {
			return err
		}
	}
	for job, was := range gone {
		r := asked
		if delete(ended, job); len(jobs) < witness.Remembers {
			r.Kind, r.Name = witness.Gone, was.Name
			if err := book.Append(r); err != nil {
				return err
			}
		}
	}
	asked.Kind, asked.Number = witness.Answer, uint64(len(jobs))
	return book.Append(asked)
}
