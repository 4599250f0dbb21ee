package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/stage"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// stager takes what jobs bring along.
type stager interface {
	Stage(context.Context, wire.StageRequest) (wire.StageResponse, error)
	StageContent(context.Context, wire.StageChunk) error
}

// stagings is a flag that is given once a file or folder.
type stagings struct{ all *[]stage.Source }

func (s stagings) Type() string { return "SRC[:DST]" }

func (s stagings) String() string {
	if s.all == nil {
		return ""
	}
	var texts []string
	for _, src := range *s.all {
		texts = append(texts, src.Src+":"+src.Dst)
	}
	return strings.Join(texts, ",")
}

func (s stagings) Set(text string) error {
	src, err := stage.ParseSource(text)
	if err == nil {
		*s.all = append(*s.all, src)
	}
	return err
}

// stageBps is the slowest network that the default start time-out is enough
// for, in bytes a second: a tenth of the management network's gigabit.
const stageBps = 12 << 20

// stageSpec reads what a job brings along, and names it in its spec.
func stageSpec(spec *launcher.Spec, o launchOptions) (stage.Files, error) {
	if len(o.stage) == 0 {
		return stage.Files{}, nil
	}
	files, err := stage.Scan(o.stage)
	if err != nil {
		return files, err
	}
	bytes := files.Manifest.Bytes()
	spec.Staged = &launcher.Staged{Sum: files.Manifest.Sum(), Bytes: bytes, Workdir: o.request.Workdir == ""}
	if o.request.Job.StartTimeout == 0 {
		spec.StartTimeout += time.Duration(bytes/stageBps) * time.Second
	}
	return files, nil
}

// handOver brings a job's files to this machine's agent, of which the nodes
// will have them. What it has already is not sent.
func handOver(ctx context.Context, s stager, spec *launcher.Spec, files stage.Files) error {
	if spec.Staged == nil {
		return nil
	}
	res, err := s.Stage(ctx, wire.StageRequest{Job: spec.ID, User: spec.User, Manifest: files.Manifest})
	if err != nil {
		return fmt.Errorf("stage files: %w", err)
	}
	for _, sum := range res.Missing {
		if err := sendContent(ctx, s, spec, files, sum); err != nil {
			return fmt.Errorf("stage %s: %w", files.Path(sum), err)
		}
	}
	spec.Staged.From = res.Node
	return nil
}

func sendContent(ctx context.Context, s stager, spec *launcher.Spec, files stage.Files, sum string) error {
	f, err := files.Open(sum)
	if err != nil {
		return err
	}
	defer f.Close()
	return stage.Chunks(f, func(offset int64, data []byte) error {
		return s.StageContent(ctx, wire.StageChunk{Job: spec.ID, User: spec.User, Sum: sum, Offset: offset, Data: data})
	})
}
