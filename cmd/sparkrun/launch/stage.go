package launch

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// stagings is a flag given once for each file or folder.
type stagings struct{ all *[]filesync.Source }

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
	src, err := filesync.ParseSource(text)
	if err == nil {
		*s.all = append(*s.all, src)
	}
	return err
}

// stageBps is the slowest rate, in bytes a second, for which the default start time-out
// is enough: a tenth of the management network's gigabit, and a disk that takes as long
// to write what arrives, to check it and to copy it for the job.
const stageBps = 6 << 20

// stageSpec reads the files of a job, and lists them in its spec.
func stageSpec(spec *launcher.Spec, o Options) (filesync.Files, error) {
	if len(o.Stage) == 0 {
		return filesync.Files{}, nil
	}
	files, err := filesync.Scan(o.Stage)
	if err != nil {
		return files, err
	}
	bytes := files.Manifest.Bytes()
	spec.Staged = &launcher.Staged{Sum: files.Manifest.Sum(), Bytes: bytes, Workdir: o.Request.Workdir == ""}
	if o.Request.Job.StartTimeout == 0 {
		spec.StartTimeout += time.Duration(bytes/stageBps) * time.Second
	}
	return files, nil
}

// handOver gives a job's files to this machine's agent, from which the nodes will fetch
// them. What the agent has already is not sent. say is called with the progress now and
// then.
func handOver(ctx context.Context, s *wire.Client, spec *launcher.Spec, files filesync.Files, say func(string)) error {
	if spec.Staged == nil {
		return nil
	}
	res, err := wire.Stage.Call(ctx, s, wire.StageRequest{Job: spec.ID, User: spec.User, Manifest: files.Manifest})
	if err != nil {
		return fmt.Errorf("stage files: %w", err)
	}
	h := handing{s: s, spec: spec, said: time.Now(), say: say}
	for _, sum := range res.Missing {
		if err := h.content(ctx, files, sum); err != nil {
			takeBack(ctx, s, spec)
			return fmt.Errorf("stage %s: %w", files.Path(sum), err)
		}
	}
	spec.Staged.From = res.Node
	if spec.Staged.Bytes >= stageLong {
		say(fmt.Sprintf("the machines fetch %s of files; the job starts within %s, or is refused",
			mib(spec.Staged.Bytes), spec.StartTimeout))
	}
	return nil
}

// stageLong is the size, in bytes, above which the transfer is announced.
const stageLong = 256 << 20

// takeBack has the files of a job that will not be launched removed again; what it cannot
// remove the agent removes later by itself.
func takeBack(ctx context.Context, s *wire.Client, spec *launcher.Spec) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = wire.Stage.Call(ctx, s, wire.StageRequest{Job: spec.ID, User: spec.User, Drop: true})
}

// handing is the transfer of a job's files to the agent.
type handing struct {
	s    *wire.Client
	spec *launcher.Spec
	sent int64 // bytes
	said time.Time
	say  func(string)
}

func (h *handing) content(ctx context.Context, files filesync.Files, sum string) error {
	f, err := files.Open(sum)
	if err != nil {
		return err
	}
	defer f.Close()
	return filesync.Chunks(f, func(offset int64, data []byte) error {
		if now := time.Now(); now.Sub(h.said) >= stageSays {
			h.said = now
			h.say(fmt.Sprintf("%s of %s of files are handed to the agent", mib(h.sent), mib(h.spec.Staged.Bytes)))
		}
		h.sent += int64(len(data))
		return wire.StageContent.Call(ctx, h.s, wire.StageChunk{Job: h.spec.ID, User: h.spec.User, Sum: sum,
			Offset: offset, Data: data})
	})
}

// stageSays is the interval between two reports of its progress.
const stageSays = 10 * time.Second

func mib(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }
