package modelcache

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("MODELCACHE_TEST_WRITER"); dir != "" {
		writer(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

var repo = Repo{Model, "org/m"}

const commit = "0123456789abcdef0123456789abcdef01234567"

// big has two chunks and a half.
var big = func() []byte {
	b := make([]byte, 5*ChunkBytes/2)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

func open(t *testing.T, cfg Config) *Cache {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join(t.TempDir(), "hub")
	}
	c, err := Open(cfg)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

func lfs(path string, content []byte) File {
	sum := sha256.Sum256(content)
	return File{Path: path, Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
}

func git(path, content string) File {
	return File{Path: path, Size: int64(len(content)), GitOID: gitSum([]byte(content))}
}

func begin(t *testing.T, c *Cache, f File) *Part {
	t.Helper()
	p, err := c.Begin(repo, f)
	must(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// put has a file's content in the cache.
func put(t *testing.T, c *Cache, f File, content []byte) {
	t.Helper()
	p := begin(t, c, f)
	_, err := p.Write(content)
	must(t, errors.Join(err, p.Finish(false)))
}

// crash ends a part as kill -9 does: nothing more is written, the locks are gone.
func crash(p *Part) {
	p.stop()
	p.release()
}

func chunk(i int) []byte { return big[i*ChunkBytes : min((i+1)*ChunkBytes, len(big))] }

func (c *Cache) at(parts ...string) string {
	return filepath.Join(append([]string{c.cfg.Dir, repo.dir()}, parts...)...)
}

func check(t *testing.T, c *Cache, f File, want []byte) {
	t.Helper()
	got, err := os.ReadFile(c.at("blobs", f.ETag()))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the blob has %d bytes, %v, want %d", len(got), err, len(want))
	}
	left, _ := filepath.Glob(c.at(ours, f.ETag()+".[pjn]*"))
	if len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// Whenever the process is killed, the next one goes on from the last whole chunk, without reading what it has,
// and the content is right.
func TestKilledWhileWriting(t *testing.T) {
	f := lfs("model.safetensors", big)
	for _, n := range []int{0, 1, ChunkBytes - 1, ChunkBytes, ChunkBytes + 5, 2*ChunkBytes + 1, len(big) - 1, len(big)} {
		c := open(t, Config{Keep: 1})
		p := begin(t, c, f)
		if _, err := p.Write(big[:n]); err != nil {
			t.Fatal(err)
		}
		crash(p)
		p = begin(t, c, f)
		want := int64(n / ChunkBytes * ChunkBytes)
		if n == len(big) {
			want = int64(n)
		}
		if p.Prefix() != want || p.hashed != want || int64(len(p.Sums())) != chunksOf(want) {
			t.Fatalf("killed at %d: it goes on at %d, %d of them hashed, want %d", n, p.Prefix(), p.hashed, want)
		}
		for rest := big[want:]; len(rest) > 0; { // in odd pieces
			k := min(len(rest), 3<<20+7)
			if _, err := p.Write(rest[:k]); err != nil {
				t.Fatal(err)
			}
			rest = rest[k:]
		}
		must(t, p.Finish(false))
		check(t, c, f, big)
	}
}

// A power cut leaves bytes without a sidecar, half a sidecar, or one without its bytes: none is believed.
func TestPowerCut(t *testing.T) {
	f := lfs("model.safetensors", big)
	for name, tt := range map[string]struct {
		do   func(part, sidecar string) error
		want int64
	}{
		"nothing":        {func(_, _ string) error { return nil }, 2 * ChunkBytes},
		"no sidecar":     {func(_, s string) error { return os.Remove(s) }, 0},
		"half a sidecar": {func(_, s string) error { return os.Truncate(s, 30) }, 0},
		"an empty one":   {func(_, s string) error { return os.Truncate(s, 0) }, 0},
		"no bytes":       {func(p, _ string) error { return os.Truncate(p, ChunkBytes) }, 0},
		"no part":        {func(p, _ string) error { return os.Remove(p) }, 0},
		"a link for a part": {func(p, _ string) error {
			return errors.Join(os.Remove(p), os.Symlink("/etc/passwd", p))
		}, 0},
		"a part with a name": {func(p, _ string) error { return os.Link(p, filepath.Join(p, "../../elsewhere")) }, 0},
		"a pipe":             {func(p, _ string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) }, 0},
		"a lie": {func(_, s string) error {
			return os.WriteFile(s, []byte(`{"size":41943040,"prefix":99999999,"sums":""}`), 0o600)
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := open(t, Config{})
			p := begin(t, c, f)
			_, err := p.Write(big[:2*ChunkBytes])
			must(t, err)
			crash(p)
			must(t, tt.do(c.at(ours, f.ETag()+".part"), c.at(ours, f.ETag()+".json")))
			p = begin(t, c, f)
			if p.Prefix() != tt.want {
				t.Fatalf("it goes on at %d, want %d", p.Prefix(), tt.want)
			}
			_, err = p.Write(big[tt.want:])
			must(t, errors.Join(err, p.Finish(false)))
			check(t, c, f, big)
		})
	}
}

// keep brings a chunk as another node gives it: verified, and not hashed.
func keep(t *testing.T, p *Part, i int) {
	t.Helper()
	_, err := p.WriteAt(chunk(i), int64(i)*ChunkBytes)
	must(t, errors.Join(err, p.Keep(SumOf(chunk(i)), nil)))
}

// Chunks that are kept may be read, others not; they are hashed once it is asked.
func TestChunks(t *testing.T) {
	c := open(t, Config{})
	f := lfs("model.safetensors", big)
	p := begin(t, c, f)
	keep(t, p, 0)
	if p.Prefix() != ChunkBytes || len(p.Sums()) != 1 || p.Sums()[0] != SumOf(chunk(0)) || !p.Has(0) || p.Has(1) {
		t.Fatalf("the prefix is %d", p.Prefix())
	}
	if _, err := p.ReadAt(make([]byte, 10), ChunkBytes); !errors.Is(err, ErrAbsent) {
		t.Errorf("what is not there was read: %v", err)
	}
	got := make([]byte, 10)
	if _, err := p.ReadAt(got, 100); err != nil || !bytes.Equal(got, chunk(0)[100:110]) {
		t.Errorf("other bytes were read: %v", err)
	}
	if err := p.Finish(false); !errors.Is(err, ErrAbsent) {
		t.Fatalf("it is finished without two chunks: %v", err)
	}
	keep(t, p, 1)
	keep(t, p, 2)
	must(t, p.Finish(false))
	check(t, c, f, big)
}

// A node whose source is gone goes on from outside, across a kill.
func TestSourcesChange(t *testing.T) {
	c := open(t, Config{})
	f := lfs("model.safetensors", big)
	p := begin(t, c, f)
	keep(t, p, 0)
	keep(t, p, 1)
	_, err := p.Write(chunk(2)[:100])
	must(t, err)
	crash(p)
	p = begin(t, c, f)
	if p.Prefix() != 2*ChunkBytes {
		t.Fatalf("it goes on at %d", p.Prefix())
	}
	_, err = p.Write(chunk(2))
	must(t, errors.Join(err, p.Finish(false)))
	check(t, c, f, big)
}

// Wrong content never becomes a blob, and is not gone on with.
func TestWrongContent(t *testing.T) {
	c := open(t, Config{})
	f := lfs("a", []byte("right"))
	p := begin(t, c, f)
	_, err := p.Write([]byte("wrong"))
	must(t, err)
	if err := p.Finish(false); !errors.Is(err, ErrSum) {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(c.at("*", f.ETag()+"*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	p = begin(t, c, f)
	if _, err := p.Write([]byte("right and more")); !errors.Is(err, ErrSum) {
		t.Errorf("a longer one: %v", err)
	}
	_, err = p.Write([]byte("right"))
	must(t, errors.Join(err, p.Finish(false)))
	check(t, c, f, []byte("right"))
	for _, g := range []File{git("b", "text"), git("c", "")} { // git's sums, and nothing at all
		put(t, c, g, []byte("text")[:g.Size])
		check(t, c, g, []byte("text")[:g.Size])
	}
}

// Two pulls of one file at once: the second is told, whichever program has it, and by whatever lock.
func TestTwoWriters(t *testing.T) {
	c := open(t, Config{})
	f := lfs("a", []byte("right"))
	p := begin(t, c, f)
	if _, err := c.Begin(repo, f); !errors.Is(err, ErrBusy) {
		t.Fatalf("a second writer: %v", err)
	}
	must(t, p.Close())
	lock := filepath.Join(c.cfg.Dir, ".locks", repo.dir(), f.ETag()+".lock")
	theirs, err := os.OpenFile(lock, os.O_RDWR|os.O_TRUNC, 0) // as filelock does
	must(t, err)
	must(t, unix.Flock(int(theirs.Fd()), unix.LOCK_EX))
	if _, err := c.Begin(repo, f); !errors.Is(err, ErrBusy) {
		t.Errorf("beside huggingface_hub: %v", err)
	}
	must(t, theirs.Close())
	put(t, c, f, []byte("right"))

	soft := open(t, Config{})
	soft.flock = func(int, int) error { return unix.ENOSYS }
	p = begin(t, soft, f)
	if _, err := soft.Begin(repo, f); !errors.Is(err, ErrBusy) {
		t.Errorf("a second writer without flock: %v", err)
	}
	lock = filepath.Join(soft.cfg.Dir, ".locks", repo.dir(), f.ETag()+".lock")
	if text, err := os.ReadFile(lock); err != nil || !strings.Contains(string(text), "\n") {
		t.Errorf("the soft lock says %q, %v", text, err)
	}
	must(t, p.Close())
	if _, err := os.Lstat(lock); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the soft lock stays: %v", err)
	}
	must(t, os.WriteFile(lock, nil, 0o644)) // an old filelock's is empty
	if _, err := soft.Begin(repo, f); !errors.Is(err, ErrBusy) {
		t.Errorf("beside an old soft lock: %v", err)
	}
	host, err := os.Hostname()
	must(t, err)
	for text, free := range map[string]bool{"1\n" + host + "\n": false, "half": false,
		"4194300\nelsewhere\n": false, dead(t) + "\n" + host + "\n": true} {
		must(t, os.WriteFile(lock, []byte(text), 0o644))
		p, err := soft.Begin(repo, f)
		if (err == nil) != free || err != nil && !errors.Is(err, ErrBusy) {
			t.Errorf("beside a soft lock of %q: %v", text, err)
		}
		if err == nil {
			must(t, p.Close())
		}
	}
}

// dead is the pid of a process that is gone.
func dead(t *testing.T) string {
	cmd := exec.Command("true")
	must(t, cmd.Run())
	return fmt.Sprint(cmd.Process.Pid)
}

// A full disk is told before anything is fetched; what has been begun has its room.
func TestFullDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a small disk takes root")
	}
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64m"))
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	c := open(t, Config{Dir: filepath.Join(dir, "hub"), Reserve: func(total int64) int64 { return total / 16 }})
	f := lfs("model.safetensors", big) // 40 MiB
	p := begin(t, c, f)
	if _, err := c.Begin(repo, lfs("other", big[1:])); !errors.Is(err, ErrRoom) {
		t.Fatalf("a second file of that size: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "filler"), make([]byte, 64<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	_, err := p.Write(big) // its progress cannot be kept meanwhile, which is no reason to stop
	must(t, errors.Join(err, p.Finish(false)))
	check(t, c, f, big)
	if err := c.Room(20 << 20); !errors.Is(err, ErrRoom) {
		t.Errorf("the reserve was given away: %v", err)
	}
}

// A disk that fails while a part is written down is told by the next write.
func TestSaverFails(t *testing.T) {
	c := open(t, Config{})
	p := begin(t, c, lfs("model.safetensors", big))
	must(t, os.Mkdir(c.at(ours, p.file.ETag()+".json"), 0o700)) // no file can take its place
	_, err := p.Write(big[:ChunkBytes])
	must(t, err)
	<-p.done
	if _, err := p.Write(big[ChunkBytes:]); err == nil {
		t.Error("nobody was told")
	}
	if err := p.Close(); err == nil {
		t.Error("it was closed in silence")
	}
}

// A whole file is handed on by the sums that its chunks had when it came, and is not removed meanwhile.
func TestBlob(t *testing.T) {
	c := open(t, Config{})
	f := lfs("model.safetensors", big)
	if _, err := c.OpenBlob(repo, f); !errors.Is(err, ErrAbsent) {
		t.Fatal(err)
	}
	put(t, c, f, big)
	b, err := c.OpenBlob(repo, f)
	must(t, err)
	got := make([]byte, len(chunk(2)))
	_, err = b.ReadAt(got, 2*ChunkBytes)
	if sum, ok := b.Sum(2); err != nil || !ok || SumOf(got) != sum {
		t.Errorf("chunk 2: %v, %v", ok, err)
	}
	if _, ok := b.Sum(3); ok {
		t.Error("there is a chunk 3")
	}
	if err := c.Remove(repo, ""); !errors.Is(err, ErrInUse) {
		t.Errorf("removed while it is handed on: %v", err)
	}
	must(t, b.Close())
	must(t, os.Remove(c.at(ours, f.ETag()+".sums"))) // as if another tool had fetched it
	b, err = c.OpenBlob(repo, f)
	must(t, err)
	defer b.Close()
	if _, ok := b.Sum(0); ok {
		t.Error("a sum that nobody has made")
	}
}

func BenchmarkWrite(b *testing.B) {
	c, err := Open(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.SetBytes(int64(len(big)))
	for b.Loop() {
		p, err := c.Begin(repo, lfs("model.safetensors", big))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Write(big); err != nil {
			b.Fatal(err)
		}
		if err := p.Finish(false); err != nil {
			b.Fatal(err)
		}
	}
}

// What Keep has returned from is not lost by kill -9, though the disk has not told yet; if the machine crashed and the
// bytes are not there, it goes on from what the disk has told.
func TestKilledAfterKeep(t *testing.T) {
	f := lfs("model.safetensors", big)
	for spoilt, want := range map[bool]int64{false: 2 * ChunkBytes, true: 0} {
		c := open(t, Config{})
		p := begin(t, c, f)
		for i := range 2 {
			_, err := p.WriteAt(chunk(i), int64(i)*ChunkBytes)
			must(t, errors.Join(err, p.Keep(SumOf(chunk(i)), nil)))
		}
		crash(p)
		must(t, os.RemoveAll(c.at(ours, f.ETag()+".json"))) // as if the disk had been slower
		if spoilt {
			part, err := os.OpenFile(c.at(ours, f.ETag()+".part"), os.O_WRONLY, 0)
			must(t, err)
			_, err = part.WriteAt([]byte("spoilt"), ChunkBytes+5)
			must(t, errors.Join(err, part.Close()))
		}
		if p = begin(t, c, f); p.Prefix() != want {
			t.Errorf("spoilt %v: it goes on at %d, want %d", spoilt, p.Prefix(), want)
		}
	}
}
