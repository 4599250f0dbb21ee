package cluster

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/app"
	"github.com/sparkrun/sparkrun/launcher/bootstrap"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// binaries finds the program for a host: in a release folder where one is given,
// otherwise this very program. Each file is read once.
func binaries(a *app.App, release string) func(machine string) (bootstrap.Binary, error) {
	arm := sync.OnceValues(func() (bootstrap.Binary, error) { return binaryFor(a, release, "arm64", elf.EM_AARCH64) })
	amd := sync.OnceValues(func() (bootstrap.Binary, error) { return binaryFor(a, release, "amd64", elf.EM_X86_64) })
	return func(machine string) (bootstrap.Binary, error) {
		switch machine {
		case "aarch64":
			return arm()
		case "x86_64":
			return amd()
		}
		return bootstrap.Binary{}, fmt.Errorf("its machine is %s: there is a sparkrun for aarch64 and "+
			"x86_64 only", machine)
	}
}

func binaryFor(a *app.App, release, arch string, machine elf.Machine) (bootstrap.Binary, error) {
	var none bootstrap.Binary
	if release == "" {
		if runtime.GOARCH != arch {
			return none, fmt.Errorf("its architecture is %s, this program's is %s: --release names a folder with "+
				"sparkrun-linux-%s", arch, runtime.GOARCH, arch)
		}
		self, err := os.Executable()
		if err != nil {
			return none, fmt.Errorf("find this program: %w", err)
		}
		b, err := measure(self, machine)
		b.Release = &bootstrap.Release{Version: a.Version, Protocol: rendezvous.Protocol}
		return b, err
	}
	for _, name := range []string{"sparkrun-linux-" + arch, "sparkrun-" + arch} {
		b, err := measure(filepath.Join(release, name), machine)
		if !errors.Is(err, fs.ErrNotExist) {
			return b, err
		}
	}
	return none, fmt.Errorf("its architecture is %s, and there is no sparkrun-linux-%s in %s", arch, arch, release)
}

func measure(path string, machine elf.Machine) (bootstrap.Binary, error) {
	b := bootstrap.Binary{Path: path}
	f, err := os.Open(path)
	if err != nil {
		return b, err
	}
	defer f.Close()
	program, err := elf.NewFile(f)
	if err != nil {
		return b, fmt.Errorf("%s is no program: %w", path, err)
	}
	if program.Machine != machine {
		return b, fmt.Errorf("%s is a program for %s, want %s", path, program.Machine, machine)
	}
	sum := sha256.New()
	if b.Size, err = io.Copy(sum, f); err != nil {
		return b, fmt.Errorf("read %s: %w", path, err)
	}
	b.SHA = hex.EncodeToString(sum.Sum(nil))
	return b, nil
}
