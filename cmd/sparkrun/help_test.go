package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help/man"
)

// What --help shows fits a screen, and --help=all leaves out no flag.
func TestHelpFitsAScreen(t *testing.T) {
	for _, cmd := range man.Documented(newRootCmd(&app.App{})) {
		if text := help.Of(cmd, false); strings.Count(text, "\n") > help.Screen {
			t.Errorf("%s --help has %d lines:\n%s", cmd.CommandPath(), strings.Count(text, "\n"), text)
		}
		all := help.Of(cmd, true)
		for _, flags := range []*pflag.FlagSet{cmd.NonInheritedFlags(), cmd.InheritedFlags()} {
			flags.VisitAll(func(f *pflag.Flag) {
				if !f.Hidden && !strings.Contains(all, "--"+f.Name) {
					t.Errorf("%s --help=all has no --%s", cmd.CommandPath(), f.Name)
				}
			})
		}
		for _, name := range help.Chapters(cmd) {
			if !slices.ContainsFunc(help.Topics(), func(topic help.Topic) bool { return topic.Name == name }) {
				t.Errorf("%s names the chapter %q, which is not there", cmd.CommandPath(), name)
			}
		}
	}
}

// Every command stands under a heading of help, and so does every flag of launch.
func TestHelpGroups(t *testing.T) {
	root := newRootCmd(&app.App{})
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.GroupID == "" {
			t.Errorf("%s is in no group of nouns", cmd.CommandPath())
		}
	}
	launch, _, err := root.Find([]string{"launch"})
	if err != nil {
		t.Fatal(err)
	}
	launch.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if len(f.Annotations) == 0 {
			t.Errorf("launch --%s is in no group", f.Name)
		}
	})
}

func TestHelpCommand(t *testing.T) {
	for _, c := range []struct {
		args      []string
		code      int
		out, errs string
	}{
		{args: []string{"help"}, out: "Chapters of the guide"},
		{args: []string{"help", "habits"}, out: "# What you know"},
		{args: []string{"help", "fabric"}, out: "# "}, // a topic and a command: the topic
		{args: []string{"help", "launch", "vllm"}, out: "Starts vLLM"},
		{args: []string{"launch", "--help=all"}, out: "--start-timeout"},
		{args: []string{"help", "fabrik"}, code: 2, errs: "did you mean fabric?"},
		{args: []string{"help", "quantum"}, code: 2, errs: "chapters: "},
		{args: []string{"help", "launch", "nonsense"}, code: 2, errs: `no chapter or command "launch nonsense"`},
		{args: []string{"ps", "--help=some"}, code: 2, errs: "--help=all"},
	} {
		code, out, errs := cli(t, apptest.Agent(), c.args...)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) {
			t.Errorf("%q: code %d, %.200q, %q", c.args, code, out, errs)
		}
	}
}

