package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// listener names the process that listens on a TCP port of this machine, as "NAME (PID N)"; empty: none is
// found; " of job ID" stands behind that of a rank. Whoever has bound the port and does not listen is in none of these tables, nor is one whose
// descriptors this process may not read.
func listener(proc string, port int) string {
	sockets := map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		b, _ := os.ReadFile(filepath.Join(proc, "net", table))
		for line := range strings.Lines(string(b)) {
			// sl local_address rem_address st ... inode, the tenth (proc_pid_net(5)); 0A is TCP_LISTEN.
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(sockets) == 0 {
		return ""
	}
	pids, _ := os.ReadDir(proc)
	for _, p := range pids {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		fds := filepath.Join(proc, p.Name(), "fd")
		open, _ := os.ReadDir(fds)
		for _, fd := range open {
			if to, err := os.Readlink(filepath.Join(fds, fd.Name())); err == nil && sockets[to] {
				name, _ := os.ReadFile(filepath.Join(proc, p.Name(), "comm"))
				return fmt.Sprintf("%s (PID %s)%s", cut(clean(strings.Join(strings.Fields(string(name)), " ")), 16), p.Name(), jobOf(filepath.Join(proc, p.Name())))
			}
		}
	}
	return ""
}

// jobOf says whose rank a process is; empty: nobody's. What it has in its environment is its own word.
func jobOf(process string) string {
	env, _ := os.ReadFile(filepath.Join(process, "environ"))
	for v := range strings.SplitSeq(string(env), "\x00") {
		if gang, is := strings.CutPrefix(v, "SPARKRUN_GANG="); is {
			job, _, _ := strings.Cut(gang, ".")
			if launcher.JobID(job).Validate() == nil {
				return " of job " + job
			}
		}
	}
	return ""
}
