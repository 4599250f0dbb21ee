package container

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/durable"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// ibverbs is the library by which ranks in an image reach the NICs, past the kernel.
const ibverbs = "libibverbs.so.1"

// Prepared is what was found out for an attempt's containers. It is kept in the attempt's
// folder: also after a restart of the agent, what was checked is what starts.
type Prepared struct {
	Socket  string             `json:"socket"`
	Image   launcher.ImageSeen `json:"image"`
	Workdir string             `json:"workdir"`
	// Spec is what all ranks share.
	Spec Spec `json:"spec"`
	// Group is the folder of the containers' cgroup, if they have one beside the ranks'
	// group.
	Group string `json:"group,omitempty"`

	dir      string // the attempt's
	cache    *Mount // in Spec, and still to be made
	unpulled bool
}

func preparedPath(dir string) string { return filepath.Join(dir, "box.json") }

// ReadPrepared reads it from an attempt's folder; nil: the ranks run on the host.
func ReadPrepared(dir string) (*Prepared, error) {
	b, err := os.ReadFile(preparedPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	p := Prepared{dir: dir}
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("read %s: %w", preparedPath(dir), err)
	}
	return &p, nil
}

// Unpulled: the image is not here, and a launch would pull it; nothing else is known about
// it.
func (p *Prepared) Unpulled() bool { return p != nil && p.unpulled }

// ImageSeen is the image that was found; nil: there is none, or none yet.
func (p *Prepared) ImageSeen() *launcher.ImageSeen {
	if p == nil || p.unpulled {
		return nil
	}
	return &p.Image
}

// OnHost is where a path of the container is on this node; empty: in the image.
func (p *Prepared) OnHost(inside string) string {
	best, at := "", ""
	for _, m := range p.Spec.Mounts {
		rest, err := filepath.Rel(m.Target, inside)
		if err == nil && rest != ".." && !strings.HasPrefix(rest, "../") && len(m.Target) >= len(at) {
			best, at = filepath.Join(m.Source, rest), m.Target
		}
	}
	return best
}

// Attempt is the attempt whose containers are prepared.
type Attempt struct {
	Assignment launcher.Assignment
	Dir        string // its folder
	User       login.User
	Own        []Mount // of folders that are made for it before its ranks start
	// OfImage are further ones that depend on the image, by its ID; nil: none.
	OfImage func(id string) []Mount
	HFHome  string // the ranks' HF_HOME
}

// Prepare finds out what the containers of an attempt need. It changes nothing, except for
// a short-lived container where an image is looked into. Warnings are for the user; the job
// starts all the same.
func (h *Host) Prepare(ctx context.Context, at Attempt) (p *Prepared, warnings []string, err error) {
	as, st := at.Assignment, at.Assignment.Spec.MainStage()
	c := st.Container
	args, err := ParseArgs(c.Args)
	if err != nil {
		return nil, nil, err
	}
	mounts, missing, err := h.mounts(ctx, at, args)
	if err != nil {
		return nil, nil, err
	}
	e, facts, err := h.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	im, unpulled, err := h.image(ctx, e, at)
	if err != nil {
		return nil, nil, err
	}
	if at.OfImage != nil && !unpulled {
		mounts = append(at.OfImage(im.ID), mounts...)
	}
	p = &Prepared{Socket: h.cfg.Engine.Socket, Image: launcher.ImageSeen{ID: im.ID, Digest: im.Digest, Built: im.Built},
		Workdir: st.Workdir, dir: at.Dir, unpulled: unpulled}
	if p.Workdir == "" && !unpulled {
		p.Workdir = path.Join("/", im.Workdir)
	}
	if missing {
		p.cache = &mounts[len(mounts)-1]
	}
	p.Spec = Spec{
		Image: im.ID, UID: at.User.UID, GID: at.User.GID, Groups: at.User.Groups, Home: at.User.Home, Mounts: mounts,
		ShmBytes: c.ShmBytes, RankOptions: st.RankOptions, Grace: as.Spec.Grace, Args: args,
		Program: h.cfg.Engine.Program, Devices: rdmaDevices("/dev"),
	}
	var short bool
	p.Spec.Memlock, short = memlock(p.Spec.Devices, st.Ulimits, h.cfg.MayLimit, os.Geteuid() == 0)
	if short {
		warnings = append(warnings, "memlock of the containers stays what the engine gives, though NICs read their "+
			"memory: "+
			"the agent itself has less than unlimited: LimitMEMLOCK=infinity in its unit, or --ulimit memlock=SIZE")
	}
	if st.GPU {
		if p.Spec.GPU, err = gpuOf("/", facts); err != nil {
			return nil, nil, err
		}
	}
	p.Spec.CgroupParent, p.Group = groupOf(cgroupRoot, facts.SystemdRuns, h.groupName(as.Key))
	whole := h.Rank(p, as, as.FirstRank, nil)
	if unpulled {
		whole.Image = "sha256:" // the Spec has an ID once the image is here
	}
	if err := whole.Validate(); err != nil {
		return nil, nil, err
	}
	if err := placesAreThere(at.User, p.Spec); err != nil {
		return nil, nil, err
	}
	if len(p.Spec.Devices) > 0 && as.NodeCount > 1 && !unpulled {
		slow, err := h.withoutVerbs(ctx, e, as, im.ID)
		if err != nil {
			return nil, nil, err
		}
		warnings = append(warnings, slow...)
	}
	return p, warnings, nil
}

