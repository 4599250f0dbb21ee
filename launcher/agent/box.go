package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/shim"
)

// Containers is what an Agent needs to have ranks run in containers.
type Containers struct {
	Socket  string // of this node's engine; absolute
	Cluster string // its UUID: containers of another one are not ours
	Program string // this program, as a file that an engine can mount
}

// BoxWish is what a user wants of a node's engine.
type BoxWish struct {
	User     string
	Image    string   // the reference
	Mounts   []string // sources, links resolved with the user's rights
	Elevates []string // options of --docker-arg that give more than the user has
}

// What containers find at places of their own.
const (
	insideSecrets = "/run/secrets"
	insideErrors  = "/run/sparkrun-errors"
	ibverbs       = "libibverbs.so.1"
)

// boxed is what prepare has found out for a try's containers. It lies in the try's folder:
// what was looked at is what a later life of the agent starts.
type boxed struct {
	Socket  string             `json:"socket"`
	Image   launcher.ImageSeen `json:"image"`
	Workdir string             `json:"workdir"`
	// Spec is what all ranks share.
	Spec  container.Spec   `json:"spec"`
	cache *container.Mount // in Spec, and still to be made
	// unpulled: the image is not here, and a launch would pull it; nothing is known of it.
	unpulled bool

	// Group is the folder of the containers' cgroup, where they have one beside the ranks'.
	Group string `json:"group,omitempty"`
}

func boxPath(dir string) string { return filepath.Join(dir, "box.json") }

// readBox gives what prepare has noted; nil: its ranks run on the host.
func readBox(dir string) (*boxed, error) {
	var b boxed
	err := readJSON(boxPath(dir), &b)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return &b, err
}

// boxes finds out what the containers of a try need. It changes nothing but, where an
// image is looked into, the engine for a moment.
func (a *Agent) boxes(ctx context.Context, as launcher.Assignment, p *prepared, hfHome string) (warning string, err error) {
	st := as.Spec.MainStage()
	c := st.Container
	args, err := container.ParseArgs(c.Args)
	if err != nil {
		return "", err
	}
	mounts, err := a.mounts(as, p.who)
	if err != nil {
		return "", err
	}
	cache, missing, err := modelCache(p.who, c, hfHome)
	if err != nil {
		return "", err
	}
	allowed := func(m container.Mount) bool {
		return a.allowBox(ctx, p.who, c.Image, []container.Mount{m}, container.Args{}) == nil
	}
	// What a workload offers and nobody has asked for is left out where the rules refuse it.
	var asked []container.Mount
	for i, m := range c.Mounts {
		if !m.Make || allowed(mounts[i]) {
			asked = append(asked, mounts[i])
		}
	}
	mounts = append(asked[:len(asked):len(asked)], mounts[len(c.Mounts):]...)
	offered := c.ModelCache == "" || c.CacheOffered
	if cache != nil && !offered {
		asked = append(asked, *cache)
	}
	if err := a.allowBox(ctx, p.who, c.Image, asked, args); err != nil {
		return "", err
	}
	if cache != nil && offered && !allowed(*cache) {
		cache = nil
	}
	if cache != nil {
		mounts = append(mounts, *cache)
	}
	e, facts, err := a.engine(ctx)
	if err != nil {
		return "", err
	}
	defer e.Close()
	im, err := e.Image(ctx, c.Image)
	unpulled := errors.Is(err, container.ErrNoImage)
	if unpulled {
		im, err = container.Image{ID: c.Image}, unpullable(c)
	}
	if err != nil {
		return "", err
	}
	if !unpulled && strings.HasPrefix(strings.TrimPrefix(im.ID, "sha256:"), strings.TrimPrefix(c.Image, "sha256:")) {
		// It was named by the beginning of its ID, which a rule could take for a name.
		if err := a.allowBox(ctx, p.who, im.ID, nil, container.Args{}); err != nil {
			return "", err
		}
	}
	if im.Arch != "" && im.Arch != runtime.GOARCH {
		return "", fmt.Errorf("image %s is for %s, and this machine is %s: name one for %[3]s", c.Image, im.Arch, runtime.GOARCH)
	}
	b := &boxed{Socket: a.cfg.Containers.Socket, Image: launcher.ImageSeen{ID: im.ID, Digest: im.Digest}, Workdir: st.Workdir, unpulled: unpulled}
	if b.Workdir == "" && !unpulled {
		b.Workdir = path.Join("/", im.Workdir)
	}
	if missing && cache != nil {
		b.cache = &mounts[len(mounts)-1]
	}
	b.Spec = container.Spec{
		Image: im.ID, UID: p.who.UID, GID: p.who.GID, Groups: p.who.Groups, Home: p.who.Home, Mounts: mounts,
		ShmBytes: c.ShmBytes, RankOptions: st.RankOptions, Grace: as.Spec.Grace, Args: args, Program: a.cfg.Containers.Program,
		Devices: rdmaDevices("/dev"),
	}
	var short bool
	b.Spec.Memlock, short = memlock(b.Spec.Devices, st.Ulimits, shim.MayLimit, os.Geteuid() == 0)
	if short {
		warning = "memlock of the containers stays what the engine gives, though NICs read their memory: the agent itself has less than unlimited: LimitMEMLOCK=infinity in its unit, or --ulimit memlock=SIZE"
	}
	if st.GPU {
		if b.Spec.GPU, err = gpuOf("/", facts); err != nil {
			return "", err
		}
	}
	b.Spec.CgroupParent, b.Group = boxGroup(cgroupRoot, facts.SystemdRuns, a.groupName(as.Key))
	whole := a.containerOf(b, as, shim.Rank{Rank: as.FirstRank})
	if unpulled {
		whole.Image = "sha256:" // has one once it is here
	}
	if err := whole.Validate(); err != nil {
		return "", err
	}
	if err := placesAreThere(p.who, b.Spec); err != nil {
		return "", err
	}
	p.box = b
	if len(b.Spec.Devices) > 0 && as.NodeCount > 1 && !unpulled {
		if err := a.noteBoxes(); err != nil {
			return "", err
		}
		has, err := e.Libraries(ctx, im.ID, a.lookLabels(), ibverbs)
		if err == nil && has != nil && !has[ibverbs] {
			warning = join(warning, fmt.Sprintf("image %s has no %s: its ranks meet over TCP, at a fraction of the fabric's speed: install rdma-core in it (libibverbs1 ibverbs-providers)", c.Image, ibverbs))
		}
		if err != nil {
			a.cfg.Logger.Warn("look into image", "job", as.Job, "error", err)
		}
	}
	return warning, nil
}

