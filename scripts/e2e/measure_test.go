package e2e

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var measure = struct {
	sections, file *string
	hosts, rounds  *int
}{
	flag.String("measure", "", "what TestMeasure measures: sections, separated by blanks"),
	flag.String("measure-file", "", "where TestMeasure writes its figures as JSON"),
	flag.Int("measure-hosts", 8, "how many hosts TestMeasure has, 3 or more"),
	flag.Int("measure-rounds", 20, "how often TestMeasure does what takes a second or less"),
}

// own begins the names of sparkrun's figures. The first of a group is compared with those of others.
const own = "sparkrun "

// figure is one line of the table.
type figure struct {
	Section string    `json:"section"`
	Group   string    `json:"group"`
	Name    string    `json:"name"`
	Unit    string    `json:"unit"`
	Lacking string    `json:"lacking,omitempty"` // why there are no figures
	Samples []float64 `json:"samples,omitempty"`
	Min     float64   `json:"min"`
	Median  float64   `json:"median"`
	Max     float64   `json:"max"`
	Ratio   float64   `json:"ratio,omitempty"` // sparkrun's median through this one
}

// bench is one run of scripts/bench, and the lab that its sections share.
type bench struct {
	*lab
	dir           string // a folder that all hosts see
	hosts, rounds int
	shells        map[string]*shell
	job           string // Slurm's allocation of all hosts
	section       string
	group         string // printed last

	Date   string    `json:"date"`
	Commit string    `json:"commit"`
	CPUs   int       `json:"cpus"`
	Hosts  int       `json:"hosts"`
	Load   [2]string `json:"load"` // at the start, at the end
	Rows   []figure  `json:"rows"`
}

var sections = []struct {
	name, title string
	run         func(*bench)
}{
	{"launch", "from a command typed on spark2 to its end", (*bench).launches},
	{"mpi", "the same of a program that begins MPI and ends it", (*bench).mpiPrograms},
	{"cli", "commands that only ask", (*bench).commands},
	{"torch", "two ranks that meet over gloo and end", (*bench).torch},
	{"death", "rank 1 of 3 is killed, without grace: until the command has ended", (*bench).deaths},
	{"output", "a rank's lines of 64 letters, from one host into a file of another", (*bench).output},
	{"cost", "a launch of `true` on all hosts: what it takes of each", (*bench).cost},
	{"idle", "nothing runs", (*bench).idle},
	{"facts", "what machines use is told: what that costs an agent", (*bench).facts},
	{"loss", "of three hosts one loses its power: until the leader says so, until a launch has gone through", (*bench).losses},
	{"submits", "three voters in one process, a disk with fsync, 32 clients", (*bench).submits},
	{"place", "10,000 ranks on 100 nodes in one process: the plan, and each rank's environment", (*bench).place},
}

// TestMeasure is scripts/bench.
func TestMeasure(t *testing.T) {
	if *measure.sections == "" {
		t.Skip("takes a quiet machine: ./scripts/bench")
	}
	b := &bench{rounds: *measure.rounds, hosts: *measure.hosts, Hosts: *measure.hosts, CPUs: runtime.NumCPU()}
	b.Date = time.Now().Format(time.DateTime)
	commit, _ := exec.Command("git", "describe", "--always", "--dirty").Output()
	b.Commit = strings.TrimSpace(string(commit))
	b.Load[0] = machineLoad()
	fmt.Printf("%s, commit %s, %d processors, %d hosts, load %s\n", b.Date, b.Commit, b.CPUs, b.hosts, b.Load[0])
	shared := &lab{} // of all sections
	for _, s := range sections {
		if !slices.Contains(strings.Fields(*measure.sections), s.name) {
			continue
		}
		if shared.name == "" && !slices.Contains([]string{"facts", "loss", "submits", "place"}, s.name) {
			shared = up(t, b.hosts)
			b.dir = scratch(t)
		}
		fmt.Printf("\n%s: %s\n  %-52s %5s %9s %9s %9s %8s\n", s.name, s.title, "", "N", "MIN", "MEDIAN", "MAX", "OURS/IT")
		t.Run(s.name, func(t *testing.T) {
			b.lab, b.section, b.group, b.shells = &lab{t, shared.name}, s.name, "", map[string]*shell{}
			s.run(b)
		})
		b.write(t)
	}
	fmt.Printf("\nload %s at the start, %s at the end\n", b.Load[0], b.Load[1])
}

