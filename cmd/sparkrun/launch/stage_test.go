package launch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/cmd/sparkrun/apptest"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// fakeStager misses all, or refuses.
type fakeStager struct {
	full error
	// dropped is the job that was taken back.
	dropped launcher.JobID
	got     map[string]string // sum -> content
}

func (f *fakeStager) Calls() []wire.Call {
	return []wire.Call{wire.Stage.Serve(f.stage), wire.StageContent.Serve(f.content)}
}

func (f *fakeStager) stage(_ context.Context, _ wire.Caller, r wire.StageRequest) (wire.StageResponse, error) {
	res := wire.StageResponse{Node: "node1"}
	if r.Drop {
		f.dropped = r.Job
	}
	for _, e := range r.Manifest {
		if e.Mode.IsRegular() {
			res.Missing = append(res.Missing, e.Sum)
		}
	}
	return res, nil
}

func (f *fakeStager) content(_ context.Context, _ wire.Caller, c wire.StageChunk) (wire.Empty, error) {
	if int64(len(f.got[c.Sum])) != c.Offset {
		return wire.Empty{}, errors.New("out of order")
	}
	f.got[c.Sum] += string(c.Data)
	return wire.Empty{}, f.full
}

func TestHandOver(t *testing.T) {
	dir := t.TempDir()
	big := strings.Repeat("x", filesync.ChunkBytes+1)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "big"), []byte(big), 0o644),
		os.WriteFile(filepath.Join(dir, "empty"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	opts := Options{Stage: []filesync.Source{{Src: dir, Dst: "."}}}
	spec := launcher.Spec{ID: launcher.NewJobID(), StartTimeout: launcher.DefaultStartTimeout}
	files, err := stageSpec(&spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeStager{got: map[string]string{}}
	if err := handOver(t.Context(), apptest.Agent(s), &spec, files, func(string) {}); err != nil {
		t.Fatal(err)
	}
	want := launcher.Staged{Sum: files.Manifest.Sum(), Bytes: int64(len(big)), From: "node1", Workdir: true}
	if *spec.Staged != want {
		t.Errorf("staged %+v, want %+v", *spec.Staged, want)
	}
	if len(s.got) != 2 || s.got[files.Manifest[0].Sum] != big {
		t.Errorf("%d contents came", len(s.got))
	}

	s = &fakeStager{full: errors.New("no space left on device"), got: map[string]string{}}
	if err := handOver(t.Context(), apptest.Agent(s), &spec, files, func(string) {}); err == nil ||
		!strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("a full disk: %v", err)
	}
	if s.dropped != spec.ID {
		t.Error("what was handed over is left there")
	}
}
