package mpi

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sparkrun/sparkrun/launcher"
)

func TestOptionsTravel(t *testing.T) {
	for _, o := range []Options{
		{PerNode: 2, BindTo: "none", Stdin: "0", Argv: []string{"./ring", "--", "-x", "a b"}},
		{PerNode: 1, BindTo: "core", Stdin: "all", Mpirun: "/opt/mpi/bin/mpirun", Argv: []string{"-odd"}},
		{PerNode: 1, BindTo: "none", Stdin: "none", Argv: []string{"launch", "serve", "-task", "9"}, Task: 1},
	} {
		args := o.Args()
		got, err := parseOptions(args[1:])
		must(t, err)
		if diff := cmp.Diff(o, got); diff != "" || args[0] != NodeCommand {
			t.Errorf("%v: %s", args, diff)
		}
	}
	for _, args := range [][]string{{"-nproc", "2"}, {"-task", "1", "--", "launch"}} {
		if _, err := parseOptions(args); err == nil {
			t.Errorf("%v: no program is taken", args)
		}
	}
}

func TestInterfaces(t *testing.T) {
	at := func(name, network string) place { return place{If: map[string]string{"V": name}, Network: network} }
	for name, c := range map[string]struct {
		places []place
		want   string
		ok     bool
	}{
		"all alike":       {[]place{at("enp1s0f0np0", "10.0.0.0/24"), at("enp1s0f0np0", "10.0.0.0/24")}, "enp1s0f0np0", true},
		"another port":    {[]place{at("enp1s0f0np0", "10.0.0.0/24"), at("enp1s0f1np1", "10.0.0.0/24")}, "10.0.0.0/24", true},
		"two networks":    {[]place{at("a", "10.0.0.0/24"), at("b", "10.0.1.0/24")}, "10.0.0.0/24,10.0.1.0/24", true},
		"none":            {[]place{at("", ""), at("", "")}, "", false},
		"nothing is said": {[]place{at("a", ""), at("b", "")}, "", false},
	} {
		got, ok := interfaces(c.places, "V")
		if got != c.want || ok != c.ok {
			t.Errorf("%s: %q %v, want %q %v", name, got, ok, c.want, c.ok)
		}
	}
}

// What mpirun 4 and 5 are told; version 5 cannot run in these tests, its names are
// those of PRRTE 3's manual.
func TestMpirunIsTold(t *testing.T) {
	places := []place{{Addr: "10.0.0.1", If: map[string]string{"OMPI_MCA_oob_tcp_if_include": "a"},
		Network: "10.0.0.0/24"},
		{Addr: "10.0.0.2", If: map[string]string{"OMPI_MCA_oob_tcp_if_include": "b"}, Network: "10.0.0.0/24"}}
	args := strings.Join(mpirun{"mpirun", 4,
		true}.args(Options{PerNode: 2, BindTo: "none", Stdin: "0", Argv: []string{"./p", "-q"}}, places), " ")
	if want := "-np 4 --host 10.0.0.1:2,10.0.0.2:2 --map-by ppr:2:node --bind-to none --stdin 0 ./p -q"; args != want {
		t.Errorf("got  %s\nwant %s", args, want)
	}
	for major, want := range map[int][]string{
		4: {"OMPI_MCA_plm=rsh", "OMPI_MCA_oob_tcp_if_include=10.0.0.0/24", "OMPI_MCA_orte_leave_session_attached=1",
			"OMPI_MCA_mpi_yield_when_idle=1", "OMPI_MCA_btl_vader_single_copy_mechanism=none"},
		5: {"PRTE_MCA_plm=ssh", "PRTE_MCA_prte_if_include=10.0.0.0/24", "PRTE_MCA_prte_leave_session_attached=1",
			"OMPI_MCA_smsc=^cma"},
	} {
		env := mpirun{"mpirun", major, false}.env([]string{"HOME=/root", "OMPI_MCA_oob_tcp_if_include=a"}, places, "/s", true)
		all := "\n" + strings.Join(env, "\n") + "\n"
		for _, v := range append(want, "HOME=/root", remoteSocket+"=/s") {
			if !strings.Contains(all, "\n"+v+"\n") {
				t.Errorf("Open MPI %d lacks %s:%s", major, v, all)
			}
		}
		if strings.Contains(all, "if_include=a\n") {
			t.Errorf("Open MPI %d has one node's interface for all:%s", major, all)
		}
	}
}