// A word or a flag of another tool is answered from the chapter habits, one of a server by its engine's row.
func TestOtherToolsWords(t *testing.T) {
	const behind = "the server's own flags come behind --: sparkrun launch "
	for line, want := range map[string]string{
		"srun -N 2 hostname":                        "unknown command \"srun\" for sparkrun: for `srun -N 2 ",
		"docker run -v a:b ubuntu":                  "there is `sparkrun launch exec --image IMAGE -- CMD`",
		"rm train":                                  "there is `sparkrun stop JOB`",
		"get pods":                                  "for `get pods` there is `sparkrun ps`",
		"delete node spark2":                        "there is `sparkrun node remove HOST`",
		"cancel train":                              "there is `sparkrun stop JOB`",
		"frobnicate":                                "`sparkrun help habits`",
		"node lst -q":                               "unknown command \"lst\" for sparkrun node",
		"launch torchrn -q":                         "unknown workload \"torchrn\": did you mean torchrun?",
		"stop -t 5 train":                           "there is `sparkrun stop --grace 60s JOB`",
		"ps -x":                                     "unknown shorthand flag: 'x' in -x\n",
		"launch exec -it -- bash":                   "for `-it` (docker) there is `-t`",
		"launch exec --gres=gpu:1 -- x":             "there is `--gpus 1`",
		"launch mpi -x A=1 -- x":                    "`-x K=V` (mpirun) there is `--env K=V`",
		"launch torchrun --rdzv_endpoint a:1 t":     "there is nothing: all is worked out",
		"launch torchrun --nproc_per_node 0 t":      "want 1 or more\n",
		"launch exec --gpu 1 -- x":                  "did you mean --gpus?",
		"launch exec --frobnicate -- x":             "`sparkrun help habits`",
		"run r --max-model-len 4096":                "-o NAME=VALUE gives a recipe's value another",
		"launch llamacpp m --rpc a:1":               "it is told where the others are",
		"launch vllm m --api-key x":                 "--secret VLLM_API_KEY",
		"launch vllm m --node-rank 1":               "--on HOST,HOST says which machines",
		"launch vllm --enforce-eager m":             behind + "vllm MODEL -- --enforce-eager",
		"launch vllm m --node 2":                    "or --nodes?",
		"launch mpi -hostfile h ./x":                "-hostfile: for `-hostfile F` (mpirun) there is `--on a,b`",
		"launch mpi -machinefile h ./x":             "there is `--on a,b`",
		"launch mpi -ppn 2 ./x":                     "there is `--nproc-per-node 2`",
		"launch mpi -np 4 ./x":                      "(mpirun) there is `--nodes 2 --nproc-per-node 2`",
		"launch mpi --map-by node ./x":              "in the order of `--on`",
		"launch mpi --oversubscribe ./x":            "there may be more ranks than cores",
		"launch mpi -genv A 1 ./x":                  "there is `--env K=V`",
		"launch mpi -env A 1 ./x":                   "there is `--env K=V`",
		"launch mpi -wdir /tmp ./x":                 "there is `--workdir D`",
		"launch mpi --allow-run-as-root ./x":        "nothing: no ssh",
		"launch exec -c 4 x":                        "there is nothing, but `--bind-to core`",
		"launch exec -N2 x":                         "`--nodes` for machines",
		"launch exec -o out.txt x":                  "`--output files=DIR`",
		"launch exec -t 1:00:00 x":                  "there is `--timeout 2h`",
		"launch torchrun -t 3 t.py":                 "(torchrun) there is nothing: all output is kept: `sparkrun logs JOB`",
		"launch torchrun --log-dir d t.py":          "nothing: all output is kept",
		"launch torchrun --tee 3 t.py":              "nothing: all output is kept",
		"launch torchrun --nproc-per-node cpu t":    "want 1 or more\n",
		"launch exec --network host -- x":           "nothing: a rank has these",
		"launch exec --publish 80:80 -- x":          "the network is the host's: give the port alone",
		"launch exec --mount type=bind,src=/a -- x": "write it as --mount SRC:DST",
		"launch torchrun --rdzv-id=1 --max-restarts 2 --master_port 1 --tee 3 t.py": "--master_port: for `--master-*`",
		"launch exec -N2 --gres gpu:1 -t 1:00 x":                                    "; --gres: for `--gres=gpu:1` (Slurm) there is `--gpus 1`; -t: for `-t 2:00:00`",
		"run -it ubuntu bash":                                                       "for `-it` (docker) there is `-t`",
		"list":                                                                      "for `list` there is `sparkrun ps`",
		"upgrade":                                                                   "there is `sparkrun up --upgrade HOST...`",
		"uninstall":                                                                 "there is `sudo sparkrun node remove --uninstall HOST`",
		"restart llm":                                                               "there is `sparkrun service restart JOB`",
		"stats":                                                                     "there is `sparkrun top`",
		"torchrun t.py":                                                             "did you mean `sparkrun launch torchrun`?",
		"service start llm":                                                         "unknown command \"start\" for sparkrun service",
		"ps -o xml":                                                                 "want json, yaml or wide",
		"stop --all train":                                                          "--all and train: give one of them",
	} {
		if code, _, errs := cli(t, apptest.Agent(), strings.Fields(line)...); code == 0 || !strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %s, want %q", line, code, errs, want)
		}
	}
}

