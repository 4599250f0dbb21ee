package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config says where the facts come from. The zero value reads the machine it runs on.
type Config struct {
	// Root is the folder below which /proc, /etc and the rest are; empty means /.
	Root string
	// Sysfs is the root of the sysfs tree; empty means Root/sys.
	Sysfs string
	// Run runs a program, which must only read, and gives its standard output; nil means really, with a fixed
	// environment.
	Run func(ctx context.Context, name string, args ...string) ([]byte, error)
	// Patience bounds one program; Docker's engine gets three times as much. 0 means 2 s.
	Patience time.Duration
	// Ports are those the agent listens on, which a firewall must let in.
	Ports []int
	// Disks are the folders to measure, by purpose: state, output, tmp.
	Disks map[string]string
	// Models is the machine's own cache of models; empty: none.
	Models string
	// Self is the agent's own program; empty means /proc/self/exe.
	Self string
	// Synchronised asks the kernel whether the clock is synchronised; nil means
	// adjtimex.
	Synchronised func() (bool, error)
	// Now is the machine's clock; nil means time.Now.
	Now func() time.Time
}

// Ask says for whom a node is examined.
type Ask struct {
	// User is a login whose home is read; empty: none.
	User string `json:"user,omitempty"`
	// Path is the user's PATH; empty means the system's.
	Path string `json:"path,omitempty"`
	// ConfFile is the user's NCCL_CONF_FILE.
	ConfFile string `json:"conf_file,omitempty"`
}

// Reader reads one node. It keeps no state between reads and may be used by several goroutines.
type Reader struct{ cfg Config }

