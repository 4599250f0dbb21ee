// Command sparkrun-shim is `sparkrun shim` alone, as a program that starts with less than
// half the work: a job's ranks wait for one on each node. Released programs carry it
// (scripts/build), and their agents start it; nobody else does.
//
// It must not link what a shim has no use for: the test here holds the list.
package main

import (
	"fmt"
	"os"

	"github.com/sparkrun/sparkrun/launcher/shim"
)

func main() {
	if len(os.Args) != 3 || os.Args[1] != "shim" {
		fmt.Fprintln(os.Stderr, "sparkrun-shim: this is a part of sparkrun, which its agent starts")
		os.Exit(2)
	}
	os.Exit(shim.Main(os.Args[2]))
}
