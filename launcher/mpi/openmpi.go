package mpi

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Commands of sparkrun that are not for people: an Open MPI job consists of them.
const (
	NodeCommand   = "mpi-node"   // a rank of the job: mpirun on rank 0's node, one of its daemons elsewhere
	RemoteCommand = "mpi-remote" // mpirun runs it as its ssh
)

// Options of NodeCommand.
type Options struct {
	PerNode int    // MPI ranks on each node
	BindTo  string // as mpirun takes it
	Stdin   string // which MPI rank reads it, as mpirun takes it
	Mpirun  string // a path; empty: the one of the program's own Open MPI
	Argv    []string
	// Task is the index in Argv of a command that the words before it start in the background on MPI
	// rank 0: the job ends when that ends, with its code (task.go). 0: there is none.
	Task int
}

// Args are the command line from which NodeCommand parses its Options; Argv may follow it.
func (o Options) Args() []string {
	args := []string{NodeCommand, "-nproc", strconv.Itoa(o.PerNode), "-bind-to", o.BindTo, "-stdin", o.Stdin}
	if o.Mpirun != "" {
		args = append(args, "-mpirun", o.Mpirun)
	}
	if o.Task > 0 {
		args = append(args, "-task", strconv.Itoa(o.Task))
	}
	return append(append(args, "--"), o.Argv...)
}

func parseOptions(args []string) (o Options, err error) {
	fs := flag.NewFlagSet(NodeCommand, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.IntVar(&o.PerNode, "nproc", 1, "")
	fs.StringVar(&o.BindTo, "bind-to", "none", "")
	fs.StringVar(&o.Stdin, "stdin", "0", "")
	fs.StringVar(&o.Mpirun, "mpirun", "", "")
	fs.IntVar(&o.Task, "task", 0, "")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.Argv = fs.Args(); len(o.Argv) == 0 {
		return o, errors.New("no program")
	}
	if o.Task < 0 || o.Task >= len(o.Argv) {
		return o, fmt.Errorf("-task %d of %d words", o.Task, len(o.Argv))
	}
	return o, nil
}

// OptionsOf parses them from a rank's command line; false: it is not of an Open MPI job.
func OptionsOf(argv []string) (Options, bool) {
	if len(argv) < 2 || argv[1] != NodeCommand {
		return Options{}, false
	}
	o, err := parseOptions(argv[2:])
	return o, err == nil
}

// exitBroken is the code of a job whose mpirun could not be started.
const exitBroken = 125

// NodeMain is the whole of `sparkrun mpi-node`, one on each node of an Open MPI job, as a
// rank of it; it returns the exit code. The nodes find each other in the key-value space of
// the job's ranks, which the shims keep: that needs no port, key or password.
func NodeMain(args []string) int {
	code, err := nodeMain(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "sparkrun:", err)
	}
	return code
}

func nodeMain(args []string) (int, error) {
	o, err := parseOptions(args)
	if err != nil {
		return exitBroken, fmt.Errorf("%s: %w", NodeCommand, err)
	}
	c, err := ClientFromEnv()
	if err != nil {
		return exitBroken, err
	}
	for _, name := range pmiVars {
		_ = os.Unsetenv(name) // it does not fail for such names
	}
	me, err := json.Marshal(whereabouts())
	if err == nil {
		err = c.Put(nodeKey(c.Rank), string(me))
	}
	if err == nil {
		err = c.Barrier()
	}
	if err != nil {
		return exitBroken, fmt.Errorf("meet the job's other nodes: %w", err)
	}
	if c.Rank == 0 {
		return head(c, o)
	}
	return exitBroken, daemon(c)
}

// daemon execs the daemon that mpirun asks for on this node.
func daemon(c *Client) error {
	err := c.Barrier() // after it mpirun's request is there
	var command string
	if err == nil {
		command, err = c.Get(daemonKey(c.Rank))
	}
	if err == nil {
		err = c.Finalize()
	}
	if err != nil {
		return fmt.Errorf("wait for mpirun on rank 0's node: %w", err)
	}
	// The command has quotes for the shell that ssh would pass it to.
	err = syscall.Exec("/bin/sh", []string{"sh", "-c", command}, os.Environ())
	return fmt.Errorf("start Open MPI's daemon: %w", err)
}

