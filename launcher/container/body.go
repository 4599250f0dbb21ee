package container

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// body is the engine's request for a container, in its own words: what is empty is left to
// the engine.
type body struct {
	Image       string
	User        string `json:",omitempty"`
	WorkingDir  string `json:",omitempty"`
	Entrypoint  []string
	Cmd         []string          // never absent: the image's would be appended
	Env         []string          `json:",omitempty"`
	Labels      map[string]string `json:",omitempty"`
	StopTimeout *int              `json:",omitempty"` // in seconds
	StopSignal  string            `json:",omitempty"`
	Healthcheck *healthcheck      `json:",omitempty"`
	HostConfig  hostConfig
}

type healthcheck struct{ Test []string }

type hostConfig struct {
	NetworkMode    string
	IpcMode        string            `json:",omitempty"`
	PidMode        string            `json:",omitempty"`
	ShmSize        int64             `json:",omitempty"`
	Init           bool              `json:",omitempty"`
	RestartPolicy  *named            `json:",omitempty"`
	LogConfig      *typed            `json:",omitempty"`
	SecurityOpt    []string          `json:",omitempty"`
	GroupAdd       []string          `json:",omitempty"`
	CapAdd         []string          `json:",omitempty"`
	ExtraHosts     []string          `json:",omitempty"`
	Mounts         []mount           `json:",omitempty"`
	Tmpfs          map[string]string `json:",omitempty"`
	ReadonlyRootfs bool              `json:",omitempty"`
	Runtime        string            `json:",omitempty"`
	CgroupParent   string            `json:",omitempty"`
	CpusetCpus     string            `json:",omitempty"`
	PidsLimit      int64             `json:",omitempty"`
	Ulimits        []ulimit          `json:",omitempty"`
	Devices        []device          `json:",omitempty"`
	DeviceRequests []deviceRequest   `json:",omitempty"`
}

type named struct{ Name string }

type typed struct{ Type string }

type mount struct {
	Type, Source, Target string
	ReadOnly             bool `json:",omitempty"`
}

type ulimit struct {
	Name       string
	Soft, Hard int64
}

type device struct{ PathOnHost, PathInContainer, CgroupPermissions string }

type deviceRequest struct {
	Driver       string     `json:",omitempty"`
	Count        int        `json:",omitempty"`
	DeviceIDs    []string   `json:",omitempty"`
	Capabilities [][]string `json:",omitempty"`
}

// body depends only on the spec.
func (s Spec) body() body {
	grace := int((s.Grace + time.Second - 1) / time.Second)
	b := body{
		Image:       s.Image,
		User:        fmt.Sprintf("%d:%d", s.UID, s.GID),
		WorkingDir:  "/", // the inner half changes to the rank's own folder, as it can report an error
		Entrypoint:  []string{InsideProgram, "shim", InnerArg},
		Cmd:         []string{}, // else the image's would be appended
		Labels:      maps.Clone(s.Labels),
		StopTimeout: &grace,
		StopSignal:  "SIGTERM",
		// An image's health check would be an unwanted process every 30 s.
		Healthcheck: &healthcheck{Test: []string{"NONE"}},
	}
	if s.Mark != "" {
		b.Env = []string{s.Mark}
	}
	host := hostConfig{
		NetworkMode:   "host",
		IpcMode:       "host",
		Init:          true,
		RestartPolicy: &named{"no"},
		LogConfig:     &typed{"none"}, // output bypasses the engine
		// The processes must not get more rights than the caller: a setuid program of the
		// image would be root over the mounted files.
		SecurityOpt:  []string{"no-new-privileges"},
		CgroupParent: s.CgroupParent, Ulimits: s.limits(),
	}
	if s.PIDsOf != "" {
		host.PidMode = "container:" + s.PIDsOf
	}
	if s.ShmBytes > 0 {
		host.IpcMode, host.ShmSize = "private", s.ShmBytes
	}
	for _, g := range s.Groups {
		host.GroupAdd = append(host.GroupAdd, strconv.FormatUint(uint64(g), 10))
	}
	for _, d := range s.Devices {
		host.Devices = append(host.Devices, device{d, d, "rwm"})
	}
	switch s.GPU {
	case CDIGPU:
		host.DeviceRequests = []deviceRequest{{Driver: "cdi", DeviceIDs: []string{"nvidia.com/gpu=all"}}}
	case OldGPU:
		host.DeviceRequests = []deviceRequest{{Count: -1, Capabilities: [][]string{{"gpu"}}}}
	}
	if len(s.CPUs) > 0 {
		host.CpusetCpus = cpuList(s.CPUs)
	}
	s.mount(&host)
	s.Args.add(&host)
	b.HostConfig = host
	return b
}

// mount adds our own two mounts, HOME, and the user's.
func (s Spec) mount(host *hostConfig) {
	bind := func(from, to string, readOnly bool) {
		host.Mounts = append(host.Mounts, mount{"bind", from, to, readOnly})
	}
	bind(s.Program, InsideProgram, true)
	bind(s.HandDir, insideHand, true) // a user who may only connect cannot fill /run
	covered := s.Home == "" || s.Home == "/" || slices.Contains(s.Args.tmpfsAt(), s.Home)
	for _, m := range s.Mounts {
		bind(m.Source, m.Target, m.ReadOnly)
		covered = covered || within(s.Home, m.Target)
	}
	if covered {
		return
	}
	host.Tmpfs = map[string]string{}
	folder := func(at string, bytes int) {
		host.Tmpfs[at] = fmt.Sprintf("uid=%d,gid=%d,mode=0700,size=%d,exec", s.UID, s.GID, bytes)
	}
	folder(s.Home, homeBytes)
	for _, m := range s.Mounts { // an engine would make the parent folders as root
		for dir := path.Dir(path.Clean(m.Target)); within(dir, s.Home) && dir != s.Home; dir = path.Dir(dir) {
			if !s.mountedAt(dir) {
				folder(dir, homeBytes)
			}
		}
	}
}

func (s Spec) mountedAt(dir string) bool {
	return slices.ContainsFunc(s.Mounts, func(m Mount) bool { return within(dir, m.Target) })
}

// limits are sorted by name, so that the same spec gives the same body.
func (s Spec) limits() []ulimit {
	all := map[string]ulimit{"stack": {Name: "stack", Soft: defaultStack, Hard: defaultStack}}
	if s.Memlock {
		all["memlock"] = ulimit{Name: "memlock", Soft: launcher.Unlimited, Hard: launcher.Unlimited}
	}
	for _, u := range s.Ulimits {
		all[u.Name] = ulimit{Name: u.Name, Soft: u.Soft, Hard: u.Hard}
	}
	var out []ulimit
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, all[name])
	}
	return out
}

func cpuList(cpus []int) string {
	texts := make([]string, len(cpus))
	for i, c := range cpus {
		texts[i] = strconv.Itoa(c)
	}
	return strings.Join(texts, ",")
}
