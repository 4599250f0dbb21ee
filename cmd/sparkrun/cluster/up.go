package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/cmd/node"
	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/bootstrap"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/membership"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
	"github.com/sparkrun/sparkrun/scripts"
)

// sshOptions say how hosts are logged in to.
type sshOptions struct {
	accept       []string
	passwordFile string
	config       string
	addresses    map[string]string // of hosts whose names this machine cannot resolve
}

type upOptions struct {
	ssh     sshOptions
	targets []string
	release string
	upgrade bool
	older   bool
	dryRun  bool
	json    bool
	// containers: the logins may run containers; asked: the flag was given
	containers, asked bool

	given []string // its flags, to be typed again
}

func sshFlags(fs *pflag.FlagSet, o *sshOptions) {
	fs.StringArrayVar(&o.accept, "accept-host-key", nil,
		"a host key that needs no question, by its fingerprint (SHA256:...); repeat it for more")
	fs.StringVar(&o.passwordFile, "password-file", "",
		"read the password for logins and sudo from this file, - for standard input")
	fs.StringVar(&o.config, "ssh-config", "", "read this in place of ~/.ssh/config and /etc/ssh/ssh_config; none: "+
		"no file")
}

// NewUpCmd makes `sparkrun up`.
func NewUpCmd(a *app.App) *cobra.Command {
	opts := &upOptions{}
	cmd := &cobra.Command{
		Use:   "up [[USER@]HOST[:PORT]...]",
		Short: "Make a cluster of hosts, or add hosts to it, over ssh",
		Long: `Logs in to each host by ssh, looks whether it is fit, copies sparkrun there, installs
and starts the agent, and waits until it is ready. Hosts go side by side; one that fails
is named with its reason and stops no other. Run it again after mending: what is done
is left as it is. Without a host it listens for some that announce SSH, and asks.

Where this machine is in a cluster, the hosts join that one; else the one that a named
host is in; where none is, the first host founds one. Run it as yourself, with your ssh
keys, not by sudo. No private key is copied anywhere; passwords are sent over ssh only.

The program is this one; for hosts of another architecture --release names a folder
with sparkrun-linux-arm64 or sparkrun-linux-amd64. A member keeps its release; --upgrade
replaces it, one member after the other, and who does not come back gets the old one.
The exit code is 1 if a host has failed. sparkrun help install has the rest.`,
		Example: `  sparkrun up zeta@spark1 zeta@spark2
  sparkrun up --release .build/release spark1 spark2  # from a PC
  sparkrun up --dry-run spark1 spark2
  sparkrun up --upgrade spark1 spark2 spark3          # members, to this release
  sparkrun up                                         # looks for hosts, and asks
  sparkrun up --accept-host-key SHA256:4uQ... --password-file pw zeta@spark1`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			opts.targets, opts.given = args, flagsGiven(cmd.Flags())
			opts.asked = cmd.Flags().Changed("containers")
			return app.Running(a, opts, runUp)(cmd, args)
		},
	}
	sshFlags(cmd.Flags(), &opts.ssh)
	cmd.Flags().StringVar(&opts.release, "release", "", "the folder with the programs to install")
	cmd.Flags().BoolVar(&opts.upgrade, "upgrade", false, "replace another release on members")
	cmd.Flags().BoolVar(&opts.older, "downgrade", false, "with --upgrade: also where the release there is a newer one")
	cmd.Flags().BoolVar(&opts.containers, "containers", false, "let the logins run ranks in containers, as much as "+
		"Docker's group gives (default: it is asked at a terminal)")
	cmd.Flags().BoolVar(&opts.dryRun, "dry-run", false, "look at the hosts, and change nothing")
	cmd.Flags().BoolVar(&opts.json, "json", false, "print JSON")
	return cmd
}

func hostsMissing(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return app.Usagef("the hosts are missing")
	}
	return nil
}

func runUp(ctx context.Context, a *app.App, o upOptions) error {
	if o.older && !o.upgrade {
		return app.Usagef("--downgrade is for --upgrade")
	}
	if len(o.targets) == 0 {
		if o.json || o.upgrade {
			return app.Usagef("the hosts are missing")
		}
		var err error
		if o.targets, err = chooseHosts(ctx, a, o.given); err != nil {
			return err
		}
	}
	show := newUpView(a, o.targets, o.json)
	ssh, err := sshOf(a, o.ssh, show)
	if err != nil {
		return err
	}
	if !o.asked && !o.dryRun && !o.json && !o.upgrade && ssh.Ask != nil {
		if o.containers, err = askContainers(ctx, a); err != nil {
			return err
		}
	}
	cluster, err := ownCluster(ctx, a, show)
	if err != nil {
		return err
	}
	var upgrade *bootstrap.Upgrade
	if o.upgrade {
		upgrade = &bootstrap.Upgrade{Downgrade: o.older, Together: rendezvous.Together}
	}
	results, err := bootstrap.Up(ctx, bootstrap.Config{
		Targets: o.targets, SSH: ssh, Binary: binaries(a, o.release), Unit: scripts.Unit,
		Cluster: cluster, ClusterOf: membership.ClusterOf,
		Ports:   []int{membership.DefaultRPCPort, membership.DefaultGossipPort},
		Upgrade: upgrade, Containers: o.containers, DryRun: o.dryRun, Tell: show.take,
	})
	if err != nil {
		return app.Usagef("%v", err)
	}
	if err := show.end(results, o.dryRun, "ready"); err != nil || o.dryRun || o.json {
		return err
	}
	if cluster == nil {
		a.Say("next, on any of them: sparkrun status, sparkrun launch. From this machine: sparkrun login")
	}
	return nil
}

