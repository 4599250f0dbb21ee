package launcher

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Container runs a stage's ranks in containers of an image, one for each rank.
type Container struct {
	// Argv is the stage's command, instead of Stage.Argv: a version without containers
	// would ignore this struct, and then finds no command to run on the host.
	Argv  []Value `json:"argv"`
	Image string  `json:"image"` // a reference, or an ID; each node asks its engine for it
	Pull  Pull    `json:"pull,omitempty"`
	// Mounts are files and folders of each node that the ranks' user may access.
	Mounts []Mount `json:"mounts,omitempty"`
	// ModelCache is a folder of each node for Hugging Face's models. It is made as the
	// ranks' user if it is missing, and mounted where their libraries look; "": the user's
	// own cache, if there is one; NoModelCache: none.
	ModelCache string `json:"model_cache,omitempty"`
	// CacheOffered says that a workload, and not the user, has named ModelCache: a node
	// whose rules refuse it leaves it out.
	CacheOffered bool `json:"cache_offered,omitempty"`
	// ShmBytes is the size of the rank's own /dev/shm; 0: the host's, and with it all other
	// IPC of the host.
	ShmBytes int64 `json:"shm_bytes,omitempty"`
	// Args are options of `docker run`, each in one word, such as --cap-add=SYS_PTRACE.
	Args []string `json:"args,omitempty"`
}

// SharedDir is a folder that the containers of a job in stages share on a node, for as long
// as they run. It belongs to their user.
const SharedDir = "/tmp/sparkrun"

// Pull says when a node asks a registry for an image.
type Pull string

const (
	PullMissing Pull = "missing" // where the node has none; also what "" means
	PullAlways  Pull = "always"
	PullNever   Pull = "never"
)

// Mount is a file or folder of a node, as mounted in containers.
type Mount struct {
	Source   string `json:"source"` // absolute
	Target   string `json:"target"` // absolute
	ReadOnly bool   `json:"read_only,omitempty"`
	// Make makes the folder, as the ranks' user, if it is missing.
	Make bool `json:"make,omitempty"`
}

// NoModelCache mounts no model cache.
const NoModelCache = "none"

// MaxMounts bounds the mounts of a stage, and its docker options.
const MaxMounts = 64

// NoSpawn is the cause of an MPI program's end that has called MPI_Comm_spawn.
const NoSpawn = "MPI_Comm_spawn was refused: a job has only the ranks that it was launched with: start as many as " +
	"are needed by --nodes and --nproc-per-node"

// EndedFromOutside stands between a container's name and the reason in the line that
// sparkrun adds at the end of its rank's stderr, if the engine or a user of it ended the
// container.
const EndedFromOutside = " was ended from outside: "

// ParseMount reads SRC[:DST][:ro] or SRC[:DST][:rw]; a relative SRC is in workdir, or
// refused if workdir is empty.
func ParseMount(text, workdir string) (Mount, error) {
	bad := func(want string) (Mount, error) {
		return Mount{}, fmt.Errorf("--mount %q: %w: %s", text, ErrInvalid, want)
	}
	parts := strings.Split(text, ":")
	var m Mount
	if last := parts[len(parts)-1]; len(parts) > 1 && (last == "ro" || last == "rw") {
		m.ReadOnly, parts = last == "ro", parts[:len(parts)-1]
	}
	if len(parts) > 2 || parts[0] == "" {
		return bad("want SRC, SRC:DST or SRC:DST:ro")
	}
	m.Source = path.Clean(parts[0])
	if !path.IsAbs(m.Source) {
		if workdir == "" {
			return bad("want an absolute path: a folder of this machine means nothing there")
		}
		m.Source = path.Join(workdir, m.Source)
	}
	m.Target = m.Source
	if len(parts) == 2 {
		m.Target = path.Clean(parts[1])
	}
	if !path.IsAbs(m.Target) {
		return bad("want an absolute path in the container")
	}
	return m, nil
}

func (m Mount) String() string {
	text := m.Source
	if m.Target != m.Source {
		text += ":" + m.Target
	}
	if m.ReadOnly {
		text += ":ro"
	}
	return text
}

// Command is the command of a stage's ranks, on the host or in a container.
func (st Stage) Command() []Value {
	if st.Container != nil {
		return st.Container.Argv
	}
	return st.Argv
}

