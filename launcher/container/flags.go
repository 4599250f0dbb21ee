package container

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Flags are what a container is to be, as options of `docker run`: for people, who know
// these. What is not there is not asked for.
func (s Spec) Flags() []string {
	b := s.body()
	host := b.HostConfig
	out := []string{"--name", s.Name, "--network", host.NetworkMode, "--ipc", host.IpcMode, "--init",
		"--user", b.User, "--security-opt", strings.Join(host.SecurityOpt, ","), "--stop-timeout",
		strconv.Itoa(*b.StopTimeout),
		"--log-driver", host.LogConfig.Type, "--no-healthcheck"}
	add := func(flag string, values ...string) {
		for _, v := range values {
			out = append(out, flag, v)
		}
	}
	if host.PidMode != "" {
		add("--pid", host.PidMode)
	}
	if host.ShmSize > 0 {
		add("--shm-size", strconv.FormatInt(host.ShmSize, 10))
	}
	add("--group-add", host.GroupAdd...)
	for _, u := range host.Ulimits {
		add("--ulimit", fmt.Sprintf("%s=%d:%d", u.Name, u.Soft, u.Hard))
	}
	for _, d := range host.Devices {
		text := d.PathOnHost
		if d.PathInContainer != d.PathOnHost || d.CgroupPermissions != "rwm" {
			text += ":" + d.PathInContainer + ":" + d.CgroupPermissions
		}
		add("--device", text)
	}
	switch s.GPU {
	case CDIGPU:
		add("--device", "nvidia.com/gpu=all")
	case OldGPU:
		add("--gpus", "all")
	}
	if host.CpusetCpus != "" {
		add("--cpuset-cpus", host.CpusetCpus)
	}
	if s.CgroupParent != "" {
		add("--cgroup-parent", s.CgroupParent)
	}
	for _, m := range host.Mounts {
		text := "type=bind,src=" + m.Source + ",dst=" + m.Target
		if m.ReadOnly {
			text += ",readonly"
		}
		add("--mount", text)
	}
	for _, at := range slices.Sorted(maps.Keys(host.Tmpfs)) {
		add("--tmpfs", strings.TrimSuffix(at+":"+host.Tmpfs[at], ":"))
	}
	add("--add-host", host.ExtraHosts...)
	add("--cap-add", host.CapAdd...)
	if host.PidsLimit != 0 {
		add("--pids-limit", strconv.FormatInt(host.PidsLimit, 10))
	}
	if host.ReadonlyRootfs {
		out = append(out, "--read-only")
	}
	if host.Runtime != "" {
		add("--runtime", host.Runtime)
	}
	for _, k := range slices.Sorted(maps.Keys(b.Labels)) {
		add("--label", k+"="+b.Labels[k])
	}
	add("--entrypoint", b.Entrypoint[0])
	return append(append(out, s.Image), b.Entrypoint[1:]...)
}
