package mpi

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The scripts in mpirun's place start what stands at the end of their command line in a process
// group of its own, as mpirun does, once their daemon is placed.
const startTask = `$OMPI_MCA_plm_rsh_agent 10.0.0.2 orted & until [ -e placed ]; do sleep 0.1; done; shift $(($# - 2)); setsid "$@" & task=$!; `

func placed(t *testing.T) func(*Client) {
	return func(c *Client) {
		if err := errors.Join(c.Barrier(), os.WriteFile("placed", nil, 0o600)); err != nil {
			t.Error(err)
		}
	}
}

// A task's end is the job's, unless it was mpirun that ended it; its words come as they were.
func TestTask(t *testing.T) {
	for name, tc := range map[string]struct {
		task, mpirun string
		want         int
	}{
		"it ends":        {`exit 7`, `wait $task; exec sleep 1000`, 7},
		"it ends with 0": {`exit 0`, `wait $task; exec sleep 1000`, 0},
		"it is killed":   {`kill -9 $$`, `wait $task; exec sleep 1000`, 137},
		"mpirun ends it": {`trap "exit 3" TERM; touch up; while :; do sleep 0.1; done`,
			`until [ -e up ]; do sleep 0.1; done; kill -- -$task; wait $task; exit 9`, 9},
		"mpirun kills it": {`touch up; exec sleep 1000`,
			`until [ -e up ]; do sleep 0.1; done; kill -9 $task; exit 9`, 9},
		"it stays meanwhile": {`exit 7`, `trap "kill -0 $task && touch stays; exit 9" TERM; wait $task; sleep 1000`, 7},
		"mpirun ends it as it": {`touch gone; exit 3`,
			`until [ -e gone ]; do sleep 0.1; done; kill -- -$task; wait $task; exit 9`, 9}, // a rank's end is the cause of both
		"mpirun is killed": {`touch up; exec sleep 1000`, `until [ -e up ]; do sleep 0.1; done; kill -9 $$`, 137},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if strings.Contains(tc.task, "gone") {
				t.Setenv(waitsLong, "yes")
			}
			const odd = ` two  words *  "quoted" `
			o := Options{Argv: []string{"launch", "sh", "-c", `printf %s "$1" >odd; ` + tc.task, "sh", odd}, Task: 1}
			code, err := headWith(t, o, startTask+tc.mpirun, placed(t))
			if err != nil || code != tc.want {
				t.Errorf("exit %d, %v; want %d", code, err, tc.want)
			}
			if got, _ := os.ReadFile("odd"); string(got) != odd {
				t.Errorf("the task was given %q", got)
			}
			if _, err := os.Stat("stays"); err != nil && strings.Contains(tc.mpirun, "stays") {
				t.Error("it has left before mpirun")
			}
		})
	}
}

// A task that somebody else has told to end ends the job as well: nobody else would.
func TestTaskToldToEnd(t *testing.T) {
	t.Chdir(t.TempDir())
	was := mpirunGrace
	mpirunGrace = 100 * time.Millisecond
	defer func() { mpirunGrace = was }()
	o := Options{Argv: []string{"launch", "sh", "-c", `trap "exit 0" TERM; touch up; while :; do sleep 0.1; done`},
		Task: 1}
	code, err := headWith(t, o,
		startTask+`until [ -e up ]; do sleep 0.1; done; kill $task; wait $task; exec sleep 1000`, placed(t))
	if err != nil || code != 143 {
		t.Errorf("exit %d, %v; want mpirun's 143", code, err)
	}
}

// A task that is not there is told, and its job ends.
func TestTaskThatIsNone(t *testing.T) {
	t.Chdir(t.TempDir())
	o := Options{Argv: []string{"launch", filepath.Join(t.TempDir(), "none")}, Task: 1}
	code, err := headWith(t, o, startTask+`wait $task; exec sleep 1000`, placed(t))
	if err != nil || code != exitBroken {
		t.Errorf("exit %d, %v; want %d", code, err, exitBroken)
	}
}

func TestTellPlaces(t *testing.T) {
	for _, tc := range []struct {
		hosts []string
		want  string
	}{
		{[]string{"spark1", "spark2"}, "sparkrun: MPI ranks, 2 a machine, were on spark1 spark2\n"},
		{[]string{"spark1", ""}, ""}, // an older one does not say
	} {
		var places []place
		for _, h := range tc.hosts {
			places = append(places, place{Host: h})
		}
		var b strings.Builder
		if tellPlaces(&b, places, 2); b.String() != tc.want {
			t.Errorf("%q, want %q", b.String(), tc.want)
		}
	}
}