// New fills the configuration's defaults.
func New(cfg Config) *Reader {
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	if cfg.Sysfs == "" {
		cfg.Sysfs = filepath.Join(cfg.Root, "sys")
	}
	if cfg.Run == nil {
		cfg.Run = run
	}
	if cfg.Patience == 0 {
		cfg.Patience = 2 * time.Second
	}
	if cfg.Self == "" {
		cfg.Self = "/proc/self/exe"
	}
	if cfg.Synchronised == nil {
		cfg.Synchronised = synchronised
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Reader{cfg}
}

// Read gives what can be read; Facts.Trouble lists the rest. It takes as long as its slowest program, at most two
// of them in sequence.
func (r *Reader) Read(ctx context.Context, ask Ask) Facts {
	f := Facts{User: ask.User, Kernel: strings.TrimSpace(r.text("/proc/sys/kernel/osrelease"))}
	docker, firewall := make(chan Docker, 1), make(chan *Firewall, 1)
	go func() { docker <- r.docker(ctx) }()
	go func() { firewall <- r.firewall(ctx) }()
	off := make(chan *WentOff, 1)
	go func() { off <- r.wentOff(ctx) }()

	f.OS = parseAssignments(r.text("/etc/os-release"))["PRETTY_NAME"]
	f.DGX = dgxRelease(parseAssignments(r.text("/etc/dgx-release")))
	if devices, err := os.ReadDir(filepath.Join(r.cfg.Sysfs, "class/infiniband")); err == nil {
		f.RDMA = len(devices)
	}
	home := r.home(ask.User)
	f.Limits = r.limits()
	f.NCCLConf = r.confs(home, ask.ConfFile)
	f.Driver = strings.TrimSpace(r.text("/sys/module/nvidia/version"))
	if v := parseDriver(r.text("/proc/driver/nvidia/version")); v != "" {
		f.Driver = v // the running driver, whatever is installed on the disk
	}
	f.Packages = r.packages(home)
	if ok, err := r.cfg.Synchronised(); err == nil {
		f.Clock.Synchronised = &ok
	}
	f.trouble(r.disks(&f))
	var err error
	if f.Memory, err = parseMemory(r.text("/proc/meminfo"), r.text("/proc/buddyinfo")); err != nil {
		f.trouble(err)
	}
	f.Programs = r.programs(ask.Path, home)
	f.Volumes = r.volumes()
	r.models(ctx, ask.User, home, &f)
	r.logind(&f)
	f.PeerMem = r.peerMem()
	f.Heat = r.heat()
	f.Docker, f.Firewall, f.WentOff = <-docker, <-firewall, <-off
	return f
}

func (f *Facts) trouble(err error) {
	if err != nil {
		f.Trouble = append(f.Trouble, err.Error())
	}
}

// maxFile bounds what is read of one file, in bytes: a fifo or a block device in its place must not fill the
// memory.
const maxFile = 1 << 20

// at is a path of the node below Root.
func (r *Reader) at(path string) string { return filepath.Join(r.cfg.Root, path) }

// text reads a regular file, or nothing. A fifo in its place does not block.
func (r *Reader) text(path string) string {
	f, err := os.OpenFile(r.at(path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return ""
	}
	return string(b)
}

// glob gives the node's paths that match, sorted.
func (r *Reader) glob(pattern string) []string {
	found, _ := filepath.Glob(r.at(pattern)) // fails only on a bad pattern, and these are ours
	for i, p := range found {
		rel, _ := filepath.Rel(r.cfg.Root, p)
		found[i] = "/" + rel
	}
	return found
}

func (r *Reader) exists(path string) bool {
	_, err := os.Stat(r.at(path))
	return err == nil
}

// home is a login's home folder; empty where the node's /etc/passwd has none.
func (r *Reader) home(user string) string {
	for l := range strings.Lines(r.text("/etc/passwd")) {
		if f := strings.Split(strings.TrimSpace(l), ":"); len(f) == 7 && user != "" && f[0] == user {
			return f[5]
		}
	}
	return ""
}

func dgxRelease(values map[string]string) string {
	name := strings.TrimSpace(values["DGX_PRETTY_NAME"])
	version := values["DGX_OTA_VERSION"]
	if version == "" {
		version = values["DGX_SWBUILD_VERSION"]
	}
	return strings.TrimSpace(name + " " + version)
}

// unitFiles are where systemd looks for the agent's unit, in its order, and the drop-ins over it.
var unitFiles = []string{
	"/lib/systemd/system/sparkrun.service", "/usr/lib/systemd/system/sparkrun.service",
	"/etc/systemd/system/sparkrun.service",
	"/lib/systemd/system/sparkrun.service.d/*.conf", "/usr/lib/systemd/system/sparkrun.service.d/*.conf",
	"/etc/systemd/system/sparkrun.service.d/*.conf",
}

func (r *Reader) limits() Limits {
	var l Limits
	l.Memlock, l.Files = parseLimits(r.text("/proc/self/limits"))
	for _, pattern := range unitFiles {
		for _, path := range r.glob(pattern) {
			if v, ok := parseUnit(r.text(path), "Service", "LimitMEMLOCK"); ok {
				l.Unit = v
			}
		}
	}
	for _, path := range append([]string{"/etc/security/limits.conf"}, r.glob("/etc/security/limits.d/*.conf")...) {
		for _, line := range numbered(r.text(path)) {
			if f := strings.Fields(line.text); len(f) == 4 && f[2] == "memlock" {
				l.PAM = append(l.PAM, fmt.Sprintf("%s:%d %s", path, line.number, strings.Join(f, " ")))
			}
		}
	}
	return l
}

// confs reads the files that NCCL reads besides the environment, each once.
func (r *Reader) confs(home, named string) []Conf {
	paths := []string{"/etc/nccl.conf"}
	if home != "" {
		paths = append(paths, filepath.Join(home, ".nccl.conf"))
	}
	if system := parseAssignments(r.text("/etc/environment"))["NCCL_CONF_FILE"]; system != "" {
		paths = append(paths, system)
	}
	if named != "" {
		paths = append(paths, named)
	}
	var out []Conf
	for i, path := range paths {
		if slices.Contains(paths[:i], path) || !filepath.IsAbs(path) {
			continue
		}
		if settings := parseConf(r.text(path)); len(settings) > 0 {
			out = append(out, Conf{Path: path, Settings: settings})
		}
	}
	return out
}

// packages finds libraries by the names of their files: there may be many Pythons, and running each would take
// seconds.
func (r *Reader) packages(home string) []Package {
	var out []Package
	add := func(p Package) {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	for _, pattern := range []string{"/usr/lib/*/libnccl.so.*", "/usr/lib64/libnccl.so.*",
		"/usr/local/lib/libnccl.so.*", "/usr/local/cuda*/lib64/libnccl.so.*",
		"/usr/local/nccl*/lib/libnccl.so.*"} {
		for _, path := range r.glob(pattern) {
			if v, ok := parseLibrary(filepath.Base(path)); ok {
				add(Package{Name: "nccl", Version: v, Where: filepath.Dir(path)})
			}
		}
	}
	folders := []string{"/usr/lib/python3*/dist-packages", "/usr/local/lib/python3*/dist-packages",
		"/usr/local/lib/python3*/site-packages",
		"/opt/*/lib/python3*/site-packages"}
	if home != "" {
		folders = append(folders, filepath.Join(home, ".local/lib/python3*/site-packages"),
			filepath.Join(home, "*/lib/python3*/site-packages"), filepath.Join(home, ".venv/lib/python3*/site-packages"),
			filepath.Join(home, "*/.venv/lib/python3*/site-packages"))
	}
	for _, pattern := range folders {
		for _, path := range append(r.glob(pattern+"/*.dist-info"), r.glob(pattern+"/*.egg-info")...) {
			if name, version, ok := parsePackage(filepath.Base(path)); ok {
				add(Package{Name: name, Version: version, Where: filepath.Dir(path)})
			}
		}
	}
	return out
}

// disks measures the folders, or their nearest existing parent.
func (r *Reader) disks(f *Facts) error {
	var all error
	for _, what := range slices.Sorted(maps.Keys(r.cfg.Disks)) {
		path := r.at(r.cfg.Disks[what])
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		for errors.Is(err, fs.ErrNotExist) && path != filepath.Dir(path) {
			path = filepath.Dir(path)
			err = unix.Statfs(path, &st)
		}
		if err != nil {
			all = errors.Join(all, fmt.Errorf("measure %s (%s): %w", r.cfg.Disks[what], what, err))
			continue
		}
		f.Disks = append(f.Disks,
			Disk{What: what, Path: r.cfg.Disks[what], Free: st.Bavail * uint64(st.Bsize), Total: st.Blocks * uint64(st.Bsize)})
	}
	return all
}

// systemPath is what a login's PATH usually begins with; a user's own tools come before it.
const systemPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// programs lists every sparkrun in the user's PATH, in its order, and where pipx and uv install one.
func (r *Reader) programs(path, home string) []Program {
	if path == "" {
		path = systemPath
	}
	folders := filepath.SplitList(path)
	if home != "" {
		folders = append(folders, filepath.Join(home, ".local/bin"))
	}
	self, selfErr := os.Stat(r.cfg.Self)
	var out []Program
	var seen []fs.FileInfo
	for _, folder := range folders {
		if !filepath.IsAbs(folder) {
			continue
		}
		place := filepath.Join(folder, "sparkrun")
		info, err := os.Stat(r.at(place))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&0o111 == 0 ||
			slices.ContainsFunc(seen, func(o fs.FileInfo) bool { return os.SameFile(o, info) }) {
			continue
		}
		seen = append(seen, info)
		first, _, _ := strings.Cut(head(r.at(place)), "\n")
		out = append(out, Program{Path: place, Ours: selfErr == nil && os.SameFile(self, info),
			Python: strings.HasPrefix(first, "#!") && strings.Contains(first, "python")})
	}
	return out
}

// head is the beginning of a file that may be large.
func head(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	b := make([]byte, 256)
	n, _ := io.ReadFull(f, b)
	return string(b[:n])
}

// logind reads what happens to shared memory at logout. RemoveIPC is on unless a file says no.
func (r *Reader) logind(f *Facts) {
	if !r.exists("/run/systemd/seats") {
		return // no logind runs
	}
	removes := true
	for _, path := range append([]string{"/etc/systemd/logind.conf"},
		append(r.glob("/usr/lib/systemd/logind.conf.d/*.conf"), r.glob("/etc/systemd/logind.conf.d/*.conf")...)...) {
		if v, ok := parseUnit(r.text(path), "Login", "RemoveIPC"); ok {
			removes = !slices.Contains([]string{"no", "false", "off", "0"}, strings.ToLower(v))
		}
	}
	lingers := f.User != "" && r.exists(filepath.Join("/var/lib/systemd/linger", filepath.Base(f.User)))
	f.RemoveIPC, f.Lingers = &removes, &lingers
}

// peerMem finds what loads nvidia-peermem at boot. Module names are written with - or
// _.
func (r *Reader) peerMem() []string {
	var out []string
	for _, path := range append([]string{"/etc/modules"},
		append(r.glob("/etc/modules-load.d/*.conf"), r.glob("/usr/lib/modules-load.d/*.conf")...)...) {
		for _, l := range numbered(r.text(path)) {
			if strings.ReplaceAll(l.text, "-", "_") == "nvidia_peermem" {
				out = append(out, fmt.Sprintf("%s:%d", path, l.number))
			}
		}
	}
	return out
}
