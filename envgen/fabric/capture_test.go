package fabric

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sparkrun/sparkrun/envgen"
)

// Whatever a machine looks like, a capture of it read elsewhere gives the same inventory and the same counters.
func TestCaptureReadsTheSameElsewhere(t *testing.T) {
	fixtures, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(fixtures) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range fixtures {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			fx := loadFixture(t, name)
			r := fx.reader(t, nil)
			r.cfg.Routes = func(context.Context) ([]Route, error) { return nil, nil }
			want, err := r.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			taken, err := r.Capture(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, taken.Inventory, byValue); diff != "" {
				t.Errorf("the capture's own inventory (-read +captured):\n%s", diff)
			}
			files, err := taken.Files()
			if err != nil {
				t.Fatal(err)
			}
			opened, err := OpenCapture(files)
			if err != nil {
				t.Fatal(err)
			}
			there, err := opened.Reader()
			if err != nil {
				t.Fatal(err)
			}
			got, err := there.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, byValue); diff != "" {
				t.Errorf("(-there +elsewhere):\n%s", diff)
			}
			if diff := cmp.Diff(r.Counters().Counts, there.Counters().Counts); diff != "" {
				t.Errorf("counters (-there +elsewhere):\n%s", diff)
			}
			for path := range files {
				if strings.Contains(path, "/gids/") && strings.HasPrefix(string(files[path]), "0000:0000:0000:0000:0000:0000:0000:0000") {
					t.Errorf("an empty GID row was kept: %s", path)
				}
			}
		})
	}
}

func TestOpenCaptureErrors(t *testing.T) {
	r := loadFixture(t, "no-hca").reader(t, nil)
	r.cfg.Routes = func(context.Context) ([]Route, error) { return nil, nil }
	taken, err := r.Capture(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(map[string][]byte){
		"links.json: file does not exist": func(f map[string][]byte) { delete(f, linksFile) },
		"inventory.json: unexpected end":  func(f map[string][]byte) { f[inventoryFile] = []byte("{") },
		"sys-folders.json: json":          func(f map[string][]byte) { f[foldersFile] = []byte("[1]") },
	} {
		files, err := taken.Files()
		if err != nil {
			t.Fatal(err)
		}
		spoil(files)
		if _, err := OpenCapture(files); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %q", err, name)
		}
	}
}

func TestCounters(t *testing.T) {
	fx := loadFixture(t, "spark-one-cable")
	count := func(lines ...string) {
		for _, l := range lines {
			if err := fx.Line("count rocep1s0f0 " + l); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := fx.reader(t, nil)
	count("counters/port_xmit_data 100", "counters/VL15_dropped N/A_(no_PMA)", "counters/symbol_error 7",
		"hw_counters/packet_seq_err 18446744073709551610", "hw_counters/lifespan 10")
	before := r.Counters()
	count("counters/port_xmit_data 350", "counters/symbol_error 2", "hw_counters/packet_seq_err 18446744073709551615", "hw_counters/new 4")
	after := r.Counters()
	after.At = before.At.Add(10 * time.Second)
	want := []envgen.Counters{{HCA: "rocep1s0f0", Span: 10 * time.Second, Counts: map[string]uint64{
		"port_xmit_data": 250, "symbol_error": 2, "packet_seq_err": 5,
	}}}
	if diff := cmp.Diff(want, after.Since(before)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := after.Since(Reading{}); got != nil {
		t.Errorf("without an earlier reading: %v", got)
	}
}

// What a tree holds came from another machine: whatever it says, it is read or refused.
func FuzzOpenCapture(f *testing.F) {
	f.Add([]byte(`{}`), []byte(`{"class/infiniband":["mlx5_0"]}`), []byte(`[{"name":"eth0"}]`), "class/infiniband/mlx5_0/node_guid", []byte("1:2"))
	f.Add([]byte(`{"class/infiniband/a/device":"../../../0000:01:00.0"}`), []byte(`{"class/infiniband":["a"],"class/infiniband/a/ports/1/gids":["0"]}`),
		[]byte(`[]`), "class/infiniband/a/ports/1/gids/0", []byte("fe80:0000:0000:0000:0000:0000:0000:0001"))
	f.Add([]byte(`{"class":"class"}`), []byte(`{"class/infiniband":["a/../..","",".."]}`), []byte(`null`), "..", []byte(""))
	f.Fuzz(func(t *testing.T, symlinks, folders, links []byte, name string, content []byte) {
		c, err := OpenCapture(map[string][]byte{
			symlinksFile: symlinks, foldersFile: folders, linksFile: links, routesFile: []byte("[]"),
			inventoryFile: []byte(`{"host":"h"}`), treeFolder + name: content,
		})
		if err != nil {
			return
		}
		r, err := c.Reader()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(t.Context()); err != nil {
			t.Fatalf("a tree that was opened cannot be read: %v", err)
		}
	})
}
