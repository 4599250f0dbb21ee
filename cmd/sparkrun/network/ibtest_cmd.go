package network

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/launch"
	"github.com/sparkrun/sparkrun/workloads/nettest/ibtest"
)

// ibOptions are ib-test's: its launch, what it measures, and how its result is used.
type ibOptions struct {
	launch.Options
	test         ibtest.Options
	gate         float64 // fraction of what is expected; 0: none
	expect       float64 // Gb/s of a cable; 0: the known rate
	expectMicros float64
	verbose      bool
}

// NewIBTestCmd makes `sparkrun launch ib-test`.
func NewIBTestCmd(a *app.App, opts *launch.Options) *cobra.Command {
	o := &ibOptions{}
	t := &o.test
	cmd := &cobra.Command{
		Use:   "ib-test [flags] [bw|lat]",
		Short: "Measure each link with perftest, and judge it",
		Long: `Runs perftest (ib_write_bw, then ib_write_lat; bw or lat: that one alone) over every
cable between every pair of all machines that are ready, or those of --nodes and --on.
It prints a matrix of Gb/s and one of us, and says of the worst what is wrong. Its
last line is the verdict, in the words of launch nccl-test: good, low, unjudged, failed.

Bandwidth goes each way in turn, over both twins of a cable at once, for each of them is
half of it; latency over one twin after the other. No machine has a part in two cables at
one time, as both its ports share a ConnectX; pairs that share no machine are measured
side by side. How long it takes is told before it starts: some seconds a pair.

What is expected is known for DGX Sparks alone: --expect and --expect-us say it for other
hardware. Causes are looked for in the ports (a twin that is missing or has no address,
MTU, the link's speed, PCIe), in the GIDs that perftest spoke by, in its error messages,
and in the devices' counters before and after.

perftest has to be on every machine (sudo apt install perftest). Its servers listen on
ports of the job's own, which other hosts do not reach. There is no ssh. The fabric may
be broken: what joins two machines is measured, and what does not is not waited for.

The history of each cluster is kept in $XDG_STATE_HOME/sparkrun, or
~/.local/state/sparkrun, ib-test.jsonl. --gate 0.9 makes it exit with 1 below 90 % of
what is expected, and where nothing is. It is about bandwidth: with it a latency counts
where it is low, and by itself always.`,
		Example: `  sparkrun launch ib-test
  sparkrun launch ib-test bw --on spark1,spark2 --seconds 10
  sparkrun launch ib-test lat --verb send
  sparkrun launch ib-test bw --gate 0.9 --json >links.json && ./train
  sparkrun launch ib-test bw --expect 97        # cables for 100 Gb/s`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return app.Usagef("unexpected argument %q: bw or lat, or neither for both", args[1])
			}
			return nil
		},
		ValidArgs: []string{ibtest.Bandwidth, ibtest.Latency},
	}
	launch := launch.WorkloadRun(a, opts, func(ctx context.Context, a *app.App, l launch.Options) error {
		o.Options = l
		return startIBTest(ctx, a, *o)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 1 {
			t.Kinds = args
		}
		*t = t.WithDefaults()
		if err := t.Validate(); err != nil {
			return app.Usagef("%v", err)
		}
		for _, f := range []struct{ name, want string }{
			{"expect", "Gb/s, such as 97"}, {"expect-us", "microseconds, such as 2.5"},
		} {
			given := cmd.Flag(f.name)
			if v, _ := cmd.Flags().GetFloat64(f.name); given.Changed && !(v > 0 && v <= 1e6) {
				return app.Usagef("--%s %s: want %s", f.name, given.Value, f.want)
			}
		}
		return launch(cmd, nil)
	}
	fs := cmd.Flags()
	fs.Var(app.Choice{V: &t.Verb, Words: ibtest.Verbs()}, "verb",
		"the RDMA operation (default: write, of which figures are known)")
	fs.Var(app.Positive{N: &t.Seconds}, "seconds", "measure bandwidth for `N` seconds each way (default: 3)")
	fs.Var(app.Amount{N: &t.Bytes}, "size", "the messages of a bandwidth test (default: 64K)")
	fs.Var(app.Positive{N: &t.QPs}, "qps", "share bandwidth out to `N` queue pairs a device (default: 1)")
	fs.Var(app.Positive{N: &t.Iters}, "iters", "measure latency by `N` exchanges (default: 1000)")
	fs.Float64Var(&o.expect, "expect", 0, "what a cable should give one way, in `GBPS` (10^9 bits a second)")
	fs.Float64Var(&o.expectMicros, "expect-us", 0, "how long a message should take, in `US`")
	fs.Var(app.Part{V: &o.gate}, "gate", "exit with 1 below this `PART` of what is expected, such as 0.9")
	fs.BoolVarP(&o.verbose, "verbose", "v", false, "show what perftest writes, on standard error")
	app.CompleteWords(cmd, "verb")
	return cmd
}

// checkIB refuses what does not go with a test of links.
func checkIB(o ibOptions) error {
	for _, c := range []struct {
		given bool
		flag  string
	}{
		{o.Standalone, "--standalone"}, {o.Detach, "--detach"}, {o.TTY, "--tty"},
		{o.Output.Kind != "" && o.Output.Kind != "json", "--output"}, {len(o.Stage) > 0, "--stage"},
		{o.Request.Job.MaxRestarts > 0, "--max-restarts"}, {o.Request.Job.MinNodes > 0, "--nodes MIN:MAX"},
		{o.Container.Image != "", "--image"},
		{o.Request.RanksPerNode > 1, "--nproc-per-node"},
	} {
		if c.given {
			return app.Usagef("%s does not go with ib-test, which measures links between machines and waits for "+
				"its result", c.flag)
		}
	}
	return nil
}
