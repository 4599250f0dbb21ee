package mpi

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

// maxLibraries bounds how many libraries of a program are read.
const maxLibraries = 512

// Linked is what a program is linked with.
type Linked struct {
	Family  launcher.MPIFamily // by what starts its ranks (wantsPMIx); empty: no known MPI library
	Library string             // that shows it, as the program names it
	Folder  string             // where that library is, among the searched folders; empty: elsewhere
	// Why says why the family is not known: "a script", "linked to no MPI library".
	Why string
}

// FamilyOf finds out which family of MPI a program is linked with, by itself or through the
// libraries that it names (DT_NEEDED), which are searched as ld.so(8) does: DT_RPATH,
// LD_LIBRARY_PATH (libraryPath), DT_RUNPATH, the system's folders. The linker's cache is
// not read: libraries in folders that only ld.so.conf names are not found, unless the
// program names them itself. An error says that the file could not be read.
func FamilyOf(program, libraryPath string) (Linked, error) {
	return familyOf(program, walk{libraryPath: filepath.SplitList(libraryPath), seen: map[string]bool{}})
}

// FamilyNamed is FamilyOf by the program's own DT_NEEDED alone, for a program that runs in
// an image: the libraries of this machine are not its own.
func FamilyNamed(program string) (Linked, error) { return familyOf(program, walk{alone: true}) }

func familyOf(program string, w walk) (Linked, error) {
	f, err := openFile(program)
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
	if err := w.visit(program, nil); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Linked{}, fmt.Errorf("read %s: %w", program, err)
	}
	if w.found.Family == "" {
		w.found.Why = "linked to no MPI library"
		if slices.ContainsFunc(w.interpreters, func(lib string) bool { return strings.HasPrefix(lib, "libpython") }) ||
			strings.HasPrefix(filepath.Base(program), "python") {
			w.found.Why = "an interpreter, whose script decides"
		}
	}
	return w.found, nil
}

// byName gives the family of a library's name. By MPICH's ABI initiative (2014) MPICH,
// Intel MPI and MVAPICH are all libmpi.so.12; Debian's MPICH is libmpich.so.12; Open MPI is
// libmpi.so.20 or libmpi.so.40 since 2.0. Other languages' libraries (libmpi_mpifh,
// libmpicxx, libmpifort) need one of these in turn.
func byName(lib string) launcher.MPIFamily {
	switch name, _, _ := strings.Cut(lib, ".so"); {
	case strings.HasPrefix(lib, "libmpi.so.12"), name == "libmpich", name == "libmpichf90", name == "libmpifort",
		strings.HasPrefix(lib, "libmpicxx.so.12"), strings.HasPrefix(lib, "libmpichcxx"):
		return launcher.MPICH
	case strings.HasPrefix(lib, "libmpi.so.20"), strings.HasPrefix(lib, "libmpi.so.40"), name == "libopen-rte",
		name == "libopen-pal",
		strings.HasPrefix(name, "libmpi_mpifh"), strings.HasPrefix(name, "libmpi_usempi"),
		strings.HasPrefix(lib, "libmpi_cxx.so"):
		return launcher.OpenMPI
	}
	return ""
}

// Libraries are the names that show in a loader's cache that there is an MPI.
func Libraries() []Linked {
	return []Linked{
		{Family: launcher.MPICH, Library: "libmpi.so.12"}, {Family: launcher.MPICH, Library: "libmpich.so.12"},
		{Family: launcher.OpenMPI, Library: "libmpi.so.40"}, {Family: launcher.OpenMPI, Library: "libmpi.so.20"},
	}
}

type walk struct {
	alone        bool // libraries are not searched
	libraryPath  []string
	seen         map[string]bool
	interpreters []string
	found        Linked
}

