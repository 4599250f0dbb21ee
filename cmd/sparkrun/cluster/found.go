package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/rendezvous/discover"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
)

// maxShown bounds how much of what was found is shown: anybody on the network can
// announce a lot.
const maxShown = 50

var errNoneChosen = errors.New("nothing was chosen, and nothing is changed")

// chooseCluster shows the clusters that announce themselves. On a terminal it asks for
// one of them; otherwise it only prints what to type.
func chooseCluster(ctx context.Context, a *app.App, c node.Config, given []string) (discover.Cluster, error) {
	listening(a, "clusters")
	found, err := a.Find(ctx, c)
	if err != nil {
		return discover.Cluster{}, err
	}
	clusters := found.Clusters[:min(len(found.Clusters), maxShown)]
	if len(clusters) == 0 {
		return discover.Cluster{},
			app.Usagef("the address of a member is missing, and no cluster announces itself on %s", found.NIC)
	}
	asks, w := a.InTTY(), a.Out
	if asks {
		w = a.Err
	}
	fmt.Fprintf(w, "These clusters announce themselves on %s, as anybody there can. The right one has the CA that "+
		"is the middle part of your token.\n", found.NIC)
	for i, c := range clusters {
		fmt.Fprintf(w, "\n%3d  cluster  %s\n     CA       %s\n     hosts    %s\n", i+1, c.ID, c.CA, hostsOf(c))
		if !asks {
			fmt.Fprintf(w, "     join     %s\n",
				app.QuoteAll(append([]string{"sudo", "sparkrun", "join", joinAddr(c.Members[0].Addr)}, given...)))
		}
		if slices.ContainsFunc(clusters, func(o discover.Cluster) bool { return o.ID == c.ID && o.CA != c.CA }) {
			fmt.Fprintln(w, "     beware   another one here has this id and another CA: one of the two is false")
		}
	}
	if more := len(found.Clusters) - len(clusters); more > 0 {
		fmt.Fprintf(w, "\n%d more are not shown. If yours is among them, give the address of one of its "+
			"members.\n", more)
	}
	if !asks {
		return discover.Cluster{},
			app.Usagef("the address of a member is missing, and there is no terminal to ask on: give that of a " +
				"cluster above")
	}
	for {
		chosen, err := askNumbers(ctx, a, "\nNumber of the cluster to join (nothing: none): ", len(clusters))
		if err != nil {
			return discover.Cluster{}, err
		}
		if len(chosen) == 1 {
			return clusters[chosen[0]], nil
		}
	}
}

// listening says what the seconds of waiting are for.
func listening(a *app.App, what string) {
	if a.ErrTTY {
		fmt.Fprintf(a.Err, "listening for %s that announce themselves ...\n", what)
	}
}

// hostsOf lists a cluster's hosts, with their addresses.
func hostsOf(c discover.Cluster) string {
	const most = 8
	var out []string
	for _, m := range c.Members[:min(len(c.Members), most)] {
		out = append(out, fmt.Sprintf("%s (%s)", m.Host, joinAddr(m.Addr)))
	}
	if n := len(c.Members) - most; n > 0 {
		out = append(out, fmt.Sprintf("%d more", n))
	}
	return strings.Join(out, ", ")
}

// chooseHosts does the same for hosts with an SSH server; it returns the arguments that a
// person would have typed.
func chooseHosts(ctx context.Context, a *app.App, given []string) ([]string, error) {
	listening(a, "hosts with an SSH server")
	found, err := a.BrowseSSH(ctx)
	if err != nil {
		return nil, app.Usagef("the hosts are missing, and none could be looked for: %v", err)
	}
	found = found[:min(len(found), maxShown)]
	if len(found) == 0 {
		return nil, app.Usagef("the hosts are missing, and none announces an SSH server (%s): name them, such as "+
			"sparkrun up zeta@10.0.0.1 zeta@10.0.0.2", discover.SSH)
	}
	asks, w := a.InTTY(), a.Out
	if asks {
		w = a.Err
	}
	fmt.Fprint(w, "These hosts announce an SSH server, as anybody there can; their keys are checked as always.\n\n")
	if err := hostTable(w, found); err != nil {
		return nil, err
	}
	if !asks {
		line := []string{"sparkrun", "up"}
		for _, h := range found {
			line = append(line, targetOf("", h.Addr))
		}
		return nil, app.Usagef("the hosts are missing, and there is no terminal to ask on: type those of them "+
			"that you mean: %s", app.QuoteAll(append(line, given...)))
	}
	chosen, err := askNumbers(ctx, a, "\nNumbers of the hosts, such as 1 3 (nothing: none): ", len(found))
	if err != nil {
		return nil, err
	}
	user, err := a.AskLine(ctx, "User to log in as there (nothing: as ssh_config says, or as here): ")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, i := range chosen {
		out = append(out, targetOf(strings.TrimSpace(user), found[i].Addr))
	}
	return out, nil
}

func hostTable(out io.Writer, found []discover.Instance) error {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	for i, h := range found {
		fmt.Fprintf(w, "%3d  %s\t%s\t%s\n", i+1, h.Host, targetOf("", h.Addr), h.Link)
	}
	return w.Flush()
}

// targetOf is a host as an argument of `sparkrun up`.
func targetOf(user string, at netip.AddrPort) string {
	host := at.String()
	if at.Port() == 22 {
		host = at.Addr().String()
	}
	if user != "" {
		return user + "@" + host
	}
	return host
}

// askNumbers asks until it gets numbers from 1 to n, each at most once; it returns them
// counted from 0.
func askNumbers(ctx context.Context, a *app.App, prompt string, n int) ([]int, error) {
	for {
		text, err := a.AskLine(ctx, prompt)
		if err != nil {
			return nil, err
		}
		words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ',' })
		if len(words) == 0 {
			return nil, errNoneChosen
		}
		var out []int
		for _, word := range words {
			if i, err := strconv.Atoi(word); err == nil && i >= 1 && i <= n && !slices.Contains(out, i-1) {
				out = append(out, i-1)
			}
		}
		if len(out) == len(words) {
			return out, nil
		}
		fmt.Fprintf(a.Err, "want numbers of 1 to %d, each once\n", n)
	}
}

// flagsGiven are the flags of a command line, to be shown as part of a command to type.
func flagsGiven(fs *pflag.FlagSet) []string {
	var out []string
	fs.Visit(func(f *pflag.Flag) {
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			if f.Value.Type() == "bool" && v == "true" {
				out = append(out, "--"+f.Name)
			} else {
				out = append(out, "--"+f.Name+"="+v)
			}
		}
	})
	return out
}

// joinAddr leaves out the default port.
func joinAddr(a netip.AddrPort) string {
	if a.Port() == membership.DefaultRPCPort {
		return a.Addr().String()
	}
	return a.String()
}