func nodeKey(rank int) string   { return "sparkrun-node-" + strconv.Itoa(rank) }
func daemonKey(rank int) string { return "sparkrun-daemon-" + strconv.Itoa(rank) }

// place is what a node publishes about itself for mpirun's node.
type place struct {
	Addr    string            `json:"addr"` // on the network that the job's nodes use
	Host    string            `json:"host,omitempty"`
	Network string            `json:"network"`
	If      map[string]string `json:"if"` // interfaces that its hardware calls for, by variable
}

// ifVars name a node's own interface, which mpirun would make all nodes use.
var ifVars = []string{"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"}

func whereabouts() place {
	p := place{Addr: os.Getenv("SPARKRUN_ADDR"), Host: os.Getenv("SPARKRUN_HOST"), If: map[string]string{}}
	for _, name := range ifVars {
		if v, ok := os.LookupEnv(name); ok {
			p.If[name] = v
		}
	}
	if addr, err := netip.ParseAddr(p.Addr); err == nil {
		p.Network = networkOf(addr)
	}
	return p
}

// networkOf is the subnet of an address of this machine; empty if it does not have that
// address.
func networkOf(addr netip.Addr) string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr() == addr {
			return p.Masked().String()
		}
	}
	return ""
}

// interfaces decides what all nodes are to use. A name that all share is kept, as is what
// the user has set; if a machine has another name for its port, the subnet is used for all:
// Open MPI takes both (mpirun(1), ompi_info --param btl tcp).
func interfaces(places []place, name string) (value string, ok bool) {
	var values, networks []string
	for _, p := range places {
		if v := p.If[name]; !slices.Contains(values, v) {
			values = append(values, v)
		}
		if p.Network != "" && !slices.Contains(networks, p.Network) {
			networks = append(networks, p.Network)
		}
	}
	switch {
	case len(values) == 1:
		return values[0], values[0] != ""
	case len(networks) == 0:
		return "", false
	}
	return strings.Join(networks, ","), true
}

// head runs mpirun, and makes the other nodes run the daemons that it asks for.
func head(c *Client, o Options) (int, error) {
	places := make([]place, c.Size)
	for i := range places {
		text, err := c.Get(nodeKey(i))
		if err == nil {
			err = json.Unmarshal([]byte(text), &places[i])
		}
		if err != nil {
			return exitBroken, fmt.Errorf("learn of node %d: %w", i, err)
		}
	}
	run, err := findMpirun(o)
	if err != nil {
		return exitBroken, err
	}
	l, away, err := listenRemote()
	if err != nil {
		return exitBroken, err
	}
	defer away()
	asked := o
	if o.Task > 0 {
		asked.Argv = taskArgv(o)
	}
	cmd := exec.Command(run.path, run.args(asked, places)...)
	cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
	cmd.Env = run.env(os.Environ(), places, l.Addr().String(), o.PerNode > runtime.NumCPU())
	// They are for mpirun, which is in our group and gets them too; we end when it does.
	ending := make(chan os.Signal, 1)
	signal.Notify(ending, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	ctx, over := context.WithCancel(context.Background())
	defer over()
	heard, err := startHeard(ctx, cmd)
	if err != nil {
		return exitBroken, fmt.Errorf("start %s: %w", run.path, err)
	}
	var task *taskEnd
	placed := make(chan error, 1)
	go func() { // ends with l and ctx at the latest
		err := pass(c, l, places, func() {
			if o.Task > 0 {
				task = attend(ctx, l, o.Argv[o.Task:])
				task.endsAll(ctx, cmd.Process, o.Argv[o.Task])
			}
			_, _ = l.Accept() // nothing connects: it returns when l is closed
		})
		if err != nil {
			_ = cmd.Process.Kill() // it would wait for its daemons; it has started no rank
		}
		placed <- err
	}()
	err = cmd.Wait()
	over()
	l.Close()
	notPlaced := <-placed
	failed := heard()
	if notPlaced != nil {
		return exitBroken, fmt.Errorf("start Open MPI's daemons: %w", notPlaced)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return exitBroken, fmt.Errorf("run %s: %w", run.path, err)
	}
	code := cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	if failed != 0 {
		code = failed
	}
	if own := task.code(code); own != code {
		return own, nil
	}
	if code != 0 && len(ending) == 0 && len(places) > 1 {
		tellPlaces(os.Stderr, places, o.PerNode)
	}
	return code, nil
}

// tellPlaces prints where MPI ranks are: mpirun names a failed one by its number alone, and
// people want to know the machine (launcher/diagnose, mpirunSays).
func tellPlaces(w io.Writer, places []place, perNode int) {
	var hosts []string
	for _, p := range places {
		if p.Host == "" { // of a node with an older version
			return
		}
		hosts = append(hosts, p.Host)
	}
	fmt.Fprintf(w, "sparkrun: MPI ranks, %d a machine, were on %s\n", perNode, strings.Join(hosts, " "))
}

// maxTemp is how long the path of a folder for temporary files may be, so that a socket
// below it fits into sockaddr_un(7), 108 bytes with a zero.
const maxTemp = 107 - len("/sparkrun-mpi-0123456789/remote.sock")

// listenRemote makes a socket for mpirun's remote starts, in a folder that is this user's
// alone; away removes it.
func listenRemote() (l net.Listener, away func(), err error) {
	at := os.TempDir()
	if len(at) > maxTemp {
		at = "/tmp"
	}
	dir, err := os.MkdirTemp(at, "sparkrun-mpi-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder for mpirun's remote starts: %w: set TMPDIR to one that can be "+
			"written", err)
	}
	if l, err = net.Listen("unix", filepath.Join(dir, "remote.sock")); err != nil {
		os.RemoveAll(dir)
		return nil, nil, fmt.Errorf("listen for mpirun's remote starts: %w: set TMPDIR to a folder of a local disk", err)
	}
	return l, func() { l.Close(); os.RemoveAll(dir) }, nil
}