// sshOf completes the flags from the user's environment.
func sshOf(a *app.App, o sshOptions, show *upView) (bootstrap.SSH, error) {
	s := bootstrap.SSH{Accept: o.accept, Addresses: o.addresses}
	me, err := user.Current()
	if err != nil {
		return s, fmt.Errorf("find out who I am: %w", err)
	}
	s.User, s.Home = me.Username, me.HomeDir
	if home, ok := a.Getenv("HOME"); ok && home != "" {
		s.Home = home
	}
	s.AgentSocket, _ = a.Getenv("SSH_AUTH_SOCK")
	switch o.config {
	case "":
		s.ConfigFiles = []string{filepath.Join(s.Home, ".ssh/config"), "/etc/ssh/ssh_config"}
	case "none":
	default:
		if _, err := os.Stat(o.config); err != nil {
			return s, fmt.Errorf("--ssh-config: %w", err)
		}
		s.ConfigFiles = []string{o.config}
	}
	if o.passwordFile != "" {
		text, err := readSecret(a, o.passwordFile)
		if err != nil {
			return s, err
		}
		s.Password = &text
	}
	if a.InTTY() && o.passwordFile != "-" {
		s.Ask = &bootstrap.Ask{
			HostKey: func(ctx context.Context, host, kind, print string) (yes bool, err error) {
				show.asking(func() { yes, err = askHostKey(ctx, a, host, kind, print) })
				return yes, err
			},
			Secret: func(ctx context.Context, prompt string) (text string, err error) {
				show.asking(func() {
					var b []byte
					b, err = a.AskSecret(ctx, prompt)
					text = string(b)
				})
				return text, err
			},
		}
	}
	return s, nil
}

// askContainers asks for what a server of models from an image takes.
func askContainers(ctx context.Context, a *app.App) (bool, error) {
	fmt.Fprintln(a.Err, `Servers of models run in containers. Who may start those has as much as Docker's group
gives: root, in effect. Without it "sparkrun launch vllm" takes sudo.`)
	text, err := a.AskLine(ctx, "May your login run containers on these machines? (yes/no) ")
	return strings.TrimSpace(text) == "yes", err
}

func askHostKey(ctx context.Context, a *app.App, host, kind, print string) (bool, error) {
	fmt.Fprintf(a.Err, `The host key of %s is not known. It shows this one:
  %s %s
Compare it with what that host says on its own console: ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub
`, host, kind, print, hostKeyFile(kind))
	for {
		text, err := a.AskLine(ctx, "Is it the same? (yes/no) ")
		switch strings.TrimSpace(text) {
		case "yes":
			return true, err
		case "no", "":
			return false, err
		case print:
			return true, err
		}
		if err != nil {
			return false, err
		}
	}
}

// hostKeyFile is the part of sshd's file name for a kind of key: ecdsa-sha2-nistp256 is
// in ssh_host_ecdsa_key.
func hostKeyFile(kind string) string {
	for _, name := range []string{"ed25519", "ecdsa"} {
		if strings.Contains(kind, name) {
			return name
		}
	}
	return "rsa"
}

// readSecret reads a password: the first line of a file.
func readSecret(a *app.App, file string) (string, error) {
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(io.LimitReader(a.In, maxToken))
	} else {
		text, err = readSmall(file)
	}
	if err != nil {
		return "", fmt.Errorf("--password-file: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", fmt.Errorf("--password-file %s: its first line is empty", file)
	}
	return line, nil
}

// ownCluster is this machine's cluster; nil where it is in none.
func ownCluster(ctx context.Context, a *app.App, show *upView) (*bootstrap.Cluster, error) {
	b := a.DialHere()
	defer b.Close()
	st, err := wire.ShowStatus.Call(ctx, b, wire.StatusRequest{})
	if errors.Is(err, node.ErrNoAgent) {
		if member, statErr := node.DefaultPaths().Folder().Enrolled(); !member && statErr == nil {
			return nil, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("ask this machine's agent for its cluster: %w", err)
	}
	var one sync.Mutex // sudo prompts on the terminal: one at a time
	return &bootstrap.Cluster{ID: st.Cluster, Invite: func(ctx context.Context) (bootstrap.Invitation, error) {
		one.Lock()
		defer one.Unlock()
		b := a.DialHere()
		defer b.Close()
		t, err := askForToken(ctx, b, wire.TokenRequest{Uses: 1, TTL: 15 * time.Minute})
		if errors.Is(err, wire.ErrDenied) {
			show.asking(func() { t, err = tokenBySudo(ctx, a) })
		}
		if err != nil {
			return bootstrap.Invitation{}, fmt.Errorf("make a token on this machine: %w", err)
		}
		if len(t.Join) == 0 {
			return bootstrap.Invitation{}, errors.New("make a token on this machine: it knows no address of the " +
				"cluster")
		}
		return bootstrap.Invitation{Addr: t.Join[0].String(), Token: t.Token}, nil
	}}, nil
}

// tokenBySudo makes a token as root, which this command is not.
func tokenBySudo(ctx context.Context, a *app.App) (wire.TokenResponse, error) {
	var t wire.TokenResponse
	self, err := os.Executable()
	if err != nil {
		return t, err
	}
	args := []string{"-p", "password of %u on this machine, for a token: ", self, "token", "create", "--json"}
	if !a.InTTY() {
		args = append([]string{"-n"}, args...)
	}
	c := exec.CommandContext(ctx, "sudo", args...)
	c.Stdin, c.Stderr = a.In, a.Err
	out, err := c.Output()
	if err != nil {
		return t, fmt.Errorf("tokens are root's, and sudo says: %w", err)
	}
	return t, json.Unmarshal(out, &t)
}
