package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/help/man"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// offered is what the shell offers after a command line, as its completion
// script asks for it.
func offered(t *testing.T, b *wire.Client, line string) []string {
	t.Helper()
	code, out, _ := cli(t, b, append([]string{cobra.ShellCompNoDescRequestCmd}, strings.Split(line, " ")...)...)
	if code != 0 {
		t.Errorf("%q: exit %d", line, code)
	}
	words := strings.Fields(out)
	return words[:max(len(words)-1, 0)] // the last one is the directive
}

func TestCompletion(t *testing.T) {
	job := func(id, name string, outcome *rendezvous.Outcome) rendezvous.JobStatus {
		var j rendezvous.JobStatus
		j.Spec, j.Outcome = launcher.Spec{ID: launcher.JobID(id), Name: name, Workload: "exec"}, outcome
		return j
	}
	f := &apptest.FakeCluster{
		Has: wire.JobsResponse{Jobs: []rendezvous.JobStatus{job("aaaa", "", nil), job("bbbb", "train", nil),
			job("cccc", "old", &apptest.Completed), job("dddd", "old", &apptest.Completed)}},
		OnStatus: func(wire.StatusRequest) (wire.Status, error) {
			return wire.Status{Nodes: []wire.NodeStatus{
				{Host: "spark1", State: "ready"}, {Host: "spark2", State: "away"}, {Host: "spark3", State: "drained"},
				{Host: "spark4", State: "away"}}}, nil
		},
	}
	all, running := []string{"aaaa", "bbbb", "train", "cccc", "old", "dddd"}, []string{"aaaa", "bbbb", "train"}
	hosts, silent := []string{"spark1", "spark2", "spark3", "spark4"}, []string{"spark2", "spark4"}
	b := apptest.Agent(f)
	for line, want := range map[string][]string{
		"logs ":                                 all,
		"ps ":                                   all,
		"ps --all ":                             all,
		"ps aaaa ":                              {},
		"stop ":                                 running,
		"stop aaaa ":                            {"bbbb", "train"},
		"stop train ":                           {"aaaa"},
		"launch --on-failure ":                  {"stop", "continue"},
		"launch exec --bind-to ":                {"core", "numa", "none"},
		"launch torchrun --agent ":              {"sparkrun", "torchrun"},
		"attach ":                               running,
		"exec ":                                 running,
		"logs aaaa --node ":                     hosts,
		"launch --on ":                          hosts,
		"launch exec --exclude ":                hosts,
		"launch exec --on spark1,":              {"spark1,spark2", "spark1,spark3", "spark1,spark4"},
		"env --node ":                           hosts,
		"env --on ":                             hosts,
		"env --exclude ":                        hosts,
		"fabric --node ":                        hosts,
		"doctor --node ":                        hosts,
		"netplan show --node ":                  hosts,
		"mark-dead ":                            silent,
		"mark-dead spark2 ":                     {},
		"takeover --confirm-dead ":              silent,
		"takeover --confirm-dead spark2 --conf": {"--confirm-dead"},
		"launch torchrun --gpus ":               {"all", "none"},
		"launch exec --output ":                 {"prefix", "raw", "json", "files="},
		"logs aaaa --output ":                   {"prefix", "raw", "json", "files="},
		"logs aaaa --output fi":                 {"files="},
		"takeover --confirm-dead spark2 --confirm-dead ": {"spark4"},
	} {
		t.Run(line, func(t *testing.T) {
			got := offered(t, b, line)
			got = slices.DeleteFunc(got,
				func(w string) bool { return !strings.Contains(line+w, "--conf") && strings.HasPrefix(w, "--") })
			if diff := cmp.Diff(want, append([]string{}, got...)); diff != "" {
				t.Error(diff)
			}
		})
	}

	f.OnStatus = func(wire.StatusRequest) (wire.Status, error) { return wire.Status{}, errors.New("no agent") }
	if got := offered(t, b, "mark-dead "); len(got) != 0 {
		t.Errorf("without an agent: %q", got)
	}
}

// What takes a job or a machine completes it: a new command is not forgotten.
func TestEverythingCompletes(t *testing.T) {
	a := &app.App{}
	for _, cmd := range man.Documented(newRootCmd(a)) {
		if takes := strings.Contains(cmd.Use, " JOB") || strings.Contains(cmd.Use, "[JOB]") ||
			strings.Contains(cmd.Use, " HOST") && !strings.Contains(cmd.Use, "--") && cmd.Name() != "login" ||
			strings.Contains(cmd.Use, "[CLIENT]") || strings.Contains(cmd.Use, "[CONTEXT]") ||
			strings.Contains(cmd.Use, " NAME") || strings.Contains(cmd.Use, " RECIPE") ||
			strings.Contains(cmd.Use, " REGISTRY") || strings.Contains(cmd.Use, " ALIAS") ||
			strings.Contains(cmd.Use, " RUN") || strings.Contains(cmd.Use, " A B"); takes != (cmd.ValidArgsFunction != nil) {
			t.Errorf("%s: %q completes: %v", cmd.CommandPath(), cmd.Use, cmd.ValidArgsFunction != nil)
		}
		for _, name := range []string{"node", "on", "exclude", "confirm-dead", "context"} {
			if cmd.Flags().Lookup(name) == nil {
				continue
			}
			if _, ok := cmd.GetFlagCompletionFunc(name); !ok {
				t.Errorf("%s --%s completes nothing", cmd.CommandPath(), name)
			}
		}
	}
}
