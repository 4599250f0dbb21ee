package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// Limits and processors are the rank's own from its first instruction on; PID,
// environment, folder, descriptors and exit are those of any rank.
func TestConfined(t *testing.T) {
	var allowed unix.CPUSet
	must(t, unix.SchedGetaffinity(0, &allowed))
	cpu := 0
	for !allowed.IsSet(cpu) {
		cpu++
	}
	b := spawn(t)
	r := b.sh(0, `ulimit -n; ulimit -Hn; ulimit -c; grep Cpus_allowed_list /proc/self/status; ls /proc/$$/fd; pwd; echo $RANK; echo $$; exit 6`)
	r.Ulimits = []launcher.Ulimit{{Name: "nofile", Soft: 100, Hard: 200}, {Name: "core", Soft: 0, Hard: 0}}
	r.CPUs, r.Dir = []int{cpu}, "/usr"
	b.start(r)
	es := b.events()
	started := kinds(es, Started)
	if len(started) != 1 || exits(es)[0] != (launcher.Exit{Code: 6}) {
		t.Fatalf("events %+v", es)
	}
	want := fmt.Sprintf("100\n200\n0\nCpus_allowed_list:\t%d\n0\n1\n2\n/usr\n0\n%d\n", cpu, started[0].PID)
	if got := b.log(0, "out"); got != want {
		t.Errorf("it saw %q, want %q", got, want)
	}
	b.noneAlive()
}

// Limits are set while there is privilege, and none is left to the program.
func TestConfinedAsAnother(t *testing.T) {
	if !asRoot() {
		return // nobody else to be
	}
	id := uint32(65534)
	b := spawn(t, func(c *Config) { c.UID, c.GID = &id, &id })
	r := b.sh(0, "ulimit -c; id -u; id -G; grep CapEff /proc/self/status")
	r.Ulimits = []launcher.Ulimit{{Name: "core"}}
	b.start(r)
	b.events()
	if got := b.log(0, "out"); got != "0\n65534\n65534\nCapEff:\t0000000000000000\n" {
		t.Errorf("it saw %q", got)
	}
}

// What can't be had is said in the words of who asked for it, and the rank has
// not run.
func TestConfinedInVain(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Rank)
		want   string
	}{
		"no program":   {func(r *Rank) { r.Argv = []string{"/no/such"} }, `exec "/no/such": not found`},
		"no folder":    {func(r *Rank) { r.Dir = "/no/such" }, `working folder "/no/such": not found`},
		"no processor": {func(r *Rank) { r.CPUs = []int{1023} }, "bind to processors [1023]: invalid argument"},
		"above the kernel's": {func(r *Rank) { r.Ulimits[0].Soft, r.Ulimits[0].Hard = 1<<40, 1<<40 },
			"ulimit nofile=1099511627776:1099511627776: operation not permitted: the agent's own limit is lower"},
	} {
		t.Run(name, func(t *testing.T) {
			b := spawn(t)
			r := b.sh(0, "say ran")
			r.Ulimits = []launcher.Ulimit{{Name: "nofile", Soft: 64, Hard: 64}}
			tc.change(&r)
			b.start(r)
			es := b.events()
			if e := exits(es)[0]; !strings.Contains(e.Error, tc.want) {
				t.Errorf("exit %+v", e)
			}
			if len(kinds(es, Started)) > 0 {
				t.Error("it is said to have started")
			}
		})
	}
}

// BenchmarkConfined is what limits add to the start of a rank.
func BenchmarkConfined(b *testing.B) {
	for _, limits := range [][]launcher.Ulimit{nil, {{Name: "core"}}} {
		b.Run("limits="+strconv.Itoa(len(limits)), func(b *testing.B) {
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			must(b, err)
			defer null.Close()
			r := Rank{Argv: []string{"/bin/true"}, Dir: "/", RankOptions: launcher.RankOptions{Ulimits: limits}}
			ends := []int{int(null.Fd()), int(null.Fd()), int(null.Fd())}
			for b.Loop() {
				pid, _, err := execRank(r, Config{}, nil, filepath.Base(b.Name()), plumbing{child: ends})
				must(b, err)
				_, err = unix.Wait4(pid, nil, 0, nil)
				must(b, err)
			}
		})
	}
}

// What this process may not give is refused before anything runs.
func TestMayLimit(t *testing.T) {
	var own unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_RTPRIO, &own))
	if own.Max >= 99 {
		t.Fatalf("this process may have any real-time priority (%d): the test tells nothing", own.Max)
	}
	err := MayLimit([]launcher.Ulimit{{Name: "nofile", Soft: 10, Hard: 10}, {Name: "rtprio", Soft: 99, Hard: 99}})
	switch may := unix.Prlimit(0, unix.RLIMIT_RTPRIO, &unix.Rlimit{Cur: own.Cur, Max: 99}, nil) == nil; {
	case may: // with CAP_SYS_RESOURCE
		must(t, unix.Prlimit(0, unix.RLIMIT_RTPRIO, &own, nil))
		must(t, err)
	case err == nil || !strings.Contains(err.Error(), "--ulimit rtprio=99:99") ||
		!strings.Contains(err.Error(), "LimitRTPRIO="):
		t.Errorf("refused with %v", err)
	}
}
