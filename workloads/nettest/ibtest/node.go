package ibtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/mpi"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// space is where the ranks of a test tell each other what is where, and wait for all.
type space interface {
	Put(key, value string) error
	Get(key string) (string, error)
	Barrier() error
}

// nodeRank is one node's part of a test.
type nodeRank struct {
	plan  Plan
	me    int // rank, and the plan's number of this node
	port  int // the first of its servers'
	space space
	out   *json.Encoder
	sysfs string
	dir   string // for perftest's files
	proc  string // /proc/net/tcp
	// survey reads this machine's hardware; linger is how long a server may take to end
	// after its client has.
	survey func(context.Context) (envgen.Inventory, error)
	linger time.Duration

	inv  *envgen.Inventory // as it was read last; nil: not yet
	json map[string]bool   // by program: it writes JSON
	mu   sync.Mutex        // of out
}

// NodeMain is the whole of `sparkrun ib-test-node PORT PLAN`, a rank of a test; it gives the
// exit code. What a perftest says is no failure of the rank: whoever reads judges it.
func NodeMain(args []string, sysfs string, survey func(context.Context) (envgen.Inventory, error)) int {
	if err := nodeMain(args, sysfs, survey); err != nil {
		fmt.Fprintln(os.Stderr, "sparkrun:", err)
		return launcher.ExitOwnFailure
	}
	return 0
}

func nodeMain(args []string, sysfs string, survey func(context.Context) (envgen.Inventory, error)) (err error) {
	if len(args) != 2 {
		return fmt.Errorf("%s: this is a part of `sparkrun launch ib-test`, and nothing by itself", NodeCommand)
	}
	port, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("read port: %w", err)
	}
	plan, err := ParsePlan(args[1])
	if err != nil {
		return err
	}
	space, err := mpi.ClientFromEnv()
	if err != nil {
		return err
	}
	me, host := space.Rank, os.Getenv("SPARKRUN_HOST")
	if me >= len(plan.Nodes) || plan.Nodes[me].Host != host {
		return fmt.Errorf("rank %d is on %s, and the plan has another machine there", me, host)
	}
	dir, err := os.MkdirTemp("", "sparkrun-ib-")
	if err != nil {
		return fmt.Errorf("make a folder for perftest's files: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	r := &nodeRank{
		plan: plan, me: me, port: port, space: space, out: json.NewEncoder(os.Stdout), sysfs: sysfs, dir: dir,
		proc: "/proc/net/tcp", survey: survey, linger: 5 * time.Second,
	}
	if err := r.carryOut(context.Background()); err != nil { // a stop is the job's, by its cgroup
		return err
	}
	return space.Finalize()
}

// far is what a server tells its client: where it listens, or why it does not.
type far struct {
	Port  int    `json:"port"`
	Error string `json:"error,omitempty"`
}

func runKey(step, run int) string { return fmt.Sprintf("ib-%d-%d", step, run) }

// carryOut takes the plan's steps. Two barriers frame what is measured: none begins before
// all servers listen, and no step before all of the last one has ended.
func (r *nodeRank) carryOut(ctx context.Context) error {
	for i, step := range r.plan.Steps {
		servers, err := r.serve(ctx, i, step)
		if err == nil {
			err = r.space.Barrier()
		}
		if err == nil {
			err = r.measure(ctx, i, step)
		}
		if err == nil {
			err = r.space.Barrier()
		}
		for run, s := range servers {
			r.endServer(i, run, s)
		}
		if err != nil {
			return fmt.Errorf("step %d of the test: %w", i, err)
		}
	}
	return nil
}

// serve starts this node's servers of a step, by run, and tells when they listen.
func (r *nodeRank) serve(ctx context.Context, i int, step Step) (map[int]*perftest, error) {
	servers := map[int]*perftest{}
	for j, run := range step.Runs {
		_, to := r.plan.Ends(run)
		if to.Node != r.me {
			continue
		}
		at := far{Port: r.port + len(servers)}
		s, err := r.start(ctx, step.Test, to.Way, at.Port, netip.Addr{}, "")
		servers[j] = s
		if err == nil {
			err = r.awaitListening(s, at.Port)
		}
		if err != nil {
			at.Error = err.Error()
		}
		text, err := json.Marshal(at)
		if err == nil {
			err = r.space.Put(runKey(i, j), string(text))
		}
		if err != nil {
			return servers, err
		}
	}
	return servers, nil
}

// measure runs this node's clients of a step side by side, and tells what each said.
func (r *nodeRank) measure(ctx context.Context, i int, step Step) error {
	ctx, cancel := context.WithTimeout(ctx, r.plan.Patience())
	defer cancel()
	var clients sync.WaitGroup
	defer clients.Wait()
	for j, run := range step.Runs {
		from, to := r.plan.Ends(run)
		if from.Node != r.me {
			continue
		}
		text, err := r.space.Get(runKey(i, j))
		var at far
		if err == nil {
			err = json.Unmarshal([]byte(text), &at)
		}
		if err != nil {
			return err
		}
		line := Line{IBTest: 1, Step: i, Run: j}
		if at.Error != "" {
			line.Error = fmt.Sprintf("%s: %s", r.plan.Nodes[to.Node].Host, at.Error)
			r.tell(line)
			continue
		}
		file := ""
		if r.writesJSON(ctx, step.Test) {
			file = filepath.Join(r.dir, fmt.Sprintf("%d-%d.json", i, j))
		}
		c, err := r.start(ctx, step.Test, from.Way, at.Port, to.Way.Addr, file)
		if err != nil {
			line.Error = err.Error()
			r.tell(line)
			continue
		}
		clients.Go(func() {
			<-c.ended
			c.fill(&line)
			if ctx.Err() != nil {
				line.Error = fmt.Sprintf("it did not end within %s", r.plan.Patience())
			}
			if file != "" {
				line.File = readShort(file)
			}
			r.tell(line)
		})
	}
	return nil
}

