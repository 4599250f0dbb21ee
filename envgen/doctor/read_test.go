package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write the goldens anew")

// tree makes a machine's files of an archive.
func tree(t *testing.T, name string) string {
	t.Helper()
	a, err := txtar.ParseFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, f := range a.Files {
		path := filepath.Join(root, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		text := string(f.Data)
		if target, ok := strings.CutPrefix(text, "-> "); ok {
			err = os.Symlink(strings.TrimSpace(target), path)
		} else {
			mode := os.FileMode(0o644)
			if strings.HasPrefix(text, "#!") {
				mode = 0o755
			}
			err = os.WriteFile(path, f.Data, mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// answers are what programs print, by their command lines.
type answers map[string]string

func (a answers) run(_ context.Context, name string, args ...string) ([]byte, error) {
	line := strings.Join(append([]string{name}, args...), " ")
	if out, ok := a[line]; ok {
		return []byte(out), nil
	}
	return nil, fmt.Errorf("%s: not found", name)
}

func spark(t *testing.T) (*Reader, string) {
	root := tree(t, "spark.txtar")
	return New(Config{
		Root: root, Ports: []int{7940, 7941}, Self: filepath.Join(root, "usr/local/bin/sparkrun"),
		Run: answers{
			"docker info --format {{json .}}": `{"ServerVersion":"28.5.1","Runtimes":{"runc":{},"io.containerd.runc.v2":{},"nvidia":{}}}`,
			"nft -j list ruleset":             `{"nftables":[{"metainfo":{}},{"chain":{"family":"inet","table":"filter","name":"input","hook":"input","policy":"drop"}}]}`,
		}.run,
		Synchronised: func() (bool, error) { return true, nil },
	}), root
}

func TestRead(t *testing.T) {
	r, _ := spark(t)
	got := r.Read(t.Context(), Ask{User: "ada", Path: "/home/ada/.local/bin:/usr/local/bin:relative:/usr/bin"})
	text, err := json.MarshalIndent(got, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/spark.golden"
	if *update {
		if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)+"\n"); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var back Facts
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, back); diff != "" {
		t.Errorf("on the way: -sent +received:\n%s", diff)
	}
}

// A machine of which nothing can be read is no failure: what is not known is
// absent.
func TestReadNothing(t *testing.T) {
	r := New(Config{Root: t.TempDir(), Run: answers{}.run,
		Synchronised: func() (bool, error) { return false, errors.New("no") },
		Disks:        map[string]string{"state": "/var/lib/sparkrun"}})
	got := r.Read(t.Context(), Ask{User: "ada"})
	if got.Memory != nil || got.Firewall != nil || got.Clock.Synchronised != nil || got.RemoveIPC != nil ||
		got.Limits.Memlock != nil {
		t.Errorf("facts from nowhere: %+v", got)
	}
	if len(got.Trouble) != 1 || !strings.Contains(got.Trouble[0], "meminfo") {
		t.Errorf("trouble %q", got.Trouble)
	}
	if len(got.Disks) != 1 || got.Disks[0].Total == 0 {
		t.Errorf("a folder that is not there yet is measured where it will be: %+v", got.Disks)
	}
}

// Programs that hang and files that are none hold up nothing.
func TestReadDoesNotHang(t *testing.T) {
	root := tree(t, "spark.txtar")
	conf := filepath.Join(root, "etc/nccl.conf")
	if err := os.Remove(conf); err != nil {
		t.Fatal(err)
	}
	if err := mkfifo(conf); err != nil {
		t.Fatal(err)
	}
	r := New(Config{Root: root, Patience: time.Millisecond,
		Run: func(ctx context.Context, _ string, _ ...string) ([]byte, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}})
	got := r.Read(t.Context(), Ask{})
	if !strings.Contains(got.Docker.Trouble, "no answer within 3ms") {
		t.Errorf("docker: %+v", got.Docker)
	}
	if slices.ContainsFunc(got.NCCLConf, func(c Conf) bool { return c.Path == "/etc/nccl.conf" }) {
		t.Errorf("read a fifo: %+v", got.NCCLConf)
	}
}

// The agent reads as root on behalf of a user: of a file that he names it
// takes NCCL's settings only.
func TestConfFileGivesNothingAway(t *testing.T) {
	r, root := spark(t)
	if err := os.WriteFile(filepath.Join(root, "secret"), []byte("root:$6$hash=x\nTOKEN=abc\nNCCL_DEBUG=INFO\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	got := r.Read(t.Context(), Ask{ConfFile: "/secret"})
	text, _ := json.Marshal(got)
	if strings.Contains(string(text), "hash") || strings.Contains(string(text), "TOKEN") ||
		!strings.Contains(string(text), "/secret") {
		t.Errorf("facts %s", text)
	}
}

func TestMeasure(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	var c Clock
	// The node is 10 s ahead, thinks for 3 s, and each way takes 0.1 s.
	c.Measure(at(0), at(10.1), at(13.1), at(3.2))
	if *c.Offset != 10*time.Second || *c.Bound != 100*time.Millisecond {
		t.Errorf("offset %s, bound %s", *c.Offset, *c.Bound)
	}
}