// visit reads one file; rpath is that of the files before it on the path.
func (w *walk) visit(path string, rpath []string) error {
	libs, own, runpath, machine, err := dynamic(path)
	if err != nil {
		return err
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
			if family == launcher.MPICH && !w.alone && w.wantsPMIx(lib, search) {
				w.found.Family, w.found.Library = launcher.OpenMPI, lib+" (built for PMIx alone)"
			}
			return nil
		}
	}
	for _, lib := range libs {
		if strings.HasPrefix(lib, "libpython") {
			w.interpreters = append(w.interpreters, lib)
		}
		if w.alone || w.seen[lib] || len(w.seen) >= maxLibraries || notMPI(lib) {
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

// Bounds of what is read of one file. A user may have made it to be read without end:
// package debug/elf promises nothing about such files.
const (
	maxSegments = 1024
	maxDynamic  = 64 << 10 // entries
	maxNames    = 8 << 20  // bytes; the largest libraries have some hundred KB
)

var errForged = fmt.Errorf("%w: its tables are those of no program", fs.ErrInvalid)

// dynamic reads what a program or library asks of the loader (elf(5): PT_DYNAMIC). A static
// one asks for nothing.
func dynamic(path string) (libs, rpath, runpath []string, machine elf.Machine, err error) {
	f, err := openFile(path)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	defer f.Close()
	read := func(at uint64, size int, into any) error {
		return binary.Read(io.NewSectionReader(f, int64(at), int64(size)), binary.LittleEndian, into)
	}
	var h elf.Header64
	if err := read(0, binary.Size(h), &h); err != nil {
		return nil, nil, nil, 0, err
	}
	if string(h.Ident[:4]) != elf.ELFMAG || elf.Class(h.Ident[elf.EI_CLASS]) != elf.ELFCLASS64 ||
		elf.Data(h.Ident[elf.EI_DATA]) != elf.ELFDATA2LSB {
		return nil, nil, nil, 0, fmt.Errorf("%w: no 64-bit ELF file", fs.ErrInvalid)
	}
	machine = elf.Machine(h.Machine)
	progs := make([]elf.Prog64, h.Phnum)
	if len(progs) > maxSegments || int(h.Phentsize) != binary.Size(elf.Prog64{}) {
		return nil, nil, nil, 0, errForged
	}
	if err := read(h.Phoff, binary.Size(progs), progs); err != nil {
		return nil, nil, nil, 0, err
	}
	at := slices.IndexFunc(progs, func(p elf.Prog64) bool { return elf.ProgType(p.Type) == elf.PT_DYNAMIC })
	if at < 0 {
		return nil, nil, nil, machine, nil
	}
	entries := progs[at].Filesz / uint64(binary.Size(elf.Dyn64{}))
	if entries > maxDynamic {
		return nil, nil, nil, 0, errForged
	}
	dyn := make([]elf.Dyn64, entries)
	if err := read(progs[at].Off, binary.Size(dyn), dyn); err != nil {
		return nil, nil, nil, 0, err
	}
	values := map[elf.DynTag][]uint64{elf.DT_STRTAB: nil, elf.DT_STRSZ: nil, elf.DT_NEEDED: nil, elf.DT_RPATH: nil,
		elf.DT_RUNPATH: nil}
	for _, d := range dyn {
		tag := elf.DynTag(d.Tag)
		if tag == elf.DT_NULL {
			break
		}
		if _, wanted := values[tag]; wanted {
			values[tag] = append(values[tag], d.Val)
		}
	}
	names, err := nameTable(f, progs, values)
	if err != nil {
		return nil, nil, nil, 0, err
	}
	of := func(tag elf.DynTag) (out []string) {
		for _, at := range values[tag] {
			if at < uint64(len(names)) {
				name, _, _ := bytes.Cut(names[at:], []byte{0})
				out = append(out, string(name))
			}
		}
		return out
	}
	return of(elf.DT_NEEDED), of(elf.DT_RPATH), of(elf.DT_RUNPATH), machine, nil
}

// openFile opens a regular file, and nothing that could block: a pipe, a device.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(err, fmt.Errorf("%s: %w: no regular file", path, fs.ErrInvalid))
	}
	return f, nil
}

// nameTable reads the table at the address of DT_STRTAB.
func nameTable(f *os.File, progs []elf.Prog64, values map[elf.DynTag][]uint64) ([]byte, error) {
	tab, size := values[elf.DT_STRTAB], values[elf.DT_STRSZ]
	if len(tab) != 1 || len(size) != 1 || size[0] > maxNames {
		return nil, errForged
	}
	for _, p := range progs {
		if elf.ProgType(p.Type) == elf.PT_LOAD && p.Vaddr <= tab[0] && tab[0]-p.Vaddr < p.Filesz {
			names := make([]byte, size[0])
			_, err := f.ReadAt(names, int64(p.Off+tab[0]-p.Vaddr))
			return names, err
		}
	}
	return nil, errForged
}

// wantsPMIx reports whether an MPICH, by this library of its or by one that this needs,
// asks a PMIx server for its ranks, and nothing else. Under any other process manager each
// of its ranks is 0 of 1, without a message. Ubuntu 24.04's is so (4.2.0-5build3,
// configured --with-pmix: launchpad.net/bugs/2072338,
// github.com/pmodels/mpich/issues/7064); Debian's 4.0.2 and 4.2.1 are not, nor are the
// wheels of PyPI. Its own mpiexec (Hydra) does not serve it either. Open MPI's mpirun does:
// each of its daemons is a PMIx server.
func (w *walk) wantsPMIx(lib string, search []string) bool {
	dir := holder(search, lib)
	path := filepath.Join(dir, lib)
	if dir == "" || w.seen[path] {
		return false
	}
	w.seen[path] = true
	libs, _, _, _, err := dynamic(path)
	if err != nil {
		return false
	}
	for _, needed := range libs {
		switch {
		case strings.HasPrefix(needed, "libpmix.so"):
			return !mentions(path, "PMI_FD")
		case byName(needed) == launcher.MPICH: // libmpifort, libmpichcxx
			return w.wantsPMIx(needed, search)
		}
	}
	return false
}

// maxLibrary bounds what is read of a library; Ubuntu's libmpich has 41 MB.
const maxLibrary = 256 << 20

// mentions reports whether a file contains a name, as it does if it calls getenv(3) with
// it.
func mentions(path, name string) bool {
	f, err := openFile(path)
	if err != nil {
		return false
	}
	defer f.Close()
	in := bufio.NewReaderSize(io.LimitReader(f, maxLibrary), 64<<10)
	for {
		block, err := in.Peek(in.Size())
		if bytes.Contains(block, []byte(name)) {
			return true
		}
		if err != nil {
			return false
		}
		_, _ = in.Discard(len(block) - len(name)) // it was just peeked at
	}
}

func holder(dirs []string, lib string) string {
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, lib)); err == nil {
			return dir
		}
	}
	return ""
}

// notMPI are large libraries that every program has.
func notMPI(lib string) bool {
	for _, p := range []string{"libc.so", "libm.so", "libpthread.so", "libdl.so", "librt.so", "libgcc_s.so",
		"libstdc++.so", "ld-linux"} {
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
