package workloads

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// builtTar is what a build brings: BUILT, lib, and a program.
func builtTar(t *testing.T, name string, program []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		name string
		mode int64
		text []byte
	}{{"BUILT", 0o644, []byte(name)}, {"lib/", 0o755, nil}, {"./all_gather_perf", 0o755, program}} {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(f.text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// install runs the job's program as a machine would, in a home with a name that is hard on shells.
func install(t *testing.T, home, sum string, tar []byte) (string, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, NCCLTestsTar), tar, 0o644); err != nil {
		t.Fatal(err)
	}
	argv := NCCLInstallArgs(".local/share/it's \"here\" $x/nccl-tests", sum)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+home, "SPARKRUN_HOST=spark1", "LC_ALL=C")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// dynamic is a program of this machine that needs libraries.
func dynamic(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestNCCLInstall(t *testing.T) {
	home := filepath.Join(t.TempDir(), "a 'home' \"of\" $(touch it)")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(home, ".local/share/it's \"here\" $x/nccl-tests")
	is := func(want string, folders int) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(link, "BUILT")); string(got) != want {
			t.Errorf("the build is %q, want %q: %v", got, want, err)
		}
		all, err := os.ReadDir(filepath.Dir(link))
		if err != nil || len(all) != folders+1 {
			t.Errorf("want %d builds and a link: %v %v", folders, all, err)
		}
	}
	program := dynamic(t)
	if out, err := install(t, home, "1111", builtTar(t, "first", program)); err != nil || out != "spark1: "+link+"\n" {
		t.Fatalf("%v: %s", err, out)
	}
	is("first", 1)

	foreign := bytes.Clone(program)
	foreign[18], foreign[19] = byte(elf.EM_S390), 0 // e_machine
	for name, tc := range map[string]struct {
		tar  []byte
		says string
	}{
		"another kind of machine": {builtTar(t, "bad", foreign), "spark1 cannot run all_gather_perf, which was built on another kind of machine"},
		"no program at all":       {builtTar(t, "bad", []byte("#!/bin/sh\n")), "spark1 cannot run all_gather_perf"},
		"cut":                     {builtTar(t, "bad", program)[:len(program)/2], "tar: "},
	} {
		if out, err := install(t, home, "2222", tc.tar); err == nil || !strings.Contains(out, tc.says) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		is("first", 1)
	}
	old := time.Now().Add(-2 * time.Hour)
	for i, name := range []string{"second", "third", "fourth"} { // each before it is old by then
		all, err := filepath.Glob(filepath.Join(home, ".local/share/*/nccl-tests-*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range all {
			if err := os.Chtimes(dir, old, old); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := install(t, home, fmt.Sprintf("333%d", i), builtTar(t, name, program)); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		is(name, 2) // with the one before, from which a test may be starting
	}
	if err := os.Remove(filepath.Join(link, "BUILT")); err != nil { // taken apart
		t.Fatal(err)
	}
	if out, err := install(t, home, "3332", builtTar(t, "fourth", program)); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	is("fourth", 1)
}

// Two people build at the same moment, on machines that share their homes: one of both is there at the
// end, whole.
func TestNCCLInstallAtOnce(t *testing.T) {
	home, program := t.TempDir(), dynamic(t)
	var all sync.WaitGroup
	for i := range 6 {
		all.Go(func() {
			name := fmt.Sprint("build ", i%3)
			if out, err := install(t, home, fmt.Sprint("sum", i%3), builtTar(t, name, program)); err != nil {
				t.Errorf("%s: %v: %s", name, err, out)
			}
		})
	}
	all.Wait()
	found, err := filepath.Glob(filepath.Join(home, ".local/share/*/nccl-tests/*"))
	if err != nil || len(found) != 3 {
		t.Errorf("%v %v", found, err)
	}
}
