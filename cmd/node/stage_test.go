package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/rendezvous"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// handOver does what the CLI does, and tells how many contents were sent.
func (h *host) handOver(spec *launcher.Spec, f filesync.Files) int {
	h.t.Helper()
	c := h.client()
	defer c.Close()
	res, err := wire.Stage.Call(h.t.Context(), c, wire.StageRequest{Job: spec.ID, Manifest: f.Manifest})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, sum := range res.Missing {
		in, err := f.Open(sum)
		if err != nil {
			h.t.Fatal(err)
		}
		err = filesync.Chunks(in, func(offset int64, data []byte) error {
			return wire.StageContent.Call(h.t.Context(), c, wire.StageChunk{Job: spec.ID, Sum: sum, Offset: offset, Data: data})
		})
		if err = errors.Join(err, in.Close()); err != nil {
			h.t.Fatal(err)
		}
	}
	spec.Staged = &launcher.Staged{Sum: f.Manifest.Sum(), Bytes: f.Manifest.Bytes(), From: res.Node, Workdir: true}
	return len(res.Missing)
}

// A script that only one machine has runs on all of them, and a second try
// finds what the first has written.
func TestStagedFilesAreOnEachNode(t *testing.T) {
	c := newCluster(t, 2)
	dir := t.TempDir()
	body := "#!/bin/sh\necho $RANK $(cat data/big | wc -c) $PWD $SPARKRUN_STAGE\ntest -e seen && exit 0; touch seen; exit 3\n"
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "run.sh"), []byte(body), 0o755), os.Mkdir(filepath.Join(dir, "data"), 0o755),
		os.WriteFile(filepath.Join(dir, "data", "big"), make([]byte, 3*filesync.ChunkBytes/2), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	files, err := filesync.Scan([]filesync.Source{{Src: dir, Dst: "."}})
	if err != nil {
		t.Fatal(err)
	}
	spec := command(2, 1, "")
	spec.Stages[0].Argv, spec.MaxRestarts = launcher.Lits("./run.sh"), 1
	if sent := c.hosts[1].handOver(&spec, files); sent != 2 {
		t.Errorf("%d contents sent, want 2", sent)
	}
	if sent := c.hosts[1].handOver(&spec, files); sent != 0 {
		t.Errorf("%d contents sent again", sent)
	}
	if out := c.hosts[1].run(spec); out.End != rendezvous.Completed {
		t.Errorf("outcome %+v, want it completed at the second try", out)
	}
	for rank, text := range c.hosts[0].output(spec.ID) {
		f := strings.Fields(text)
		if len(f) != 4 || f[1] != "1572864" || f[2] != f[3] {
			t.Errorf("rank %d: %q", rank, text)
		}
	}
	for _, h := range c.hosts {
		if _, err := os.Stat(filepath.Join(filesync.Tree(h.cfg.Paths.stage(), spec.ID), "seen")); err != nil {
			t.Error(err)
		}
	}

	// What nobody has is refused by name, with no rank started.
	other := command(2, 1, "echo never")
	other.Staged = &launcher.Staged{Sum: files.Manifest.Sum(), From: spec.Staged.From}
	if out := c.hosts[0].run(other); out.End != rendezvous.Rejected || !strings.Contains(out.Cause, "nothing of this job is staged") {
		t.Errorf("outcome %+v, want it rejected", out)
	}
}