// endServer waits for a server whose client has ended, and tells of one with complaints.
func (r *nodeRank) endServer(i, j int, s *perftest) {
	if s == nil {
		return // what kept it from its start its client has told
	}
	alone := time.NewTimer(r.linger)
	defer alone.Stop()
	select {
	case <-s.ended:
	case <-alone.C:
		s.kill()
		<-s.ended
	}
	line := Line{IBTest: 1, Step: i, Run: j, Server: true}
	s.fill(&line)
	if line.Exit != 0 && line.Err != "" {
		r.tell(line)
	}
}

func (r *nodeRank) tell(l Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.out.Encode(l) // a closed output ends the rank by SIGPIPE
}

// perftest is one of its programs that runs.
type perftest struct {
	cmd      *exec.Cmd
	out, err short
	kill     context.CancelFunc
	ended    chan struct{}
}

// start begins one side of a run.
func (r *nodeRank) start(ctx context.Context, test string, way Way, port int, server netip.Addr,
	file string) (*perftest, error) {
	gid, err := r.gidOf(ctx, way)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &perftest{kill: cancel, ended: make(chan struct{})}
	argv := r.plan.Command(test, way, gid, port, server, file)
	p.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.WaitDelay = &p.out, &p.err, time.Second
	if err := p.cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() { // ends with the program, which ctx ends
		defer close(p.ended)
		defer cancel()
		_ = p.cmd.Wait() // its exit code is told
	}()
	return p, nil
}

// fill is for a program that has ended.
func (p *perftest) fill(l *Line) {
	l.Argv, l.Exit = p.cmd.Args, p.cmd.ProcessState.ExitCode()
	l.Out, l.Err = p.out.String(), p.err.String()
}

// short keeps the beginning of what is written.
type short struct{ kept bytes.Buffer }

func (s *short) Write(b []byte) (int, error) {
	s.kept.Write(b[:min(len(b), MaxText-s.kept.Len())])
	return len(b), nil
}

func (s *short) String() string { return strings.ToValidUTF8(s.kept.String(), "?") }

// readShort gives a file that perftest has written; empty where it has not.
func readShort(name string) string {
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxText))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(string(text), "?")
}

// gidOf is where the RoCE v2 row of a way's address is now. Reading all tables is costly
// on some drivers, and rows seldom move: one that is where it was needs no other look.
func (r *nodeRank) gidOf(ctx context.Context, way Way) (int, error) {
	for range 2 {
		if r.inv == nil {
			inv, err := r.survey(ctx)
			if err != nil {
				return 0, fmt.Errorf("read the hardware: %w", err)
			}
			r.inv = &inv
		}
		h, ok := r.inv.Device(way.Device)
		i := slices.IndexFunc(h.GIDs,
			func(g envgen.GID) bool { return g.Type == envgen.GIDTypeRoCEv2 && g.Addr.Unmap() == way.Addr })
		if ok && i >= 0 && r.isRow(way, h.GIDs[i].Index) {
			return h.GIDs[i].Index, nil
		}
		r.inv = nil
	}
	return 0, fmt.Errorf("%s has no RoCE v2 GID of %s", way.Device, way.Addr)
}

// isRow looks whether a row of the table has that address and type.
func (r *nodeRank) isRow(way Way, index int) bool {
	port := filepath.Join(r.sysfs, "class/infiniband", way.Device, "ports/1")
	row := strconv.Itoa(index)
	value, err := os.ReadFile(filepath.Join(port, "gids", row))
	kind, err2 := os.ReadFile(filepath.Join(port, "gid_attrs/types", row))
	if err != nil || err2 != nil {
		return false
	}
	addr, err := netip.ParseAddr(strings.TrimSpace(string(value)))
	return err == nil && addr.Unmap() == way.Addr && strings.TrimSpace(string(kind)) == envgen.GIDTypeRoCEv2
}

// writesJSON asks a program's help, once, whether it knows --out_json: perftest has it since 4.5.
func (r *nodeRank) writesJSON(ctx context.Context, test string) bool {
	program := Program(test)
	known, asked := r.json[program]
	if !asked {
		help, _ := exec.CommandContext(ctx, program, "--help").CombinedOutput() // some exit with 1
		known = bytes.Contains(help, []byte("--out_json_file"))
		if r.json == nil {
			r.json = map[string]bool{}
		}
		r.json[program] = known
	}
	return known
}

// awaitListening returns when the server waits for its client. To connect would be to be it.
func (r *nodeRank) awaitListening(s *perftest, port int) error {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	patience := time.NewTimer(r.plan.Patience())
	defer patience.Stop()
	for {
		text, err := os.ReadFile(r.proc)
		if err != nil {
			return fmt.Errorf("look for its server: %w", err)
		}
		if len(proc.Listening(string(text), port)) > 0 {
			return nil
		}
		select {
		case <-s.ended:
			return fmt.Errorf("%s ended before its client came: %s", s.cmd.Args[0],
				strings.Join(strings.Fields(s.err.String()+s.out.String()), " "))
		case <-patience.C:
			return fmt.Errorf("%s does not listen after %s", s.cmd.Args[0], r.plan.Patience())
		case <-look.C:
		}
	}
}
