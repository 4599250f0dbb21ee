package witness

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBooks(t *testing.T) {
	dir := t.TempDir()
	r := Record{
		Kind: Line, Job: "jobjobjobj", Generation: 3, Stage: "before", Rank: 1, World: 4, Nodes: 2, PID: 77, Host: "spark1",
		Number: 9, Hash: 1 << 63, Code: -1, State: "running", Name: "train", Until: 5,
	}.Stamp()
	if r.Boot == 0 || r.Mono == 0 || r.Real == 0 {
		t.Errorf("no clock: %+v", r)
	}
	for range 2 { // two processes
		b, err := Open(dir, "a")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.Append(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Append(Record{Job: strings.Repeat("x", nameBytes)}); err == nil {
			t.Error("a name that does not fit was written")
		}
	}
	got, err := Read(dir)
	if diff := cmp.Diff([]Record{r, r, r, r}, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}

	// A record that is being written is none yet; one that is broken is told.
	data, _ := r.Encode()
	path := filepath.Join(dir, "x"+bookSuffix)
	if err := os.WriteFile(path, append(data, data[:40]...), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(dir); err != nil || len(got) != 5 {
		t.Errorf("%d records, %v", len(got), err)
	}
	data[3] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(dir); !errors.Is(err, ErrRecord) || !strings.Contains(err.Error(), path) {
		t.Errorf("a broken record: %v", err)
	}
}

func TestNoTwoLinesAreAlike(t *testing.T) {
	seen := map[string]bool{}
	for gen := range uint64(3) {
		for rank := range int32(3) {
			for n := range uint64(100) {
				text := Text(Key{"job", gen}, rank, n)
				if seen[text] || strings.Count(text, "\n") != 1 || !strings.HasSuffix(text, "\n") {
					t.Fatalf("%q", text)
				}
				seen[text] = true
			}
		}
	}
}
