package logs

import (
	"bytes"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// outputTail is how many bytes at the end of the output are read.
const outputTail = 16 << 10

// LastLines gives the lines at the end of a file, without empty ones. Of a line that was
// overwritten with \r, such as a progress bar, it is what a terminal shows; of an
// unfinished line it is the end.
func LastLines(path string) []string {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	from := int64(0)
	if st, err := f.Stat(); err == nil {
		from = max(0, st.Size()-outputTail)
	}
	b, err := io.ReadAll(io.NewSectionReader(f, from, outputTail))
	if err != nil {
		return nil
	}
	if i := bytes.IndexAny(b, "\r\n"); from > 0 && i >= 0 {
		b = b[i:] // before that is the end of a cut line
	}
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(string(b), "?")) {
		line = strings.TrimRight(line, "\r\n ")
		if line = line[strings.LastIndexByte(line, '\r')+1:]; strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return lines
}
