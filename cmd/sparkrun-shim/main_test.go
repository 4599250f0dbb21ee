package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
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

func TestStartsWithLittleWork(t *testing.T) {
	apptest.Startup(t, 64<<10, "shim", "@try") // 38,520 on the day that this was written; `sparkrun shim` had 788,328
}
