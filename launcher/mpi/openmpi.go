package mpi

import (
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
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// Commands of sparkrun that are not for people: an Open MPI job is made of them.
const (
	NodeCommand   = "mpi-node"   // a rank of the job: mpirun on rank 0's node, a daemon of its elsewhere
	RemoteCommand = "mpi-remote" // what mpirun takes for its ssh
)

// Options of NodeCommand.
type Options struct {
	PerNode int    // MPI ranks on each node
	BindTo  string // as mpirun takes it
	Stdin   string // which MPI rank reads it, as mpirun takes it
	Mpirun  string // a path; empty: that of the program's own Open MPI
	Argv    []string
}

// Args are the command line that NodeCommand takes its Options from.
func (o Options) Args() []string {
	args := []string{NodeCommand, "-nproc", strconv.Itoa(o.PerNode), "-bind-to", o.BindTo, "-stdin", o.Stdin}
	if o.Mpirun != "" {
		args = append(args, "-mpirun", o.Mpirun)
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
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if o.Argv = fs.Args(); len(o.Argv) == 0 {
		return o, errors.New("no program")
	}
	return o, nil
}

// OptionsOf reads them out of a rank's command line; false: it is not of an Open MPI job.
func OptionsOf(argv []string) (Options, bool) {
	if len(argv) < 2 || argv[1] != NodeCommand {
		return Options{}, false
	}
	o, err := parseOptions(argv[2:])
	return o, err == nil
}

// exitBroken is the code of a job whose mpirun could not be started.
const exitBroken = 125

// NodeMain is the whole of `sparkrun mpi-node`, one on each node of an Open MPI job,
// as a rank of it; it gives the exit code. They find each other in the key-value space
// of the job's ranks, which the shims keep: there is no port, key or password to it.
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
		_ = os.Unsetenv(name) // it fails for no name such as these
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

// daemon becomes the daemon that mpirun asks for on this node: this process is then its.
func daemon(c *Client) error {
	err := c.Barrier() // in which mpirun's wishes come
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
	// Its words hold quotes that are meant for the shell that ssh would give them to.
	err = syscall.Exec("/bin/sh", []string{"sh", "-c", command}, os.Environ())
	return fmt.Errorf("start Open MPI's daemon: %w", err)
}

func nodeKey(rank int) string   { return "sparkrun-node-" + strconv.Itoa(rank) }
func daemonKey(rank int) string { return "sparkrun-daemon-" + strconv.Itoa(rank) }

// place is what a node tells mpirun's of itself.
type place struct {
	Addr    string            `json:"addr"` // on the network on which the job's nodes meet
	Network string            `json:"network"`
	If      map[string]string `json:"if"` // interfaces that its hardware calls for, by variable
}

// ifVars name a node's own interface, which mpirun would have all nodes use.
var ifVars = []string{"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"}

func whereabouts() place {
	p := place{Addr: os.Getenv("SPARKRUN_ADDR"), If: map[string]string{}}
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

// networkOf is the subnet of an address of this machine; empty if it has no such.
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

// interfaces settles what all nodes are to use. A name that all share stands, as does
// what the user has set; where a machine calls its port otherwise, the subnet says it
// for all: Open MPI takes both (mpirun(1), ompi_info --param btl tcp).
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

// head runs mpirun, and has the other nodes run the daemons that it asks for.
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
	cmd := exec.Command(run.path, run.args(o, places)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = run.env(os.Environ(), places, l.Addr().String(), o.PerNode > runtime.NumCPU())
	// They are for mpirun, which is in our group and gets them too; its end is ours.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	if err := cmd.Start(); err != nil {
		return exitBroken, fmt.Errorf("start %s: %w", run.path, err)
	}
	placed := make(chan error, 1)
	go func() { // ends with l at the latest
		err := pass(c, l, places)
		if err != nil {
			_ = cmd.Process.Kill() // it would wait for its daemons; it has started no rank
		}
		placed <- err
	}()
	err = cmd.Wait()
	l.Close()
	if err := <-placed; err != nil {
		return exitBroken, fmt.Errorf("start Open MPI's daemons: %w", err)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return exitBroken, fmt.Errorf("run %s: %w", run.path, err)
	}
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// maxTemp is how long the path of a folder for temporary files may be, so that a socket's
// below it has room in sockaddr_un(7), 108 bytes with a zero.
const maxTemp = 107 - len("/sparkrun-mpi-0123456789/remote.sock")

// listenRemote makes a socket for mpirun's remote starts, in a folder that is this user's
// alone, until away.
func listenRemote() (l net.Listener, away func(), err error) {
	at := os.TempDir()
	if len(at) > maxTemp {
		at = "/tmp"
	}
	dir, err := os.MkdirTemp(at, "sparkrun-mpi-")
	if err != nil {
		return nil, nil, fmt.Errorf("make a folder for mpirun's remote starts: %w: set TMPDIR to one that can be written", err)
	}
	if l, err = net.Listen("unix", filepath.Join(dir, "remote.sock")); err != nil {
		os.RemoveAll(dir)
		return nil, nil, fmt.Errorf("listen for mpirun's remote starts: %w: set TMPDIR to a folder of a local disk", err)
	}
	return l, func() { l.Close(); os.RemoveAll(dir) }, nil
}

// wish is what mpirun wants run on a host.
type wish struct {
	Host    string `json:"host"`
	Command string `json:"command"`
}

// pass takes mpirun's wishes, one for each other node, and tells them all at once.
// Each connection stays until mpirun has ended: to it that is its ssh.
func pass(c *Client, l net.Listener, places []place) error {
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
			return nil // mpirun has ended before it wanted anything
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
	_, _ = l.Accept() // nobody comes: it ends when l is closed
	return nil
}

func tell(c *Client, wishes []wish, places []place) error {
	for _, w := range wishes {
		i := slices.IndexFunc(places, func(p place) bool { return p.Addr == w.Host })
		if i < 1 {
			return fmt.Errorf("mpirun wants a daemon on %q, which is none of the job's other nodes", w.Host)
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

// remoteSocket tells RemoteCommand where head listens.
const remoteSocket = "SPARKRUN_MPI_REMOTE"

// RemoteMain is `sparkrun mpi-remote HOST COMMAND...`, which mpirun starts as it would
// ssh: it asks head for a daemon there, and stays until head leaves. If mpirun is still there
// then, head could not have the daemon started: the code says so, and head itself why.
func RemoteMain(args []string) int {
	if err := remoteMain(args); err != nil {
		fmt.Fprintln(os.Stderr, "sparkrun:", err)
	}
	return exitBroken
}

func remoteMain(args []string) error {
	path := os.Getenv(remoteSocket)
	if path == "" || len(args) < 2 {
		return errors.New("this is what `sparkrun launch mpi` gives mpirun as its ssh, and nothing by itself")
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		return fmt.Errorf("ask for a daemon on %s: %w", args[0], err)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(wish{Host: args[0], Command: strings.Join(args[1:], " ")}); err != nil {
		return fmt.Errorf("ask for a daemon on %s: %w", args[0], err)
	}
	// Nothing is ever said here.
	_, _ = io.Copy(io.Discard, conn)
	return nil
}

// mpirun is Open MPI's own launcher, as it lies on this machine.
type mpirun struct {
	path  string
	major int // of Open MPI
	// reads: ranks may read each other's memory (process_vm_readv(2)). Some engines' containers
	// may not; Open MPI tries it all the same, and says so at each message.
	reads bool
}

// mayRead tries it on this process itself, which may be refused by a filter alone.
func mayRead() bool {
	from, to := []byte{1}, []byte{0}
	remote := unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&from[0])), Len: 1}
	_, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{{Base: &to[0], Len: 1}}, []unix.RemoteIovec{remote}, 0)
	runtime.KeepAlive(from)
	return err == nil
}

// findMpirun looks beside the program's own libmpi first: of two versions only that
// one can start it. Debian has MPICH's mpirun beside Open MPI's, by their full names.
func findMpirun(o Options) (mpirun, error) {
	if o.Mpirun != "" {
		return askVersion(o.Mpirun)
	}
	names := []string{"mpirun.openmpi", "mpirun"}
	if program, err := exec.LookPath(o.Argv[0]); err == nil {
		if linked, err := FamilyOf(program, os.Getenv("LD_LIBRARY_PATH")); err == nil && linked.Family == launcher.OpenMPI && linked.Folder != "" {
			names = append([]string{filepath.Join(filepath.Dir(linked.Folder), "bin", "mpirun")}, names...)
		}
	}
	var tried []error
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		run, err := askVersion(path)
		if err == nil {
			return run, nil
		}
		tried = append(tried, err)
	}
	if len(tried) > 0 {
		return mpirun{}, fmt.Errorf("find Open MPI's mpirun in PATH: %w: name it with --mpirun", errors.Join(tried...))
	}
	return mpirun{}, errors.New("find Open MPI's mpirun: not in PATH on this node: install openmpi-bin, or name it with --mpirun")
}

// 4.x says "mpirun.openmpi (OpenRTE) 4.1.4" or "mpirun (Open MPI) 4.1.4", 5.x "mpirun (Open MPI) 5.0.3".
var versionLine = regexp.MustCompile(`\((?:OpenRTE|Open MPI)\) v?(\d+)\.`)

func askVersion(path string) (mpirun, error) {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return mpirun{}, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := versionLine.FindSubmatch(out)
	if m == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		return mpirun{}, fmt.Errorf("%s is not Open MPI's: it says %.80q", path, first)
	}
	major, err := strconv.Atoi(string(m[1]))
	return mpirun{path, major, mayRead()}, err
}

// args name hosts by their addresses, which need no resolver, and place as many ranks on
// each as sparkrun has promised.
func (m mpirun) args(o Options, places []place) []string {
	hosts := make([]string, len(places))
	for i, p := range places {
		hosts[i] = fmt.Sprintf("%s:%d", p.Addr, o.PerNode)
	}
	args := []string{
		"-np", strconv.Itoa(o.PerNode * len(places)), "--host", strings.Join(hosts, ","),
		"--map-by", fmt.Sprintf("ppr:%d:node", o.PerNode), "--bind-to", o.BindTo, "--stdin", o.Stdin,
	}
	return append(args, o.Argv...)
}

// env is mpirun's: what it passes on to all ranks of it are variables OMPI_*. All else
// each node's ranks have of their own node, as its daemon was started with it, so that
// nothing has to be named with -x. crowded: ranks outnumber processors, and one that
// waits for another should let it run.
func (m mpirun) env(base []string, places []place, socket string, crowded bool) []string {
	// Its first word must be a program on every node, as the daemons look for it too,
	// though they start nothing; the rest is this very process's program.
	agent := fmt.Sprintf("/usr/bin/env /proc/%d/exe %s", os.Getpid(), RemoteCommand)
	set := map[string]string{remoteSocket: socket}
	if m.major >= 5 {
		set["PRTE_MCA_plm"], set["PRTE_MCA_plm_ssh_agent"] = "ssh", agent
		set["PRTE_MCA_plm_ssh_no_tree_spawn"], set["PRTE_MCA_prte_leave_session_attached"] = "1", "1"
		set["PRTE_MCA_plm_ssh_num_concurrent"] = strconv.Itoa(max(128, len(places)))
	} else {
		set["OMPI_MCA_plm"], set["OMPI_MCA_plm_rsh_agent"] = "rsh", agent
		set["OMPI_MCA_plm_rsh_no_tree_spawn"], set["OMPI_MCA_orte_leave_session_attached"] = "1", "1"
		set["OMPI_MCA_plm_rsh_num_concurrent"] = strconv.Itoa(max(128, len(places)))
	}
	if crowded {
		set["OMPI_MCA_mpi_yield_when_idle"] = "1"
	}
	if !m.reads {
		alone, value := "OMPI_MCA_btl_vader_single_copy_mechanism", "none"
		if m.major >= 5 {
			alone, value = "OMPI_MCA_smsc", "^cma"
		}
		if !slices.ContainsFunc(base, func(v string) bool { return strings.HasPrefix(v, alone+"=") }) {
			set[alone] = value
		}
	}
	for _, name := range ifVars {
		value, ok := interfaces(places, name)
		if !ok {
			continue
		}
		set[name] = value
		if m.major >= 5 && name == "OMPI_MCA_oob_tcp_if_include" {
			set["PRTE_MCA_prte_if_include"] = value
		}
	}
	if os.Geteuid() == 0 { // whoever launches as root has said so to sparkrun
		for _, name := range []string{"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"} {
			set[name] = "1"
		}
	}
	env := slices.DeleteFunc(slices.Clone(base), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, ours := set[name]
		return ours
	})
	for name, value := range set {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}
