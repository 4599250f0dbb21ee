// Command fakeperftest stands in for perftest's programs where there is no RDMA device: it
// meets its other side by TCP as they do, and prints what they print. FAKE_PERFTEST is what
// goes wrong, at the device behind its @.
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

func main() {
	args := map[string]string{}
	server := ""
	for i := 1; i < len(os.Args); i++ {
		switch a := os.Args[i]; {
		case a == "--help":
			fmt.Print("  --out_json \n  --out_json_file=<file> \n")
			os.Exit(1)
		case strings.HasPrefix(a, "--out_json_file="):
			args["file"] = strings.TrimPrefix(a, "--out_json_file=")
		case a == "-F", strings.HasPrefix(a, "--"):
		case strings.HasPrefix(a, "-"):
			args[a] = os.Args[i+1]
			i++
		default:
			server = a
		}
	}
	fail := func(text string) {
		fmt.Fprintln(os.Stderr, text)
		os.Exit(1)
	}
	wrong, device, _ := strings.Cut(os.Getenv("FAKE_PERFTEST"), "@")
	is := func(what string) bool { return wrong == what && device == args["-d"] }
	var conn net.Conn
	if server == "" {
		if is("no listener") {
			fail("Couldn't listen to port " + args["-p"])
		}
		l, err := net.Listen("tcp4", ":"+args["-p"])
		if err != nil {
			fail(err.Error())
		}
		if conn, err = l.Accept(); err != nil {
			fail(err.Error())
		}
		l.Close()
	} else {
		var err error
		if conn, err = net.Dial("tcp4", net.JoinHostPort(server, args["-p"])); err != nil {
			fail(fmt.Sprintf("Couldn't connect to %s:%s", server, args["-p"]))
		}
	}
	if is("hangs") && server != "" {
		if err := os.WriteFile(os.Getenv("FAKE_STARTED"), nil, 0o600); err != nil {
			fail(err.Error())
		}
		time.Sleep(time.Hour) // killed before
	}
	if is("broken") && server == "" {
		fail("Couldn't allocate MR")
	}
	fmt.Fprintln(conn, "done")
	if text, err := io.ReadAll(io.LimitReader(conn, 5)); err != nil || string(text) != "done\n" {
		fail("ethernet_read_keys: Couldn't read remote address")
	}
	fmt.Printf(" GID index       : %s\n", args["-x"])
	fmt.Print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n")
	fmt.Print(" 65536      565164           0.00               98.75  \t\t   0.188385\n")
	if args["file"] != "" {
		if err := os.WriteFile(args["file"], []byte("{\nresults: {\nMsgSize: 65536,\nBW_average: 98.75,\n},\n}\n"),
			0o600); err != nil {
			fail(err.Error())
		}
	}
	os.Exit(0)
}
