package e2e

import (
	"archive/tar"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	imageRegistry = "172.30.0.1:5000" // in the network between the hosts
	layerBytes    = 40_000_000
)

// TestImagePull: an image comes from its registry once, to the Dockers of three machines, though an agent is killed in
// between. What Dockers have of another image is not fetched again, and a launch brings what its machines lack.
func TestImagePull(t *testing.T) {
	dir := scratch(t)
	program, base := filepath.Join(dir, "registrystandin"), filepath.Join(dir, "base.tar")
	if out, err := exec.Command("go", "build", "-o", program, "../../launcher/filesync/oci/ocitest/registrystandin").
		CombinedOutput(); err != nil {
		t.Fatalf("build registrystandin: %v: %s", err, out)
	}
	busyboxTar(t, base)
	l := up(t, 3)
	hosts := []string{"spark1", "spark2", "spark3"}
	l.do(append([]string{"engine", "--insecure-registry=" + imageRegistry}, hosts...)...)
	registry := l.start("switch", program, "--listen", imageRegistry, "--rate", "8000000", "--first", base,
		fmt.Sprintf("org/one:1=%d", layerBytes), "org/two:1=300000")
	defer func() {
		_ = registry.cmd.Process.Signal(os.Interrupt)
		registry.wait()
	}()
	sent := func() int64 {
		n, _ := strconv.ParseInt(l.on("switch", "curl", "-s", "http://"+imageRegistry+"/_standin/sent").out, 10, 64)
		return n
	}
	eventually(t, 10*time.Second, "the stand-in answers", func() bool {
		return l.on("switch", "curl", "-sf", "http://"+imageRegistry+"/v2/").code == 0
	})

	one := imageRegistry + "/org/one:1"
	pull := l.start("spark2", "sparkrun", "image", "pull", one, "--all")
	eventually(t, 20*time.Second, "a good part came", func() bool {
		if pull.over() {
			t.Fatalf("the pull ended too early: %s", pull.wait())
		}
		return sent() > layerBytes/2
	})
	l.do("kill", "spark3", "--agent")
	l.do("start", "spark3", "--agent")
	pull.wait().must(t)
	fi, err := os.Stat(base)
	if err != nil {
		t.Fatal(err)
	}
	all := layerBytes + fi.Size()
	if n := sent(); n < all || n > all*102/100 {
		t.Errorf("%d bytes came from the registry, want %d and 2 %% more at most", n, all)
	}
	for _, h := range hosts {
		r := l.on(h, "docker", "run", "--rm", "--network", "host", one, "sh", "-c", "echo $SHAPE; wc -c </layer0")
		if r.out != fmt.Sprintf("standin\n%d\n", layerBytes) {
			t.Errorf("it does not run on %s: %s", h, r)
		}
		if names := l.on(h, "docker", "images", "--digests").out; strings.Contains(names, "127.0.0.1") {
			t.Errorf("%s has it by the name of the way, too:\n%s", h, names)
		}
	}
	before := sent()
	l.on("spark1", "sparkrun", "image", "pull", one, "--all").must(t)
	if n := sent() - before; n > 10_000 {
		t.Errorf("asked for again, %d bytes came", n)
	}
	if r := l.on("spark1", "sparkrun", "image", "ls", one).must(t); strings.Count(r.out, one) != 3 {
		t.Errorf("ls: %s", r)
	}

	before = sent()
	two := imageRegistry + "/org/two:1"
	r := l.on("spark1", "sparkrun", "launch", "exec", "--nodes", "3", "--image", two, "--", "sh", "-c", "wc -c </layer0").must(t)
	if strings.Count(r.out, "300000") != 3 || strings.Count(r.err, "has it") != 3 {
		t.Errorf("a launch: %s", r)
	}
	if n := sent() - before; n < 300_000 || n > 350_000 {
		t.Errorf("a launch had %d bytes come, want those of the layer that no Docker had", n)
	}

	own := imageRegistry + "/own:1" // of which the registry does not know
	l.on("spark1", "docker", "tag", "lab/bare", own).must(t)
	r = l.on("spark2", "sparkrun", "image", "pull", own, "--all")
	version := l.on("spark1", "docker", "version", "--format", "{{.Server.Version}}").must(t).out
	if major, _, _ := strings.Cut(version, "."); len(major) == 2 && major < "25" {
		if r.code == 0 || !strings.Contains(r.err, "Docker Engine 25") {
			t.Errorf("an image of a Docker %s: %s", version, r)
		}
	} else if r.must(t); l.on("spark3", "docker", "image", "inspect", own).code != 0 {
		t.Errorf("an image of spark1's own did not come to spark3: %s", r)
	}
}

// busyboxTar is a file system in which programs run.
func busyboxTar(t *testing.T, to string) {
	t.Helper()
	box, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("busybox is missing: apt-get install busybox-static")
	}
	text, err := os.ReadFile(box)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(to)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, h := range []tar.Header{{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
		{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(text))},
		{Name: "bin/sh", Typeflag: tar.TypeSymlink, Linkname: "busybox"}, {Name: "bin/wc", Typeflag: tar.TypeSymlink, Linkname: "busybox"}} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