// image finds the image in the engine. unpulled: it is not there, and a launch would pull
// it.
func (h *Host) image(ctx context.Context, e *Engine, at Attempt) (im Image, unpulled bool, err error) {
	c := at.Assignment.Spec.MainStage().Container
	im, err = e.Image(ctx, c.Image)
	if errors.Is(err, ErrNoImage) {
		return Image{ID: c.Image}, true, unpullable(c)
	}
	if err != nil {
		return Image{}, false, err
	}
	if strings.HasPrefix(strings.TrimPrefix(im.ID, "sha256:"), strings.TrimPrefix(c.Image, "sha256:")) {
		// The user gave the beginning of its ID, which a rule could take for a name.
		if err := h.allow(ctx, at.User, im.ID, nil, Args{}); err != nil {
			return Image{}, false, err
		}
	}
	if im.Arch != "" && im.Arch != runtime.GOARCH {
		return Image{}, false, fmt.Errorf("image %s is for %s, and this machine is %s: name one for %[3]s",
			c.Image, im.Arch, runtime.GOARCH)
	}
	return im, false, nil
}

// unpullable says why no launch would pull an image that is not on this node; nil: one
// would.
func unpullable(c *launcher.Container) error {
	if c.Pull == launcher.PullNever {
		return fmt.Errorf("image %s is not on this node, and --pull never: "+
			"`docker pull %[1]s` here, or leave --pull out", c.Image)
	}
	if isID(c.Image) {
		return fmt.Errorf("image %s is not on this node, and an engine's IDs cannot be pulled: "+
			"name it by its reference", c.Image)
	}
	return nil
}

// withoutVerbs warns about an image whose ranks cannot use the fabric.
func (h *Host) withoutVerbs(
	ctx context.Context, e *Engine, as launcher.Assignment, id string,
) (warnings []string, err error) {
	if err := h.noteContainers(); err != nil {
		return nil, err
	}
	has, err := e.Libraries(ctx, id, h.lookLabels(), ibverbs)
	if err != nil {
		h.cfg.Logger.Warn("look into image", "job", as.Job, "error", err)
		return nil, nil
	}
	if has == nil || has[ibverbs] {
		return nil, nil
	}
	return []string{fmt.Sprintf("image %s has no %s: its ranks talk over TCP, at a fraction of the fabric's speed: "+
		"install rdma-core in it (libibverbs1 ibverbs-providers)", as.Spec.MainStage().Container.Image, ibverbs)}, nil
}

// allow applies the administrator's rules.
func (h *Host) allow(ctx context.Context, who login.User, image string, mounts []Mount, args Args) error {
	wish := Wish{User: who.Name, Image: image, Elevates: args.Elevates()}
	for _, m := range mounts {
		wish.Mounts = append(wish.Mounts, m.Source)
	}
	if h.cfg.Contain == nil {
		if wish.Elevates != nil && who.Switches {
			return fmt.Errorf("--docker-arg %s: it gives a container more than %s has: root alone may",
				strings.Join(wish.Elevates, ", "), who.Name)
		}
		return nil
	}
	return h.cfg.Contain(ctx, wish)
}

// LayOut writes what is needed after a restart, and makes the containers' cgroup, by which
// the packet filter knows them: before the filter is set, and before there is a container.
func (h *Host) LayOut(ctx context.Context, p *Prepared, c *launcher.Container, who login.User) error {
	if p.cache != nil {
		if err := makeCache(who, p.cache); err != nil {
			return err
		}
		// The rules apply to its real path, without links.
		if err := h.allow(ctx, who, c.Image, []Mount{*p.cache}, Args{}); err != nil {
			return err
		}
	}
	if err := identify(p.Spec.Mounts, who); err != nil {
		return err
	}
	if err := h.noteContainers(); err != nil {
		return err
	}
	if p.Group != "" {
		if err := os.MkdirAll(p.Group, 0o755); err != nil {
			return fmt.Errorf("make the containers' cgroup: %w", err)
		}
	}
	b, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return durable.Swap(preparedPath(p.dir), b, 0o600)
}

// Forget is called when an attempt is over. A cgroup in which a container is still being
// removed is removed by the next sweep.
func (h *Host) Forget(p *Prepared) {
	if p != nil && p.Group != "" {
		_ = os.Remove(p.Group)
	}
	h.SweepSoon()
}
