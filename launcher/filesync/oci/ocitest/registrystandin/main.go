// Registrystandin is ocitest's registry as a program: for tests in the lab.
//
//	registrystandin --listen 172.30.0.1:5000 [--rate BYTES] [--first FILE.tar] NAME:TAG=BYTES,BYTES...
package main

import (
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/filesync/oci/ocitest"
)

func main() {
	r := ocitest.New()
	listen := flag.String("listen", "127.0.0.1:5000", "address")
	flag.Int64Var(&r.Rate, "rate", 0, "bytes a second")
	flag.StringVar(&r.User, "user", "", "the login's user, whose password is secret")
	file := flag.String("first", "", "a tar, the first layer of each image")
	flag.Parse()
	r.Password = "secret"
	var first []byte
	if *file != "" {
		var err error
		if first, err = os.ReadFile(*file); err != nil {
			log.Fatal(err)
		}
	}
	for _, arg := range flag.Args() {
		ref, sizes, _ := strings.Cut(arg, "=")
		name, tag, _ := strings.Cut(ref, ":")
		var layers []int
		for text := range strings.SplitSeq(sizes, ",") {
			n, err := strconv.Atoi(text)
			if err != nil {
				log.Fatalf("%s: %v", arg, err)
			}
			layers = append(layers, n)
		}
		digest, bytes := r.Add(name, tag, []string{runtime.GOARCH, "riscv64"}, layers, first)
		fmt.Println(ref, digest, bytes)
	}
	log.Fatal(http.ListenAndServe(*listen, r)) //nolint:gosec // of a test
}
