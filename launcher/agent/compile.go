package agent

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/container"
	"github.com/sparkrun/sparkrun/launcher/login"
)

// insideCompiled is where containers see their job's folder of compiled code.
const insideCompiled = "/run/sparkrun-compiled"

// onHost is in an image's place for ranks on the host: what compiles there tells its own releases apart.
const onHost = "host"

// keepCompiled is for how long compiled code is kept that no job uses. It goes earlier, the oldest first, as long as
// less than compiledRoom bytes of the disk are free; of a small one a twentieth.
const (
	keepCompiled = 30 * 24 * time.Hour
	compiledRoom = 10 << 30
)

// compiled is the folder of all that ranks of a job's user have compiled for its model, with a folder in it for each
// image: CompileDir/USER/MODEL/IMAGE. Whose ranks load code from there run as the user who wrote it.
func (a *Agent) compiled(s launcher.Spec) string {
	model := ""
	if s.Service != nil {
		model = s.Service.Model
	}
	return filepath.Join(a.cfg.CompileDir, folderName(s.User), folderName(model))
}

// folderName is a readable name of a folder that no other text has.
func folderName(text string) string {
	safe := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' {
			return r
		}
		return '-'
	}, text)
	sum := sha256.Sum256([]byte(text))
	return fmt.Sprintf("%s-%x", safe[:min(len(safe), 64)], sum[:4])
}

// compiledOf is the folder of an attempt.
func (a *Agent) compiledOf(s launcher.Spec, c *container.Prepared) string {
	if c == nil {
		return filepath.Join(a.compiled(s), onHost)
	}
	return filepath.Join(a.compiled(s), shortID(c.Image.ID))
}

// shortID is an image's ID as docker shows it.
func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(len(id), 12)]
}

// seesCompiled is where the ranks of a job see the folder; empty: they compile nothing.
func (a *Agent) seesCompiled(s launcher.Spec) (string, error) {
	switch {
	case !s.Compiles():
		return "", nil
	case a.cfg.CompileDir == "":
		return "", errors.New("this node has no folder for compiled code")
	case s.MainStage().Container != nil:
		return insideCompiled, nil
	}
	return a.compiledOf(s, nil), nil
}

// mountCompiled is the folder as a mount of the containers of an image.
func (a *Agent) mountCompiled(s launcher.Spec) func(image string) []container.Mount {
	if !s.Compiles() {
		return nil
	}
	return func(image string) []container.Mount {
		return []container.Mount{{Source: filepath.Join(a.compiled(s), shortID(image)), Target: insideCompiled}}
	}
}

// makeCompiled makes the folder of an attempt. The folders around it are the agent's alone, so that no user can put a
// link, or a folder of his, in another one's place.
func (a *Agent) makeCompiled(s launcher.Spec, c *container.Prepared, who login.User) error {
	if !s.Compiles() {
		return nil
	}
	dir := a.compiledOf(s, c)
	a.compiling.Lock() // nothing is removed meanwhile
	defer a.compiling.Unlock()
	err := os.MkdirAll(filepath.Dir(dir), 0o711)
	if err == nil {
		err = makeAlone(dir, who)
	}
	if err != nil {
		return fmt.Errorf("make folder for compiled code: %w", err)
	}
	return nil
}

// usedCompiled notes at an attempt's end that its folder was used until now.
func (a *Agent) usedCompiled(s launcher.Spec, c *container.Prepared) {
	if s.Compiles() {
		_ = os.Chtimes(a.compiledOf(s, c), time.Time{}, time.Now())
	}
}

// pruneCompiled removes compiled code that no job uses, and that nobody has used for long, or has no room.
func (a *Agent) pruneCompiled(hasRoom func(dir string) bool) {
	type folder struct {
		dir  string
		last time.Time
	}
	var all []folder
	dirs, _ := filepath.Glob(filepath.Join(a.cfg.CompileDir, "*", "*", "*"))
	for _, dir := range dirs {
		if fi, err := os.Lstat(dir); err == nil {
			all = append(all, folder{dir, fi.ModTime()})
		}
	}
	slices.SortFunc(all, func(x, y folder) int { return x.last.Compare(y.last) })
	for _, f := range all {
		if time.Since(f.last) < keepCompiled && hasRoom(a.cfg.CompileDir) {
			return // so have all that follow
		}
		a.removeCompiled(f.dir)
	}
}

func (a *Agent) removeCompiled(dir string) {
	a.compiling.Lock()
	defer a.compiling.Unlock()
	if a.usesCompiled(filepath.Dir(dir)) {
		return
	}
	if err := removeTree(dir); err != nil {
		a.cfg.Logger.Warn("remove old compiled code", "dir", dir, "error", err)
		return
	}
	for range 2 { // the folders above it, once they are empty
		dir = filepath.Dir(dir)
		_ = os.Remove(dir)
	}
}

// usesCompiled reports whether an attempt here has a folder of a user and model.
func (a *Agent) usesCompiled(dir string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.attempts {
		if as := t.assignment; as != nil && as.Spec.Compiles() && a.compiled(as.Spec) == dir {
			return true
		}
	}
	return false
}

func hasRoom(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) != nil ||
		int64(st.Bavail)*st.Bsize >= min(compiledRoom, int64(st.Blocks)*st.Bsize/20)
}
