package agent

import (
	"fmt"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/launcher/proc"
)

// listener names the process that listens on a TCP port of this machine, as "NAME (PID N)";
// empty: none is found. For a rank " of job ID" follows.
func listener(port int) string {
	pid, found := proc.Here.Listener(port)
	if !found {
		return ""
	}
	name := plain.Cut(plain.Strip(strings.Join(strings.Fields(proc.Here.Name(pid)), " ")), 16)
	return fmt.Sprintf("%s (PID %d)%s", name, pid, jobOf(pid))
}

// jobOf names the job of a process; empty: it is no rank. The process's environment says
// so, and may be wrong.
func jobOf(pid int) string {
	attempt, _ := proc.Here.Env(pid, "SPARKRUN_GANG")
	job, _, _ := strings.Cut(attempt, ".")
	if launcher.JobID(job).Validate() != nil {
		return ""
	}
	return " of job " + job
}