// What users of other tools type is taken where it has one meaning.
func TestTyped(t *testing.T) {
	for line, want := range map[string]string{
		"launch vllm serve org/m --tensor-parallel-size 2 --max-model-len 8192 --nodes 2 --enforce-eager -q awq": "launch vllm " +
			"org/m --tp=2 --nodes 2 -- --max-model-len 8192 --enforce-eager -q awq",
		"launch --nodes 2 vllm org/m -tp 2 --max_num_seqs=4 --port 1 -- --seed 1": "launch vllm --nodes 2 org/m --tp=2 " +
			"--port 1 -- --max_num_seqs=4 --seed 1",
		"launch sglang --model-path org/m --tp-size=2 --context-length 4096": "launch sglang org/m --tp=2 -- --context-length 4096",
		"launch llamacpp -m /m.gguf -ngl 99":                                 "launch llamacpp /m.gguf -- -ngl 99",
		"launch vllm org/m --node-rank 0":                                    "launch vllm org/m --node-rank 0",
		"launch exec -- ls -o json":                                          "launch exec -- ls -o json",
		"exec train nvidia-smi -L":                                           "exec train -- nvidia-smi -L",
		"exec -t train --rank 1 bash -c x":                                   "exec -t train --rank 1 -- bash -c x",
		"exec train -- ls -l":                                                "exec train -- ls -l",
		"ps -a -o json":                                                      "ps -a --json",
		"status -o wide":                                                     "status --wide",
		"ps -o wide":                                                         "ps",
		"ps -oyaml":                                                          "ps --json",
		"fabric --output=json":                                               "fabric --json",
	} {
		_, got, err := asTyped(&app.App{}, newRootCmd(&app.App{}), strings.Fields(line))
		if text := strings.Join(got, " "); err != nil || text != want {
			t.Errorf("%s:\n\t%s, %v, want\n\t%s", line, text, err, want)
		}
	}
	if _, got, _ := cli(t, apptest.Agent(&apptest.FakeCluster{Has: apptest.SomeJobs()}), "ps", "-q"); got == "" ||
		strings.ContainsAny(got, " -") {
		t.Errorf("ps -q: %q", got)
	}
	b := apptest.Agent(&apptest.FakeRunner{OnLaunch: apptest.Tells(apptest.Planned(1), apptest.Started("a"),
		apptest.Ended(apptest.Completed))}, &apptest.FakeCluster{})
	for line, want := range map[string]string{
		"launch torchrun train.py --nodes 2":                     "behind train.py, --nodes 2 goes to it",
		"launch torchrun train.py --nnodes=2 --nproc_per_node=2": "launch torchrun --nnodes=2 --nproc_per_node=2 -- train.py",
		"launch torchrun -- train.py --nodes 2":                  "",
		"launch exec -e NCCL_NET_GDR_LEVEL=SYS -e A=1 -- x":      "warning: NCCL_NET_GDR_LEVEL: a Spark's GB10 has no GPUDirect RDMA",
		"launch torchrun train.py --epochs 2":                    "",
		"launch torchrun --nproc-per-node auto train":            "",
	} {
		if code, _, errs := cli(t, b, strings.Fields(line)...); code != 0 || want == "" && errs != "" ||
			!strings.Contains(errs, want) {
			t.Errorf("%s: code %d, %q, want %q", line, code, errs, want)
		}
	}
}

// commandLines are the command lines of sparkrun in a text's fences, or all where it is an Example.
func commandLines(text string, example bool) (out []string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	in, quoted := example, "" // quoted: of a command whose quote goes on in the next line
	for line := range strings.Lines(text) {
		if !example && strings.HasPrefix(strings.TrimSpace(line), "```") {
			in = !in
			continue
		}
		if !in || strings.HasPrefix(strings.TrimSpace(line), "sparkrun: ") { // what sparkrun prints
			continue
		}
		quoted += strings.TrimSpace(line)
		if _, err := words(quoted); err == nil {
			out, quoted = append(out, quoted), ""
		}
	}
	if quoted != "" {
		out = append(out, quoted)
	}
	return out
}

// words splits a line as a shell does: simple commands, quotes off, and nothing expanded.
func words(line string) (commands [][]string, err error) {
	var command []string
	var word strings.Builder
	var quote rune
	has := false
	end := func() {
		if has {
			command = append(command, word.String())
		}
		word.Reset()
		has = false
	}
	next := func() {
		end()
		if len(command) > 0 {
			commands = append(commands, command)
		}
		command = nil
	}
	for i, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, has = r, true
		case r == '#' && !has && (i == 0 || line[i-1] == ' '):
			next()
			return commands, nil
		case strings.ContainsRune("|;&()`<>", r):
			next()
		case r == ' ':
			end()
		default:
			word.WriteRune(r)
			has = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed")
	}
	next()
	return commands, nil
}

