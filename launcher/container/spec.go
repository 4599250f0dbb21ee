package container

import (
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
)

// What is mounted into each container, and the argument of its entrypoint.
const (
	insideDir = "/run/sparkrun"
	// InsideProgram is this program.
	InsideProgram = insideDir + "/sparkrun"
	insideHand    = insideDir + "/hand"
	// InnerArg instead of a shim's folder makes this program the inner half.
	InnerArg = "@inner"
)

// homeBytes bounds a HOME in memory: for small caches, not for those of models.
const homeBytes = 1 << 30

// defaultStack is what NVIDIA recommends for its images, in bytes.
const defaultStack = 64 << 20

// Spec is one container, complete: nothing else is looked up.
type Spec struct {
	// Name is unique in an engine, which prevents a second container of the same rank.
	Name   string            `json:"name"`
	Image  string            `json:"image"` // an ID, sha256:...: what was checked is what runs
	Labels map[string]string `json:"labels,omitempty"`
	// Mark is a NAME=VALUE in the environment by which the container's processes are found
	// from outside.
	Mark string `json:"mark,omitempty"`

	// PIDsOf is the name of a container whose PID namespace this one joins, so that each
	// sees the other's processes; empty: it has its own.
	PIDsOf string `json:"pids_of,omitempty"`

	UID    uint32   `json:"uid"`
	GID    uint32   `json:"gid"`
	Groups []uint32 `json:"groups,omitempty"`
	// Home is made in memory, for its owner alone, unless it or a folder above it is
	// mounted. Empty: none.
	Home   string  `json:"home,omitempty"`
	Mounts []Mount `json:"mounts,omitempty"`

	// ShmBytes is the size of its own /dev/shm; 0: the host's, and with it all other IPC of
	// the host.
	ShmBytes             int64 `json:"shm_bytes,omitempty"`
	launcher.RankOptions       // its ulimits override a stack of 64 MiB, and memlock
	// Memlock makes it unlimited, where the node can raise it: memory that a NIC or a GPU
	// reads must stay in place.
	Memlock bool     `json:"memlock,omitempty"`
	CPUs    []int    `json:"cpus,omitempty"` // that it may run on; none: any
	GPU     GPU      `json:"gpu,omitempty"`
	Devices []string `json:"devices,omitempty"` // device files of the host
	// CgroupParent is a group as the engine's driver writes it: a path, or a slice of
	// systemd's. Empty: the engine's own.
	CgroupParent string `json:"cgroup_parent,omitempty"`
	// Grace is how long an engine that is stopped waits between TERM and KILL.
	Grace time.Duration `json:"grace,omitempty"`
	Args  Args          `json:"args,omitzero"`

	// Program is this program as a file of the host, HandDir the folder of the socket,
	// inside one that is closed to all others.
	Program string `json:"program"`
	HandDir string `json:"hand_dir"`
}

// Mount is a file or folder of the host in the container.
type Mount struct {
	Source   string `json:"source"` // absolute; it must exist
	Target   string `json:"target"` // absolute
	ReadOnly bool   `json:"read_only,omitempty"`
	File     bool   `json:"file,omitempty"` // Source is not a folder
	// Dev and Ino identify Source as it was when the user's right to it was checked; with
	// anything else there the container does not begin. 0: not checked.
	Dev uint64 `json:"dev,omitempty"`
	Ino uint64 `json:"ino,omitempty"`
}

// GPU is how the engine is asked for the GPU.
type GPU string

const (
	NoGPU  GPU = ""
	CDIGPU GPU = "cdi" // nvidia.com/gpu=all: engines and specs since 2024
	OldGPU GPU = "capability"
)

// Validate returns the first reason why there could be no such container, in the terms that
// a user knows.
func (s Spec) Validate() error {
	switch {
	case s.Name == "" || s.Program == "" || s.HandDir == "":
		return fmt.Errorf("container %q: %w: want a name, a program and a folder for its socket", s.Name, launcher.ErrInvalid)
	case !strings.HasPrefix(s.Image, "sha256:"):
		return fmt.Errorf("container %s: image %q: %w: want its ID", s.Name, s.Image, launcher.ErrInvalid)
	case s.ShmBytes < 0:
		return fmt.Errorf("--shm-size %d: %w: want 0 or more bytes", s.ShmBytes, launcher.ErrInvalid)
	case s.GPU != NoGPU && s.GPU != CDIGPU && s.GPU != OldGPU:
		return fmt.Errorf("container %s: gpu %q: %w", s.Name, s.GPU, launcher.ErrInvalid)
	}
	return s.validatePlaces()
}

// validatePlaces checks the targets in the container.
func (s Spec) validatePlaces() error {
	seen := map[string]bool{}
	place := func(what, at string) error {
		to := path.Clean(at)
		switch {
		case !path.IsAbs(at):
			return fmt.Errorf("%s: %w: want absolute paths", what, launcher.ErrInvalid)
		case within(insideDir, to) || within(to, insideDir):
			return fmt.Errorf("%s: %w: sparkrun uses %s there: choose another place in the container, such "+
				"as /mnt", what, launcher.ErrInvalid, insideDir)
		case seen[to]:
			return fmt.Errorf("%s: %w: something else is mounted there too", what, launcher.ErrInvalid)
		}
		seen[to] = true
		return nil
	}
	for _, m := range s.Mounts {
		what := fmt.Sprintf("--mount %s:%s", m.Source, m.Target)
		if !path.IsAbs(m.Source) {
			return fmt.Errorf("%s: %w: want absolute paths", what, launcher.ErrInvalid)
		}
		if err := place(what, m.Target); err != nil {
			return err
		}
	}
	for _, at := range s.Args.tmpfsAt() {
		if err := place("--docker-arg --tmpfs="+at, at); err != nil {
			return err
		}
	}
	return nil
}

// Above gives the mount whose source holds the mount point for target; nil: none, the image
// does. An engine makes a missing mount point as root.
func (s Spec) Above(target string) *Mount {
	var best *Mount
	for i, m := range s.Mounts {
		if to := path.Clean(m.Target); to != path.Clean(target) && within(path.Clean(target), to) &&
			(best == nil || len(to) > len(path.Clean(best.Target))) {
			best = &s.Mounts[i]
		}
	}
	return best
}

// Place is a mount point.
type Place struct {
	At   string
	File bool // else a folder
}

// Places are the mount points of what the user asked for.
func (s Spec) Places() (places []Place) {
	for _, m := range s.Mounts {
		places = append(places, Place{m.Target, m.File})
	}
	for _, at := range s.Args.tmpfsAt() {
		places = append(places, Place{At: at})
	}
	return places
}

// within reports whether a path is dir or lies below it.
func within(p, dir string) bool {
	dir = path.Clean(dir)
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}
