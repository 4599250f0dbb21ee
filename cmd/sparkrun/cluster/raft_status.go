package cluster

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

type raftStatusOptions struct{ json bool }

func newRaftStatusCmd(a *app.App) *cobra.Command {
	opts := &raftStatusOptions{}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show who votes, who leads, and where each copy of the record stands",
		Long: `Asks every machine for its part in raft, from any machine; no leader is needed.
Without one it shows what each machine says and what this one knows of those that
do not answer, and says so.

  ROLE      leader, voter, standby (a copy and no vote), or - for neither
  STATE     what its raft does; blank: it has lost its copy and does not vote
            before a leader has taken it in anew
  CONTACT   how long ago it heard the leader
  APPLIED   the last entry in its record; COMMIT: the last one that it knows to be
            committed; LAST: the last one that it has stored
  LOG       how many entries its log has, and the size of the log's file
  SNAPSHOT  the last entry in raft's own newest snapshot there, and its size

--json has all of it, with sizes in bytes and spans in nanoseconds.`,
		Example: `  sparkrun raft status
  sparkrun raft status --json | jq '.nodes[] | {host, applied}'`,
		Args: app.Takes(0, ""),
		RunE: app.Running(a, opts, runRaftStatus),
	}
	cmd.Flags().BoolVar(&opts.json, "json", false, "print one JSON object")
	return cmd
}

func runRaftStatus(ctx context.Context, a *app.App, o raftStatusOptions) error {
	b := a.Dial()
	defer b.Close()
	st, err := wire.ShowRaft.Call(ctx, b, wire.Empty{})
	if err != nil {
		return err
	}
	if o.json {
		return a.Object(st)
	}
	leader := "leader " + st.Leader
	if st.Leader == "" {
		leader = "no leader"
	}
	fmt.Fprintf(a.Out, "cluster %s, epoch %d, term %d, %s\nthis machine is %s: %s\n", st.Cluster, st.Epoch, st.Term,
		leader, st.Self, cmp.Or(st.Role, "no copy of the record"))
	rows := [][]string{{"HOST", "ROLE", "STATE", "CONTACT", "APPLIED", "COMMIT", "LAST", "LOG", "SNAPSHOT"}}
	for _, n := range st.Nodes {
		rows = append(rows, raftRow(n))
	}
	if err := a.Table(rows); err != nil {
		return err
	}
	for _, n := range st.Nodes {
		switch {
		case n.Error != "" && n.Silent > 0:
			a.Say(fmt.Sprintf("%s: %s, for %s", n.Host, n.Error, launcher.Age(n.Silent)))
		case n.Error != "":
			a.Say(n.Host + ": " + n.Error)
		case n.Blank:
			a.Say(n.Host + " has lost its copy of the record, and votes again once a leader has taken it in anew")
		}
	}
	if st.Problem != "" {
		a.Say(st.Problem)
	}
	return nil
}

func raftRow(n wire.NodeRaft) []string {
	row := []string{n.Host, cmp.Or(n.Role, "-"), cmp.Or(n.State, "-"), "-", "-", "-", "-", "-", "-"}
	if n.Error != "" {
		row[2] = "unknown"
		return row
	}
	if n.Blank {
		row[2] = "blank"
	}
	number := func(at int, v uint64) {
		if v > 0 {
			row[at] = strconv.FormatUint(v, 10)
		}
	}
	if n.Contact != nil {
		row[3] = n.Contact.Round(time.Millisecond).String()
	}
	number(4, n.Applied)
	number(5, n.Commit)
	number(6, n.Last)
	entries := uint64(0)
	if n.First > 0 && n.Last >= n.First {
		entries = n.Last - n.First + 1
	}
	if n.LogBytes > 0 {
		row[7] = fmt.Sprintf("%d in %s", entries, kib(n.LogBytes))
	}
	if s := n.Snapshot; s != nil {
		row[8] = fmt.Sprintf("%d, %s", s.Index, kib(s.Bytes))
	}
	return row
}

// kib is a size in KiB, rounded up.
func kib(bytes int64) string { return fmt.Sprintf("%d KiB", (bytes+1023)>>10) }
