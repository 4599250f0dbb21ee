package mpi

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// mpirun is Open MPI's own launcher, as installed on this machine.
type mpirun struct {
	path  string
	major int // of Open MPI
	// reads: ranks may read each other's memory (process_vm_readv(2)). In containers of
	// some engines they may not; Open MPI tries it all the same, and complains at each
	// message.
	reads bool
}

// mayRead tries it on this process itself, which only a seccomp filter refuses.
func mayRead() bool {
	from, to := []byte{1}, []byte{0}
	remote := unix.RemoteIovec{Base: uintptr(unsafe.Pointer(&from[0])), Len: 1}
	_, err := unix.ProcessVMReadv(os.Getpid(), []unix.Iovec{{Base: &to[0], Len: 1}}, []unix.RemoteIovec{remote}, 0)
	runtime.KeepAlive(from)
	return err == nil
}

// findMpirun looks beside the program's own libmpi first: of two versions only that one can
// start it. Debian has MPICH's mpirun beside Open MPI's, by their full names.
func findMpirun(o Options) (mpirun, error) {
	if o.Mpirun != "" {
		return askVersion(o.Mpirun)
	}
	names, what := []string{"mpirun.openmpi", "mpirun"}, "find Open MPI's mpirun"
	if program, err := exec.LookPath(o.Argv[0]); err == nil {
		if linked, err := FamilyOf(program, os.Getenv("LD_LIBRARY_PATH")); err == nil &&
			linked.Family == launcher.OpenMPI && linked.Folder != "" {
			names = append([]string{filepath.Join(filepath.Dir(linked.Folder), "bin", "mpirun")}, names...)
			what += fmt.Sprintf(", which starts programs that are linked to %s", linked.Library)
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
		return mpirun{}, fmt.Errorf("%s, in PATH: %w: install openmpi-bin, or name it with --mpirun", what,
			errors.Join(tried...))
	}
	return mpirun{}, fmt.Errorf("%s: not in PATH on this node: install openmpi-bin, or name it with --mpirun", what)
}

// 4.x prints "mpirun.openmpi (OpenRTE) 4.1.4" or "mpirun (Open MPI) 4.1.4", 5.x "mpirun
// (Open MPI) 5.0.3".
var versionLine = plain.Pattern(`\((?:OpenRTE|Open MPI)\) v?(\d+)\.`)

func askVersion(path string) (mpirun, error) {
	out, err := exec.Command(path, "--version").Output()
	if err != nil {
		return mpirun{}, fmt.Errorf("ask %s for its version: %w", path, err)
	}
	m := versionLine().FindSubmatch(out)
	if m == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		return mpirun{}, fmt.Errorf("%s is not Open MPI's: it prints %.80q", path, first)
	}
	major, err := strconv.Atoi(string(m[1]))
	return mpirun{path, major, mayRead()}, err
}

// args name hosts by their addresses, which need no resolver, and place as many ranks on
// each as the job has promised.
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

// env is mpirun's: of it, mpirun passes the variables OMPI_* on to all ranks. Everything
// else a rank has from its own node, as that node's daemon was started with it, so that
// nothing has to be named with -x. crowded: there are more ranks than processors, and a
// rank that waits for another should yield.
func (m mpirun) env(base []string, places []place, socket string, crowded bool) []string {
	// Its first word must be a program on every node, as the daemons look for it too,
	// though they start nothing; the rest runs this process's own program.
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
	if os.Geteuid() == 0 { // a user who launches as root has told sparkrun so
		for _, name := range []string{"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
			"PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"} {
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