var assignment = regexp.MustCompile(`^[A-Z_]+=`)

// parses says what is wrong with each command of sparkrun's in a line; found counts them.
func parses(line string) (found int, problems []error) {
	commands, err := words(line)
	if err != nil && strings.Contains(line, "sparkrun") {
		return 0, []error{err}
	}
	for _, args := range commands {
		for len(args) > 0 && (args[0] == "$" || args[0] == "$ " || args[0] == "sudo" || args[0] == "time" ||
			assignment.MatchString(args[0])) {
			args = args[1:]
		}
		if len(args) == 0 || args[0] != "sparkrun" {
			continue
		}
		found++
		root := newRootCmd(&app.App{})
		root.InitDefaultCompletionCmd()
		cmd, rest, err := asTyped(&app.App{}, root, args[1:])
		if err == nil {
			cmd, rest, err = root.Find(rest)
		}
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if free := cmd.Flags().Args(); err == nil && len(free) > 0 && cmd.HasSubCommands() {
			err = fmt.Errorf("no command %q below %s", free[0], cmd.CommandPath())
		} else if err == nil && cmd.Args != nil && !cmd.HasSubCommands() {
			err = cmd.ValidateArgs(free)
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", strings.Join(args, " "), err))
		}
	}
	return found, problems
}

// Every command line that people are shown is one that the program takes: README, chapters, examples.
func TestCommandLinesParse(t *testing.T) {
	found := 0
	check := func(where, text string, example bool) {
		for _, line := range commandLines(text, example) {
			n, problems := parses(line)
			found += n
			for _, err := range problems {
				t.Errorf("%s: %v", where, err)
			}
		}
	}
	for _, file := range []string{"../../README.md", "../../CONTRIBUTING.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		check(filepath.Base(file), string(text), false)
	}
	for _, topic := range help.Topics() {
		check("chapter "+topic.Name, topic.Text, false)
	}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		before := found
		check(cmd.CommandPath(), cmd.Example, true)
		if !cmd.Hidden && cmd.Name() != "completion" && !strings.HasPrefix(cmd.CommandPath(), "sparkrun completion") &&
			found == before {
			t.Errorf("%s: its Example has no command line of sparkrun's", cmd.CommandPath())
		}
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(newRootCmd(&app.App{}))
	if found < 200 {
		t.Errorf("%d command lines only were found", found)
	}
}

func TestCommandLinesThatDoNotParse(t *testing.T) {
	for _, line := range []string{
		"sparkrun lunch", "sudo sparkrun launch exec --noodles 2 -- x", "$ sparkrun recipe chck x",
		"FOO=1 sparkrun ps a b", "true && sparkrun launch exec --nodes two -- x",
	} {
		if n, problems := parses(line); n != 1 || len(problems) != 1 {
			t.Errorf("%s: %d commands, %v", line, n, problems)
		}
	}
}

// A code span that is a command is one of the program's, with flags that it has; NAMES stand for what one fills in.
func TestCodeSpansNameCommands(t *testing.T) {
	span := regexp.MustCompile("`(?:sudo )?(sparkrun [^`]+)`")
	for _, topic := range help.Topics() {
		for _, m := range span.FindAllStringSubmatch(topic.Text, -1) {
			args := strings.Fields(m[1])[1:]
			cmd, rest, err := newRootCmd(&app.App{}).Find(args)
			if err == nil && cmd.HasSubCommands() && len(rest) > 0 && strings.ToLower(rest[0]) == rest[0] &&
				!strings.HasPrefix(rest[0], "-") {
				err = fmt.Errorf("no command %q below %s", rest[0], cmd.CommandPath())
			}
			if err != nil {
				t.Errorf("chapter %s: `%s`: %v", topic.Name, m[1], err)
				continue
			}
			for _, arg := range rest {
				if arg == "--" {
					break
				}
				name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
				if strings.HasPrefix(arg, "--") && cmd.Flag(name) == nil {
					t.Errorf("chapter %s: `%s`: %s has no --%s", topic.Name, m[1], cmd.CommandPath(), name)
				}
			}
		}
	}
}