// unpullable says why no launch would pull an image that is not on this node; nil: one would.
func unpullable(c *launcher.Container) error {
	if c.Pull == launcher.PullNever {
		return fmt.Errorf("image %s is not on this node, and --pull never: `docker pull %[1]s` here, or leave --pull out", c.Image)
	}
	if isID(c.Image) {
		return fmt.Errorf("image %s is not on this node, and no registry knows an engine's IDs: name it by its reference", c.Image)
	}
	return nil
}

// allowBox asks the administrator's rules.
func (a *Agent) allowBox(ctx context.Context, who login.User, image string, mounts []container.Mount, args container.Args) error {
	wish := BoxWish{User: who.Name, Image: image, Elevates: args.Elevates()}
	for _, m := range mounts {
		wish.Mounts = append(wish.Mounts, m.Source)
	}
	if a.cfg.Policy == nil {
		if wish.Elevates != nil && who.Switches {
			return fmt.Errorf("--docker-arg %s: it gives a container more than %s has: root alone may", strings.Join(wish.Elevates, ", "), who.Name)
		}
		return nil
	}
	return a.cfg.Policy.Contain(ctx, wish)
}

// mounts looks at the sources with the user's eyes; those that were asked for come first. What was
// found there is noted, for an engine follows a path as root.
func (a *Agent) mounts(as launcher.Assignment, who login.User) ([]container.Mount, error) {
	var out []container.Mount
	st := as.Spec.MainStage()
	for _, m := range st.Container.Mounts {
		found, err := mount(who, m)
		if err != nil {
			return nil, fmt.Errorf("--mount %s: %w", m, err)
		}
		out = append(out, found)
	}
	// Ours, which are laid out later (identify).
	out = append(out, container.Mount{Source: errorDir(as.Key, as.Node), Target: insideErrors})
	if as.Spec.Stepped() {
		// What one stage lays out here another one finds: each has a /tmp of its own else. A
		// short path, for sockets in it.
		out = append(out, container.Mount{Source: errorDir(as.Key, as.Node), Target: launcher.SharedDir})
	}
	if len(as.Spec.Secrets) > 0 {
		out = append(out, container.Mount{Source: a.secretsDir(as.Key), Target: insideSecrets, ReadOnly: true})
	}
	if as.Spec.Staged != nil {
		out = append(out, container.Mount{Source: a.stageDir(as.Job), Target: a.stageDir(as.Job)})
	}
	return out, nil
}

var errNotHere = errors.New("not found here: create it on every node, or leave it out")