func TestVersionLine(t *testing.T) {
	dir := t.TempDir()
	for text, major := range map[string]int{
		"mpirun.openmpi (OpenRTE) 4.1.4": 4, "mpirun (Open MPI) 4.1.6": 4, "mpirun (Open MPI) 5.0.3": 5,
		"HYDRA build details:": 0,
	} {
		path := filepath.Join(dir, "mpirun")
		must(t, os.WriteFile(path, []byte("#!/bin/sh\necho '"+text+"'\n"), 0o755))
		run, err := askVersion(path)
		if run.major != major || (err == nil) != (major > 0) {
			t.Errorf("%s: %d, %v", text, run.major, err)
		}
	}
}

func TestFamilyByName(t *testing.T) {
	for lib, want := range map[string]launcher.MPIFamily{
		"libmpi.so.40": launcher.OpenMPI, "libmpi.so.20": launcher.OpenMPI, "libmpi_mpifh.so.40": launcher.OpenMPI,
		"libmpi_cxx.so.40": launcher.OpenMPI,
		"libmpi.so.12":     launcher.MPICH, "libmpich.so.12": launcher.MPICH, "libmpifort.so.12": launcher.MPICH,
		"libmpicxx.so.12": launcher.MPICH,
		"libm.so.6":       "", "libmpfr.so.6": "",
	} {
		if got := byName(lib); got != want {
			t.Errorf("%s: %q, want %q", lib, got, want)
		}
	}
}

// An MPICH that knows no process manager but a PMIx server, as Ubuntu 24.04's, is started by Open MPI's
// mpirun: PMI-1 would have each of its ranks be 0 of 1.
func TestFamilyOfMPICHForPMIx(t *testing.T) {
	dir := t.TempDir()
	type needs map[string][]string // by library
	for name, tc := range map[string]struct {
		libraries needs
		text      string // in each
		want      launcher.MPIFamily
	}{
		"PMI-1": {needs{"libmpich.so.12": {"libucp.so.0"}}, "PMI_FD", launcher.MPICH},
		"PMIx alone": {
			needs{"libmpich.so.12": {"libucp.so.0", "libpmix.so.2"}}, "PMIX_RANK", launcher.OpenMPI,
		},
		"by Fortran's": {
			needs{"libmpifort.so.12": {"libmpi.so.12"}, "libmpi.so.12": {"libpmix.so.2"}}, "", launcher.OpenMPI,
		},
		"both":             {needs{"libmpich.so.12": {"libpmix.so.2"}}, "PMI_FD", launcher.MPICH},
		"it needs itself":  {needs{"libmpich.so.12": {"libmpich.so.12"}}, "", launcher.MPICH},
		"a library is out": {needs{"libmpifort.so.12": {"libmpi.so.12"}}, "", launcher.MPICH},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			must(t, os.Mkdir(dir, 0o755))
			first := ""
			for lib, needs := range tc.libraries {
				writeELF(t, filepath.Join(dir, lib), needs, tc.text)
				if first == "" || strings.HasPrefix(lib, "libmpifort") {
					first = lib
				}
			}
			program := filepath.Join(dir, "ring")
			writeELF(t, program, []string{"libc.so.6", first}, "")
			linked, err := FamilyOf(program, dir)
			if err != nil || linked.Family != tc.want || linked.Folder != dir || !strings.HasPrefix(linked.Library, first) {
				t.Errorf("%+v, %v; want %s", linked, err, tc.want)
			}
			if tc.want != launcher.OpenMPI {
				return
			}
			t.Setenv("PATH", dir)
			t.Setenv("LD_LIBRARY_PATH", dir)
			want := "which starts programs that are linked to " + first +
				" (built for PMIx alone): not in PATH on this node: install openmpi-bin"
			if _, err := findMpirun(Options{Argv: []string{program}}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("no mpirun: %v; want %q", err, want)
			}
		})
	}
}