// wish is a command that mpirun wants to run on a host, or a task's question what to run
// (task.go).
type wish struct {
	Host    string `json:"host,omitempty"`
	Command string `json:"command,omitempty"`
	Task    bool   `json:"task,omitempty"`
}

// pass takes mpirun's wishes, one for each other node, and publishes them all at once; then
// calls then. Each connection stays open until then has returned, when mpirun has ended:
// for mpirun it is its ssh.
func pass(c *Client, l net.Listener, places []place, then func()) error {
	var wishes []wish
	var open []net.Conn
	defer func() {
		for _, conn := range open {
			conn.Close()
		}
	}()
	for len(wishes) < len(places)-1 {
		conn, err := l.Accept()
		if err != nil {
			return nil // mpirun has ended before it asked for anything
		}
		open = append(open, conn)
		var w wish
		if err := json.NewDecoder(conn).Decode(&w); err != nil {
			return fmt.Errorf("read mpirun's wish: %w", err)
		}
		wishes = append(wishes, w)
	}
	if err := tell(c, wishes, places); err != nil {
		return err
	}
	then()
	return nil
}

func tell(c *Client, wishes []wish, places []place) error {
	for _, w := range wishes {
		i := slices.IndexFunc(places, func(p place) bool { return p.Addr == w.Host })
		if i < 1 {
			return fmt.Errorf("mpirun wants a daemon on %q, which is not one of the job's other nodes", w.Host)
		}
		if err := c.Put(daemonKey(i), w.Command); err != nil {
			return err
		}
	}
	if len(places) > 1 {
		if err := c.Barrier(); err != nil {
			return err
		}
	}
	return c.Finalize()
}

// remoteSocket is the variable that gives RemoteCommand head's socket.
const remoteSocket = "SPARKRUN_MPI_REMOTE"

// RemoteMain is `sparkrun mpi-remote HOST COMMAND...`, which mpirun starts as it would ssh:
// it asks head for a daemon there, and stays until head ends. If mpirun is still there
// then, head could not have the daemon started: the exit code says so, and head prints why.
func RemoteMain(args []string) int {
	if err := remoteMain(args); err != nil {
		fmt.Fprintln(os.Stderr, "sparkrun:", err)
	}
	return exitBroken
}

func remoteMain(args []string) error {
	path := os.Getenv(remoteSocket)
	if path == "" || len(args) < 2 {
		return errors.New("this command works only as mpirun's ssh, in a job of `sparkrun launch mpi`")
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return fmt.Errorf("ask for a daemon on %s: %w", args[0], err)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(wish{Host: args[0], Command: strings.Join(args[1:], " ")}); err != nil {
		return fmt.Errorf("ask for a daemon on %s: %w", args[0], err)
	}
	// Nothing is ever sent here.
	_, _ = io.Copy(io.Discard, conn)
	return nil
}
