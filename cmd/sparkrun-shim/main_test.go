package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// mayLink are the packages that the shim has beside the standard library's and ours.
var mayLink = []string{"golang.org/x/sys/unix", "github.com/spf13/pflag"}

// mayNotLink are packages of the standard library that bring much along.
var mayNotLink = []string{"net/http", "crypto/tls", "crypto/x509", "html/template", "text/template"}

func TestLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{else}}std {{.ImportPath}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	const ours = "github.com/sparkrun/sparkrun/"
	packages := strings.Fields(strings.ReplaceAll(string(out), "std ", "std:"))
	if len(packages) < 50 {
		t.Fatalf("go list knows %d packages", len(packages))
	}
next:
	for _, p := range packages {
		if std, is := strings.CutPrefix(p, "std:"); is {
			for _, no := range mayNotLink {
				if std == no {
					t.Errorf("the shim links %s", std)
				}
			}
			continue
		}
		for _, may := range append(mayLink, ours) {
			if strings.HasPrefix(p, may) {
				continue next
			}
		}
		t.Errorf("the shim links %s", p)
	}
}

// What packages allocate before main is work at each start of a rank's shim. Bytes are
// counted, for no clock tells the same twice.
func TestStartsWithLittleWork(t *testing.T) {
	program := filepath.Join(t.TempDir(), "shim")
	build := exec.Command("go", "build", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start := exec.Command(program, "shim", "@try")
	start.Env = []string{"GODEBUG=inittrace=1"}
	out, err := start.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	packages, bytes := 0, 0
	for _, m := range regexp.MustCompile(`(?m)^init (\S+) .* (\d+) bytes`).FindAllStringSubmatch(string(out), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		packages, bytes = packages+1, bytes+n
	}
	const most = 64 << 10 // 38,520 on the day that this was written; `sparkrun shim` had 788,328
	if packages < 10 || bytes > most {
		t.Errorf("%d packages allocate %d bytes before main, want at most %d:\n%s", packages, bytes, most, out)
	}
}