// A name is found wherever it lies, across the blocks that are read, too.
func TestMentions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lib")
	for at := 64<<10 - 7; at <= 64<<10+1; at++ {
		must(t, os.WriteFile(path, []byte(strings.Repeat(".", at)+"PMI_FD"), 0o644))
		if !mentions(path, "PMI_FD") || mentions(path, "PMI_FDX") {
			t.Errorf("PMI_FD at %d is not found, or PMI_FDX is", at)
		}
	}
}

// writeELF writes a program, or a library, of nothing but the libraries that it needs and a text.
func writeELF(t *testing.T, path string, needs []string, text string) {
	t.Helper()
	names, dyn := []byte{0}, []elf.Dyn64{}
	for _, lib := range needs {
		dyn = append(dyn, elf.Dyn64{Tag: int64(elf.DT_NEEDED), Val: uint64(len(names))})
		names = append(append(names, lib...), 0)
	}
	h := elf.Header64{Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Phnum: 2}
	h.Ident = [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1}
	progs := make([]elf.Prog64, 2)
	h.Phoff, h.Phentsize = uint64(binary.Size(h)), uint16(binary.Size(progs[0]))
	at := h.Phoff + uint64(binary.Size(progs))
	table := at + uint64(len(dyn)+3)*uint64(binary.Size(elf.Dyn64{}))
	dyn = append(dyn, elf.Dyn64{Tag: int64(elf.DT_STRTAB), Val: table},
		elf.Dyn64{Tag: int64(elf.DT_STRSZ), Val: uint64(len(names))}, elf.Dyn64{})
	progs[0] = elf.Prog64{Type: uint32(elf.PT_LOAD), Filesz: table + uint64(len(names))}
	progs[1] = elf.Prog64{Type: uint32(elf.PT_DYNAMIC), Off: at, Filesz: table - at}
	var b bytes.Buffer
	for _, part := range []any{h, progs, dyn, names, []byte(text)} {
		must(t, binary.Write(&b, binary.LittleEndian, part))
	}
	must(t, os.WriteFile(path, b.Bytes(), 0o755))
}

func TestFamilyOfOthers(t *testing.T) {
	script := filepath.Join(t.TempDir(), "x.sh")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755))
	for path, why := range map[string]string{script: "a script", "/bin/true": "linked to no MPI library",
		"/etc/hosts": "no ELF program"} {
		linked, err := FamilyOf(path, "")
		if err != nil || linked.Family != "" || linked.Why != why {
			t.Errorf("%s: %+v, %v; want %q", path, linked, err, why)
		}
	}
	if _, err := FamilyOf("/nowhere", ""); err == nil {
		t.Error("a file that is not there is read")
	}
}

// A user's file says how large its tables are: none is believed beyond what programs have, and nothing is waited for.
func TestFamilyOfForged(t *testing.T) {
	whole, err := os.ReadFile("/bin/true")
	must(t, err)
	dir := t.TempDir()
	forged := func(name string, at int, b ...byte) string {
		data := bytes.Clone(whole)
		copy(data[at:], b)
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, data, 0o755))
		must(t, os.Truncate(path, 1<<40)) // a hole
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	must(t, unix.Mkfifo(pipe, 0o600))
	for name, path := range map[string]string{
		"segments without end":  forged("phnum", 0x38, 0xff, 0xff),
		"segments past the end": forged("phoff", 0x20, 0, 0, 0, 0, 0, 2, 0, 0),
		"segments of odd sizes": forged("phentsize", 0x36, 1, 0),
		"half a header":         forged("class", 4, 1),
		"a pipe":                pipe,
	} {
		if linked, err := FamilyOf(path, ""); err == nil && linked.Family != "" {
			t.Errorf("%s: %+v", name, linked)
		} else if err == nil {
			t.Errorf("%s: %+v, want an error", name, linked)
		}
	}
}
