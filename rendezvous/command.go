package rendezvous

import (
	"cmp"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// commandBytes bounds how much of a command line is shown: some lines of a terminal.
const commandBytes = 400

// CommandLine is the command of a job's ranks, quoted for a shell; empty where the job's spec has no known stage.
func (j Job) CommandLine() string {
	st := j.Spec.MainStage()
	if st == nil {
		return ""
	}
	ranks := placements(j)
	command := st.Command()
	argv := make([]string, len(command))
	for i, v := range command {
		for _, p := range v {
			argv[i] += cmp.Or(p.Lit, refText(p.Ref, ranks))
		}
	}
	line := plain.Text(strings.ReplaceAll(launcher.QuoteAll(argv), "\n", "⏎"))
	if len(line) > commandBytes {
		line = strings.ToValidUTF8(line[:commandBytes], "") + "…"
	}
	return line
}

// placements are those of the main stage's ranks as the record has them; none: it is not
// placed now.
func placements(j Job) (all []launcher.Placement) {
	if j.Plan.Stage != "" || !j.Plan.Head.IsValid() {
		return nil
	}
	for i := range j.Plan.Nodes {
		as := j.Plan.Assignment(j.Spec, i)
		for local := range as.Ranks {
			if _, st, placement := as.Local(local); st.Main {
				all = append(all, placement)
			}
		}
	}
	return all
}

// refText is what a reference is for all of these ranks. What the record does not know, or
// what differs from rank to rank, is put in words.
func refText(r launcher.Ref, ranks []launcher.Placement) string {
	kind, port, _ := strings.Cut(string(r), ":")
	switch {
	case r == "":
		return ""
	case r == launcher.Program:
		return string(r)
	case r == launcher.Port, r.IsNamedPort(): // found at the start, and not recorded
		return "<free port>"
	}
	text := ""
	for i, rank := range ranks {
		own, err := rank.Resolve(launcher.Of(r))
		if err != nil || i > 0 && own != text {
			text = ""
			break
		}
		text = own
	}
	switch {
	case text != "":
		return text
	case kind == "rest-at":
		return "<other machines>:" + port
	case r == launcher.Management:
		return "<management address>"
	case r == launcher.NodeAddr:
		return "<own address>"
	case r == launcher.Head:
		return "<first machine>"
	}
	return "<" + strings.ReplaceAll(string(r), "-", " ") + ">"
}
