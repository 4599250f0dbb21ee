// broken stands in for a release of sparkrun that does not work: it says a version, and its agent ends (HOW=ends),
// never becomes ready (silent), or is ready and no member of anything (alone). How is decided when it is built:
// -ldflags '-X main.version=1.2.3 -X main.protocol=3 -X main.how=ends'.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

var version, protocol, how string

func main() {
	switch {
	case len(os.Args) > 1 && os.Args[1] == "version":
		fmt.Printf("{\"version\": %q, \"protocol\": %s}\n", version, protocol)
	case len(os.Args) > 1 && os.Args[1] == "agent":
		agent()
	default:
		fail("this release does nothing")
	}
}

func agent() {
	switch how {
	case "ends":
		fail("this release has no agent")
	case "alone":
		c, err := net.Dial("unixgram", os.Getenv("NOTIFY_SOCKET"))
		if err != nil {
			fail(err.Error())
		}
		if _, err := c.Write([]byte("READY=1")); err != nil {
			fail(err.Error())
		}
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	<-end
}

func fail(why string) {
	fmt.Fprintln(os.Stderr, why)
	os.Exit(1)
}