func mount(u login.User, m launcher.Mount) (container.Mount, error) {
	out := container.Mount{Target: m.Target, ReadOnly: m.ReadOnly}
	err := u.Do(func() error {
		real, err := filepath.EvalSymlinks(m.Source)
		if errors.Is(err, fs.ErrNotExist) && m.Make { // a dry run: prepare has made it
			out.Source = m.Source
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			return errNotHere
		}
		if err != nil {
			return u.Cause(err)
		}
		fi, err := os.Stat(real)
		if err != nil {
			return u.Cause(err)
		}
		mode := uint32(unix.R_OK)
		if fi.IsDir() {
			mode |= unix.X_OK
		}
		if strings.Contains(real, ":") {
			return fmt.Errorf("it is %q, and docker's paths have no colon: give it another name", real)
		}
		at := fi.Sys().(*syscall.Stat_t)
		out.Source, out.File, out.Dev, out.Ino = real, !fi.IsDir(), at.Dev, at.Ino
		return u.May(real, mode)
	})
	return out, err
}

// onHost is where a path of the container lies on this node; empty: in the image.
func (b *boxed) onHost(inside string) string {
	best, at := "", ""
	for _, m := range b.Spec.Mounts {
		rest, err := filepath.Rel(m.Target, inside)
		if err == nil && rest != ".." && !strings.HasPrefix(rest, "../") && len(m.Target) >= len(at) {
			best, at = filepath.Join(m.Source, rest), m.Target
		}
	}
	return best
}

// mayRunBoxed looks for what a stage names, where that is on a mount: into an image nobody looks.
func mayRunBoxed(u login.User, st launcher.Stage, b *boxed) error {
	return u.Do(func() error {
		if dir := b.onHost(b.Workdir); dir != "" {
			if err := enterable(u, dir); err != nil {
				return fmt.Errorf("working directory %s: %s: %w", b.Workdir, dir, err)
			}
		}
		for _, f := range st.Files {
			if !filepath.IsAbs(f) {
				f = filepath.Join(b.Workdir, f)
			}
			if at := b.onHost(f); at != "" {
				if err := readable(u, at); err != nil {
					return fmt.Errorf("script %s: %w", f, err)
				}
			}
		}
		return nil
	})
}

// rdmaDevices are the files by which programs reach the NICs past the kernel.
func rdmaDevices(dev string) []string {
	all, _ := filepath.Glob(filepath.Join(dev, "infiniband", "*"))
	var out []string
	for _, f := range all {
		if fi, err := os.Stat(f); err == nil && fi.Mode()&fs.ModeCharDevice != 0 {
			out = append(out, f)
		}
	}
	return out
}

// memlock tells whether containers are to have it unlimited: where the agent may raise it the engine may, too. short: they
// have NICs, and do without. Of what an engine may that is another user's than the agent nothing is known.
func memlock(devices []string, asked []launcher.Ulimit, may func([]launcher.Ulimit) error, root bool) (unlimited, short bool) {
	if slices.ContainsFunc(asked, func(u launcher.Ulimit) bool { return u.Name == "memlock" }) {
		return false, false
	}
	if may([]launcher.Ulimit{{Name: "memlock", Soft: launcher.Unlimited, Hard: launcher.Unlimited}}) == nil || !root && len(devices) > 0 {
		return true, false
	}
	return false, len(devices) > 0
}

// gpuOf is how the engine can be asked for this node's GPU; a node without one asks for none.
func gpuOf(root string, f container.Facts) (container.GPU, error) {
	if _, err := os.Stat(filepath.Join(root, "dev/nvidiactl")); err != nil {
		return container.NoGPU, nil //nolint:nilerr // no driver: the leader has let such a node through
	}
	if f.CDI {
		for _, dir := range []string{"etc/cdi", "var/run/cdi"} { // the CDI specification's
			specs, _ := filepath.Glob(filepath.Join(root, dir, "*"))
			for _, s := range specs {
				if b, err := os.ReadFile(s); err == nil && strings.Contains(string(b), "nvidia.com/gpu") {
					return container.CDIGPU, nil
				}
			}
		}
	}
	if f.Nvidia {
		return container.OldGPU, nil
	}
	return "", errors.New("the engine knows no way to this machine's GPU: install nvidia-container-toolkit, then `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`, or launch with --gpus none")
}

// boxGroup names the cgroup of a try's containers, as the engine's driver writes it and as
// a folder. Where v1 has the controllers there is none: the processes are brought into the
// ranks' own group of v2, which has none there.
func boxGroup(root string, systemd bool, name string) (parent, folder string) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		return "", ""
	}
	if systemd { // a dash in a slice's name is a level of the tree (systemd.slice(5))
		slice := "sparkrun-" + sliceName(name) + ".slice"
		return slice, filepath.Join(root, "sparkrun.slice", slice)
	}
	return "/sparkrun/" + name + ".boxes", filepath.Join(root, "sparkrun", name+".boxes")
}