func (b *bench) write(t *testing.T) {
	b.Load[1] = machineLoad()
	text, err := json.MarshalIndent(b, "", " ")
	if err == nil && *measure.file != "" {
		err = os.WriteFile(*measure.file, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tell adds a row and prints it.
func (b *bench) tell(r figure) {
	r.Section = b.section
	label := "  " + r.Name
	if strings.HasPrefix(r.Name, own) {
		label = "* " + r.Name // and no line that the guide's test takes for a command
	}
	if r.Group != b.group {
		b.group = r.Group
		fmt.Println("  " + r.Group + ", " + r.Unit)
	}
	if r.Lacking != "" || len(r.Samples) == 0 {
		fmt.Printf("  %-52s not measured: %s\n", label, strings.TrimRight(r.Lacking, ": "))
	} else {
		s := slices.Sorted(slices.Values(r.Samples))
		r.Min, r.Median, r.Max = s[0], (s[(len(s)-1)/2]+s[len(s)/2])/2, s[len(s)-1]
		ratio := ""
		first := slices.IndexFunc(b.Rows, func(o figure) bool { return o.Section == r.Section && o.Group == r.Group })
		if !strings.HasPrefix(r.Name, own) && r.Median > 0 && first >= 0 && strings.HasPrefix(b.Rows[first].Name, own) {
			r.Ratio = b.Rows[first].Median / r.Median
			ratio = fmt.Sprintf("%9.2f", r.Ratio)
		}
		fmt.Printf("  %-52s %5d %9s %9s %9s%s\n", label, len(s), digits(r.Min), digits(r.Median), digits(r.Max), ratio)
	}
	b.Rows = append(b.Rows, r)
}

// digits are those that a reader can use.
func digits(f float64) string {
	return strconv.FormatFloat(f, 'f', max(0, min(2, 3-len(strconv.Itoa(int(f))))), 64)
}

// way is one way to do what its group measures; the first is sparkrun's.
type way struct {
	name string
	run  func() (float64, error)
}

// inTurns does each way once, to have connections open and files in memory, and then all of
// them in turns. Another's way that does not work is left out, and told.
func (b *bench) inTurns(group, unit string, rounds int, ways ...way) {
	b.t.Helper()
	lacking, samples := make([]string, len(ways)), make([][]float64, len(ways))
	for round := range rounds + 1 {
		for i, w := range ways {
			if lacking[i] != "" {
				continue
			}
			took, err := w.run()
			switch {
			case err != nil && i == 0:
				b.t.Fatalf("%s, %s: %v", group, w.name, err)
			case err != nil:
				lacking[i] = strings.ReplaceAll(err.Error(), "\n", " ")
			case round > 0:
				samples[i] = append(samples[i], took)
			}
		}
	}
	for i, w := range ways {
		b.tell(figure{Group: group, Name: w.name, Unit: unit, Samples: samples[i], Lacking: lacking[i]})
	}
}

// shell waits on a host for what it is to do: nothing is paid to get there.
type shell struct {
	in  io.Writer
	out *bufio.Reader
	log string
}

// shell is that of a host, which ends with its section.
func (b *bench) shell(host string) *shell {
	b.t.Helper()
	if s := b.shells[host]; s != nil {
		return s
	}
	s := &shell{log: filepath.Join(b.dir, host+".log")}
	cmd := b.command("exec", host, "--", "bash", "-c", `PATH=$1:$PATH; export SLURM_CONF=$1/slurm.conf
while read -r line; do eval "$line" >"$0" 2>&1 </dev/null; echo $?; done`, s.log, b.dir)
	in, err := cmd.StdinPipe()
	check(b.t, err)
	out, err := cmd.StdoutPipe()
	check(b.t, err)
	check(b.t, cmd.Start())
	b.t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	s.in, s.out = in, bufio.NewReader(out)
	b.shells[host] = s
	return s
}

// run gives what a command took in milliseconds, and an error unless it ended well: or not, if it is to fail.
func (s *shell) run(command string, fails bool) (float64, error) {
	began := time.Now()
	_, err := fmt.Fprintln(s.in, command)
	if err != nil {
		return 0, err
	}
	got, err := s.out.ReadString('\n')
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	if got = strings.TrimSpace(got); fails != (got != "0") {
		said, _ := os.ReadFile(s.log)
		return 0, fmt.Errorf("exit %s: %s", got, said[max(0, len(said)-200):])
	}
	return ms(took), nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// typed is a way: a command on spark2.
func (b *bench) typed(name, command string) way {
	s := b.shell("spark2")
	return way{name, func() (float64, error) { return s.run(command, false) }}
}

// peers brings sshd and Slurm to all hosts, and takes an allocation of all, once. Where that
// fails, so do the ways that need them, and tell it.
func (b *bench) peers() {
	b.t.Helper()
	if b.job != "" {
		return
	}
	b.job = "none"
	bring := exec.Command("../peers", b.dir, fmt.Sprint(b.hosts))
	bring.Env = append(os.Environ(), "LAB="+b.name)
	if out, err := bring.CombinedOutput(); err != nil {
		fmt.Printf("  scripts/peers: %v\n%s", err, out)
		return
	}
	slurm := func(args ...string) result {
		return b.on("spark1", append([]string{"env", "SLURM_CONF=" + b.dir + "/slurm.conf"}, args...)...)
	}
	eventually(b.t, 2*time.Minute, "Slurm's nodes", func() bool {
		return slurm("sinfo", "-h", "-t", "idle", "-o", "%D").out == fmt.Sprintln(b.hosts)
	})
	said := slurm("salloc", "-N", fmt.Sprint(b.hosts), "--no-shell").must(b.t).err
	b.job = regexp.MustCompile(`allocation (\d+)`).FindStringSubmatch(said)[1]
}

// names are the first n hosts, for a command line.
func names(n int) string { return strings.Join(other(n), ",") }

// srun is a step in the allocation: of n tasks, one a host.
func (b *bench) srun(n int, rest string) string {
	return fmt.Sprintf("srun --jobid %s -N %d -n %[2]d %s", b.job, n, rest)
}

func (b *bench) mpirun(n int, rest string) string {
	return fmt.Sprintf("mpirun.openmpi --allow-run-as-root --mca plm_rsh_agent %s/ssh --mca oob_tcp_if_include enP7s7 -H %s -n %d %s",
		b.dir, names(n), n, rest)
}

func (b *bench) hydra(hydra, launcher string, n int, rest string) string {
	return fmt.Sprintf("%s -launcher %s -iface enP7s7 -hosts %s -ppn 1 -n %d %s", hydra, launcher, names(n), n, rest)
}
