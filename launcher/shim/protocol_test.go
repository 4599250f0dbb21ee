package shim

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// What differs from run to run, and how a transcript writes it. The text of
// bad JSON is the library's, not the protocol's: only its head is frozen.
var blanks = []struct{ from, to string }{
	{`"time":"[^"]+"`, `"time":TIME`},
	{`"pid":[0-9]+`, `"pid":PID`},
	{`"ticks":[0-9]+`, `"ticks":TICKS`},
	{`"boot":"[^"]*"`, `"boot":"BOOT"`},
	{`"mark":"[^"]+"`, `"mark":"MARK"`},
	{`it ran out [^ ]+ ago`, `it ran out AGO ago`},
	{`understand the request: (invalid|unexpected) [^}]*"`, `understand the request: JSON"`},
}

func blank(line string) string {
	for _, b := range blanks {
		line = regexp.MustCompile(b.from).ReplaceAllString(line, b.to)
	}
	return line
}

// Protocol v1 is frozen: a transcript may be added, none may be changed, for
// shims of an older version are met by every later agent.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	must(t, err)
	if len(files) < 4 {
		t.Fatalf("only %d transcripts", len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			must(t, err)
			b := spawn(t)
			var conn net.Conn
			var in *bufio.Reader
			dial := func() {
				if conn != nil {
					conn.Close()
				}
				conn, err = net.Dial("unix", filepath.Join(b.dir, socketName))
				must(t, err)
				must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
				in = bufio.NewReader(conn)
			}
			dial()
			defer func() { conn.Close() }()
			for i, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
				switch line[0] {
				case '=':
					dial()
				case '>':
					_, err := conn.Write([]byte(line[2:] + "\n"))
					must(t, err)
				case '<':
					got, err := in.ReadString('\n')
					must(t, err)
					if got, want := blank(strings.TrimSuffix(got, "\n")), blank(line[2:]); got != want {
						t.Fatalf("line %d:\n got %s\nwant %s", i+1, got, want)
					}
				}
			}
		})
	}
}

// A request without an end is cut off, and only that connection with it.
func TestEndlessRequest(t *testing.T) {
	r := bufio.NewReader(strings.NewReader(strings.Repeat("x", 100000)))
	if _, err := readLine(r, 5000); err == nil || !strings.Contains(err.Error(), "longer than 5000") {
		t.Errorf("readLine: %v", err)
	}
}