// validate also returns the size of its text.
func (c *Container) validate() error {
	if c == nil {
		return nil
	}
	switch {
	case c.Image == "" || len(c.Image) > maxWordBytes || strings.HasPrefix(c.Image, "-") ||
		strings.ContainsFunc(c.Image, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("--image %q: %w: want a reference such as nvcr.io/nvidia/pytorch:25.10-py3", c.Image, ErrInvalid)
	case c.Pull != "" && c.Pull != PullMissing && c.Pull != PullAlways && c.Pull != PullNever:
		return fmt.Errorf("--pull %q: %w: want missing, always or never", c.Pull, ErrInvalid)
	case c.ShmBytes < 0:
		return fmt.Errorf("--shm-size %d: %w: want 0 or more bytes", c.ShmBytes, ErrInvalid)
	case len(c.Mounts) > MaxMounts || len(c.Args) > MaxMounts:
		return fmt.Errorf("--mount, --docker-arg: %w: %d and %d of them, at most %d each", ErrInvalid, len(c.Mounts),
			len(c.Args), MaxMounts)
	}
	if m := c.ModelCache; m != "" && m != NoModelCache &&
		(!path.IsAbs(m) || strings.Contains(m, ":") || validText(m) != nil) {
		return fmt.Errorf("--model-cache %q: %w: want an absolute path without a colon, or none", m, ErrInvalid)
	}
	for _, m := range c.Mounts {
		if !path.IsAbs(m.Source) || !path.IsAbs(m.Target) || strings.Contains(m.Source+m.Target, ":") {
			return fmt.Errorf("--mount %s: %w: want absolute paths without a colon", m, ErrInvalid)
		}
		if err := validText(m.Source + m.Target); err != nil {
			return fmt.Errorf("--mount %q: %w", m.String(), err)
		}
	}
	for _, a := range c.Args {
		if err := validText(a); err != nil {
			return fmt.Errorf("--docker-arg %q: %w", a, err)
		}
	}
	return nil
}

// alike reports whether two differ in their commands only.
func (c *Container) alike(d *Container) bool {
	if c == nil || d == nil {
		return c == d
	}
	return c.Image == d.Image && c.Pull == d.Pull && c.ShmBytes == d.ShmBytes && c.ModelCache == d.ModelCache &&
		slices.Equal(c.Mounts, d.Mounts) && slices.Equal(c.Args, d.Args)
}

// textBytes is the size of the user's words in it, without the command.
func (c *Container) textBytes() (size int) {
	if c == nil {
		return 0
	}
	size = len(c.Image) + len(c.ModelCache)
	for _, m := range c.Mounts {
		size += len(m.Source) + len(m.Target)
	}
	for _, a := range c.Args {
		size += len(a)
	}
	return size
}

// ImageSeen is what a node found under an image's reference.
type ImageSeen struct {
	ID     string `json:"id"`               // sha256:..., as its engine names it
	Digest string `json:"digest,omitempty"` // of its manifest in a registry; empty: it was loaded or built
	// Built stands for its layers and the moment of its build, however its engine numbers it; empty: not known.
	Built string `json:"built,omitempty"`
}

// Same reports whether two nodes have the same image. Engines number images in two ways, and
// one that came from a member has no digest in some: so one equal name is enough.
func (i ImageSeen) Same(j ImageSeen) bool {
	return i.ID == j.ID || i.Digest != "" && i.Digest == j.Digest || i.Built != "" && i.Built == j.Built
}

func (i ImageSeen) String() string {
	text := i.ID
	if i.Digest != "" {
		text = i.Digest
	}
	text = strings.TrimPrefix(text, "sha256:")
	return text[:min(len(text), 12)]
}

// UnlikeImages says which hosts have which image under a name, if they do not all have the
// same one; empty: they have, or one of them has not said (nil). A tag may be moved on one
// machine and not on another, and the failures of ranks of two versions do not point to the
// image.
func UnlikeImages(name string, hosts []string, seen []*ImageSeen) string {
	var groups []ImageSeen
	having := map[int][]string{}
	for i, im := range seen {
		if im == nil {
			return ""
		}
		at := slices.IndexFunc(groups, im.Same)
		if at < 0 {
			at, groups = len(groups), append(groups, *im)
		}
		having[at] = append(having[at], hosts[i])
	}
	if len(groups) < 2 {
		return ""
	}
	var parts []string
	for i, im := range groups {
		verb := "has"
		if len(having[i]) > 1 {
			verb = "have"
		}
		parts = append(parts, fmt.Sprintf("%s %s %s", strings.Join(having[i], ", "), verb, im))
	}
	return fmt.Sprintf("the machines have different images under the name %s: %s: bring the same one to all "+
		"(--pull always), or name it by its digest", name, strings.Join(parts, "; "))
}
