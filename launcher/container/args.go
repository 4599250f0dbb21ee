package container

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sparkrun/sparkrun/launcher"
)

// Args are the options of `docker run` that are passed on unchanged.
type Args struct {
	AddHosts  []string `json:"add_hosts,omitempty"`
	Tmpfs     []string `json:"tmpfs,omitempty"`
	PidsLimit int64    `json:"pids_limit,omitempty"`
	ReadOnly  bool     `json:"read_only,omitempty"`

	// These give more rights than the caller has: see Elevates.
	CapAdd      []string `json:"cap_add,omitempty"`
	Devices     []string `json:"devices,omitempty"`
	SecurityOpt []string `json:"security_opt,omitempty"`
	Runtime     string   `json:"runtime,omitempty"`
}

// elevating are the options that need permission.
var elevating = []string{"cap-add", "device", "security-opt", "runtime"}

// refused are options that sparkrun sets itself, and what to say.
var refused = map[string]string{
	"privileged":   "sparkrun starts no privileged containers: name what it needs by --cap-add or --device",
	"network":      "ranks use the host's network",
	"net":          "ranks use the host's network",
	"publish":      "ranks use the host's network; --publish PORT of sparkrun itself opens a port",
	"rm":           "sparkrun removes a container once its exit is recorded",
	"restart":      "use --max-restarts",
	"detach":       "use launch -d",
	"name":         "sparkrun names containers by job and rank",
	"label":        "labels are sparkrun's",
	"entrypoint":   "the command behind -- is what runs",
	"env":          "use --env",
	"env-file":     "use --env or --secret",
	"volume":       "use --mount",
	"mount":        "use --mount of sparkrun itself",
	"user":         "ranks run as the caller; root gives --user",
	"workdir":      "use --workdir",
	"gpus":         "use --gpus",
	"ulimit":       "use --ulimit",
	"shm-size":     "use --shm-size",
	"ipc":          "ranks use the host's IPC, or a /dev/shm of their own by --shm-size",
	"pid":          "a rank is ended with its PID namespace",
	"userns":       "ranks run as the caller",
	"init":         "sparkrun always starts one",
	"memory":       "GPU memory is the same memory and ignores it: use --memory, by which jobs share a machine",
	"cpus":         "use --bind-to",
	"cpuset-cpus":  "use --bind-to",
	"log-driver":   "output does not go through the engine: use logs",
	"stop-timeout": "use --grace",
	"interactive":  "use --stdin",
	"tty":          "use --tty",
}

// ParseArgs reads the values of --docker-arg, each one option as `docker run` has it:
// --NAME=VALUE, or --NAME.
func ParseArgs(words []string) (Args, error) {
	var a Args
	fs := pflag.NewFlagSet("docker-arg", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringArrayVar(&a.AddHosts, "add-host", nil, "")
	fs.StringArrayVar(&a.Tmpfs, "tmpfs", nil, "")
	fs.Int64Var(&a.PidsLimit, "pids-limit", 0, "")
	fs.BoolVar(&a.ReadOnly, "read-only", false, "")
	fs.StringArrayVar(&a.CapAdd, "cap-add", nil, "")
	fs.StringArrayVar(&a.Devices, "device", nil, "")
	fs.StringArrayVar(&a.SecurityOpt, "security-opt", nil, "")
	fs.StringVar(&a.Runtime, "runtime", "", "")
	for _, w := range words {
		name, _, hasValue := strings.Cut(strings.TrimPrefix(w, "--"), "=")
		f := fs.Lookup(name)
		switch {
		case !strings.HasPrefix(w, "--"):
			return a, fmt.Errorf("--docker-arg %q: %w: want one option, such as --docker-arg=--cap-add=SYS_PTRACE", w,
				launcher.ErrInvalid)
		case refused[name] != "":
			return a, fmt.Errorf("--docker-arg %s: %w: %s", w, launcher.ErrInvalid, refused[name])
		case f == nil:
			return a, fmt.Errorf("--docker-arg %s: %w: known are %s", w, launcher.ErrInvalid, strings.Join(known(fs), ", "))
		case !hasValue && f.NoOptDefVal == "":
			return a, fmt.Errorf("--docker-arg %s: %w: want --%s=VALUE in one word", w, launcher.ErrInvalid, name)
		}
		if err := fs.Parse([]string{w}); err != nil {
			return a, fmt.Errorf("--docker-arg %s: %w: %w", w, launcher.ErrInvalid, err)
		}
	}
	return a, nil
}

func known(fs *pflag.FlagSet) (names []string) {
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, "--"+f.Name) })
	return names
}

// Elevates names the options that give a container more than its user has; nil: none.
func (a Args) Elevates() []string {
	given := []bool{len(a.CapAdd) > 0, len(a.Devices) > 0, len(a.SecurityOpt) > 0, a.Runtime != ""}
	var out []string
	for i, name := range elevating {
		if given[i] {
			out = append(out, "--"+name)
		}
	}
	return out
}

// tmpfsAt is where --tmpfs mounts.
func (a Args) tmpfsAt() (at []string) {
	for _, t := range a.Tmpfs {
		to, _, _ := strings.Cut(t, ":")
		at = append(at, path.Clean(to))
	}
	return at
}

// add sets them in a container's body, after sparkrun's own settings.
func (a Args) add(host *hostConfig) {
	host.ExtraHosts = append(host.ExtraHosts, a.AddHosts...)
	host.CapAdd = append(host.CapAdd, a.CapAdd...)
	for _, d := range a.Devices {
		from, rest, _ := strings.Cut(d, ":")
		to, perm, _ := strings.Cut(rest, ":")
		if to == "" {
			to = from
		}
		if perm == "" {
			perm = "rwm"
		}
		host.Devices = append(host.Devices, device{from, to, perm})
	}
	for _, o := range a.SecurityOpt {
		if !slices.Contains(host.SecurityOpt, o) {
			host.SecurityOpt = append(host.SecurityOpt, o)
		}
	}
	for _, t := range a.Tmpfs {
		if host.Tmpfs == nil {
			host.Tmpfs = map[string]string{}
		}
		to, options, _ := strings.Cut(t, ":")
		host.Tmpfs[path.Clean(to)] = options
	}
	host.PidsLimit = a.PidsLimit
	host.ReadonlyRootfs = a.ReadOnly
	host.Runtime = a.Runtime
}
