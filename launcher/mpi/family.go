package mpi

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// maxLibraries bounds how many libraries of a program are looked at.
const maxLibraries = 512

// Linked says what a program is linked to.
type Linked struct {
	Family  launcher.MPIFamily // empty: to no MPI library that is known
	Library string             // by which that is known, as the program names it
	Folder  string             // where that library lies, among those that were looked in; empty: elsewhere
	// Why, where the family is not known: "a script", "linked to no MPI library".
	Why string
}

// FamilyOf finds out which family of MPI a program is linked to, by itself or through
// the libraries that it names (DT_NEEDED), which are looked for as ld.so(8) does:
// DT_RPATH, LD_LIBRARY_PATH (libraryPath), DT_RUNPATH, the system's folders. The
// linker's cache is not read: all that lies in a folder that only ld.so.conf names
// goes unseen, unless the program names it itself. An error says that the file could
// not be read.
func FamilyOf(program, libraryPath string) (Linked, error) {
	f, err := os.Open(program)
	if err != nil {
		return Linked{}, err
	}
	defer f.Close()
	var magic [4]byte
	switch _, err := io.ReadFull(f, magic[:]); {
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return Linked{}, err
	case string(magic[:2]) == "#!":
		return Linked{Why: "a script"}, nil
	case string(magic[:]) != elf.ELFMAG:
		return Linked{Why: "no ELF program"}, nil
	}
	w := walk{libraryPath: filepath.SplitList(libraryPath), seen: map[string]bool{}}
	if err := w.visit(program, nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Linked{}, fmt.Errorf("read %s: %w", program, err)
	}
	if w.found.Family == "" {
		w.found.Why = "linked to no MPI library"
		if slices.ContainsFunc(w.interpreters, func(lib string) bool { return strings.HasPrefix(lib, "libpython") }) || strings.HasPrefix(filepath.Base(program), "python") {
			w.found.Why = "an interpreter, whose script decides"
		}
	}
	return w.found, nil
}

// byName tells a family by the name of a library: MPICH's ABI initiative (2014) has
// MPICH, Intel MPI and MVAPICH all be libmpi.so.12, Debian's MPICH is libmpich.so.12;
// Open MPI has been libmpi.so.20 and libmpi.so.40 since 2.0. Other languages' libraries
// (libmpi_mpifh, libmpicxx, libmpifort) need one of these in turn.
func byName(lib string) launcher.MPIFamily {
	switch name, _, _ := strings.Cut(lib, ".so"); {
	case strings.HasPrefix(lib, "libmpi.so.12"), name == "libmpich", name == "libmpichf90", name == "libmpifort", strings.HasPrefix(lib, "libmpicxx.so.12"), strings.HasPrefix(lib, "libmpichcxx"):
		return launcher.MPICH
	case strings.HasPrefix(lib, "libmpi.so.20"), strings.HasPrefix(lib, "libmpi.so.40"), name == "libopen-rte", name == "libopen-pal",
		strings.HasPrefix(name, "libmpi_mpifh"), strings.HasPrefix(name, "libmpi_usempi"), strings.HasPrefix(lib, "libmpi_cxx.so"):
		return launcher.OpenMPI
	}
	return ""
}

type walk struct {
	libraryPath  []string
	seen         map[string]bool
	interpreters []string
	found        Linked
}

// visit looks at one file; rpath is what those before it on the way have.
func (w *walk) visit(path string, rpath []string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	libs, err := f.ImportedLibraries()
	own, _ := f.DynString(elf.DT_RPATH)
	runpath, _ := f.DynString(elf.DT_RUNPATH)
	machine := f.Machine
	f.Close()
	if err != nil {
		return nil //nolint:nilerr // a static program names none
	}
	origin := filepath.Dir(path)
	if len(runpath) > 0 { // then DT_RPATH does not count
		own = nil
	}
	rpath = append(folders(own, origin), rpath...)
	search := slices.Concat(rpath, w.libraryPath, folders(runpath, origin), systemFolders(machine))
	for _, lib := range libs {
		if family := byName(lib); family != "" {
			w.found = Linked{Family: family, Library: lib, Folder: holder(search, lib)}
			return nil
		}
	}
	for _, lib := range libs {
		if strings.HasPrefix(lib, "libpython") {
			w.interpreters = append(w.interpreters, lib)
		}
		if w.seen[lib] || len(w.seen) >= maxLibraries || notMPI(lib) {
			continue
		}
		w.seen[lib] = true
		for _, dir := range search {
			err := w.visit(filepath.Join(dir, lib), rpath)
			if w.found.Family != "" {
				return nil
			}
			if err == nil {
				break
			}
		}
	}
	return nil
}

func holder(dirs []string, lib string) string {
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, lib)); err == nil {
			return dir
		}
	}
	return ""
}

// notMPI are libraries that every program has, and that are big.
func notMPI(lib string) bool {
	for _, p := range []string{"libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "libgcc_s.so", "libstdc++.so", "ld-linux"} {
		if strings.HasPrefix(lib, p) {
			return true
		}
	}
	return false
}

func folders(paths []string, origin string) []string {
	var out []string
	for _, list := range paths {
		for _, dir := range filepath.SplitList(list) {
			out = append(out, strings.NewReplacer("$ORIGIN", origin, "${ORIGIN}", origin).Replace(dir))
		}
	}
	return out
}

func systemFolders(m elf.Machine) []string {
	dirs := []string{"/lib", "/usr/lib", "/usr/local/lib", "/lib64", "/usr/lib64"}
	switch m {
	case elf.EM_X86_64:
		return append([]string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"}, dirs...)
	case elf.EM_AARCH64:
		return append([]string{"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"}, dirs...)
	}
	return dirs
}