func (a *Agent) groupName(k launcher.Key) string { return string(a.cfg.Node) + "-" + k.String() }

func sliceName(name string) string { return strings.ReplaceAll(name, "-", "_") }

// lookLabel is on a container that is never started; it says which life of the agent made it.
const lookLabel = "com.sparkrun.look"

func (a *Agent) lookLabels() map[string]string {
	l := a.labels()
	l[lookLabel] = a.life
	return l
}

// labels by which a container is found again.
func (a *Agent) labels() map[string]string {
	return map[string]string{"com.sparkrun.cluster": a.cfg.Containers.Cluster, "com.sparkrun.node": string(a.cfg.Node)}
}

// containerOf is the whole of one rank's container.
func (a *Agent) containerOf(b *boxed, as launcher.Assignment, r shim.Rank) container.Spec {
	s := b.Spec
	s.Name = a.containerName(as.Key, r.Rank)
	if of, is := pidsOf(as, r.Rank); is {
		s.PIDsOf = a.containerName(as.Key, of)
	}
	s.Labels = a.labels()
	s.Labels["com.sparkrun.job"] = string(as.Job)
	s.Labels["com.sparkrun.generation"] = strconv.FormatUint(uint64(as.Generation), 10)
	s.Labels["com.sparkrun.rank"] = strconv.Itoa(r.Rank)
	s.HandDir = filepath.Join(a.tryDir(as.Key), "box-"+strconv.Itoa(r.Rank))
	s.CPUs = r.CPUs
	return s
}

// containerName has the boot: a machine that is booted anew may have what ran there before the power
// went, exited, and with the engine until the record says that the job is over.
func (a *Agent) containerName(k launcher.Key, rank int) string {
	return fmt.Sprintf("sparkrun-%s-%d-%s-%s", k, rank, brief(string(a.cfg.Node)), brief(a.cfg.Boot))
}

// pidsOf is the rank of this node whose processes another one is to see, if there is one.
func pidsOf(as launcher.Assignment, rank int) (of int, is bool) {
	_, st, _ := as.Local(rank - as.FirstRank)
	if st.PIDsOf == "" {
		return 0, false
	}
	for i := range as.Ranks {
		if _, other, _ := as.Local(i); other.Name == st.PIDsOf {
			return as.FirstRank + i, true
		}
	}
	return 0, false
}

// brief is the begin of an id, enough to tell a cluster's nodes or a node's boots apart.
func brief(id string) string { return id[:min(len(id), 8)] }

// putInBoxes has ranks run in containers.
func (a *Agent) putInBoxes(b *boxed, as launcher.Assignment, ranks []shim.Rank) {
	for i, r := range ranks {
		ranks[i].Box = &shim.Box{Socket: b.Socket, Spec: a.containerOf(b, as, r)}
		ranks[i].Dir, ranks[i].RankOptions, ranks[i].CPUs = b.Workdir, launcher.RankOptions{}, nil
	}
}

func (b *boxed) image() *launcher.ImageSeen {
	if b == nil || b.unpulled {
		return nil
	}
	return &b.Image
}

// layOutBoxes writes what a later life has to know, and makes the containers' cgroup, by which
// the packet filter knows them: before the filter is, and before there is a container.
func (a *Agent) layOutBoxes(ctx context.Context, dir string, as launcher.Assignment, p *prepared) error {
	b, who := p.box, p.who
	if b == nil {
		return nil
	}
	if b.cache != nil {
		if err := makeCache(who, b.cache); err != nil {
			return err
		}
		// The rules are asked of where it is now, with no link on the way.
		if err := a.allowBox(ctx, who, as.Spec.MainStage().Container.Image, []container.Mount{*b.cache}, container.Args{}); err != nil {
			return err
		}
	}
	if err := identify(b.Spec.Mounts, who); err != nil {
		return err
	}
	if err := a.noteBoxes(); err != nil {
		return err
	}
	if b.Group != "" {
		if err := os.MkdirAll(b.Group, 0o755); err != nil {
			return fmt.Errorf("make the containers' cgroup: %w", err)
		}
	}
	return writeJSON(boxPath(dir), b)
}

// leaveBoxes is for a try that has been forgotten. A group in which a container is still being removed
// goes with the next sweep.
func (a *Agent) leaveBoxes(b *boxed) {
	if b != nil && b.Group != "" {
		_ = os.Remove(b.Group)
	}
	a.sweepSoon()
}

// join makes one remark of several.
func join(remarks ...string) string {
	var out []string
	for _, r := range remarks {
		if r != "" {
			out = append(out, r)
		}
	}
	return strings.Join(out, "; ")
}
