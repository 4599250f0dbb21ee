package relay

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
)

// asChild is set in a process that TestKilledProcess starts.
const asChild = "RELAY_TEST_CHILD"

// child is what such a process is told.
type child struct {
	URL, Path, SHA256 string
	Size, Chunk       int64
	Files             int // at once
}

func TestMain(m *testing.M) {
	if told := os.Getenv(asChild); told != "" {
		var c child
		err := json.Unmarshal([]byte(told), &c)
		if err == nil {
			err = c.runAll()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func (c child) runAll() error {
	var g errgroup.Group
	buffers := NewBuffers(3)
	for i := range c.Files {
		g.Go(func() error { return c.run(fmt.Sprint(c.Path, i), buffers) })
	}
	err := g.Wait()
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		if strings.HasPrefix(line, "VmHWM:") {
			fmt.Print(line)
		}
	}
	return err
}

func (c child) run(path string, buffers *Buffers) error {
	part, err := openPart(path, c.SHA256, layout{c.Size, c.Chunk})
	if err != nil {
		return err
	}
	f, err := New(Config{Size: c.Size, SHA256: c.SHA256, Part: part, Kept: part.Kept(), Chain: make([]Member, 1),
		Outside: overHTTP(c.URL), Buffers: buffers, chunk: c.Chunk})
	if err != nil {
		return err
	}
	return errors.Join(f.Run(context.Background()), part.Close())
}

// overHTTP is an outside.
func overHTTP(url string) func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
	return func(ctx context.Context, off, n int64) (io.ReadCloser, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+n-1))
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return nil, err
		}
		if resp.StatusCode != http.StatusPartialContent {
			resp.Body.Close()
			return nil, errors.New(resp.Status)
		}
		return resp.Body, nil
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{3}).Read(b)
	return b
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hexOf(sum[:])
}

func hexOf(sum []byte) string { return hex.EncodeToString(sum) }

// A killed process goes on where it was: from outside nothing comes twice but what it had in
// memory, and what lay in sockets.
func TestKilledProcess(t *testing.T) {
	content := randomBytes(60*testChunk + 5)
	var mu sync.Mutex
	asked := map[int64]int{} // requests by their first byte
	last := 0                // requests until the process is killed
	var kill func()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		off, n, ok := parseRange(r.Header.Get("Range"))
		if !ok {
			http.Error(w, "no range", http.StatusBadRequest)
			return
		}
		mu.Lock()
		asked[off]++
		if last--; last == 0 {
			kill()
		}
		mu.Unlock()
		w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(content[off : off+n])
	}))
	defer srv.Close()
	path := filepath.Join(t.TempDir(), "model.part")
	told, _ := json.Marshal(child{srv.URL, path, hexSum(content), int64(len(content)), testChunk, 1})
	kills := 0
	for {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), asChild+"="+string(told))
		out := &bytes.Buffer{}
		cmd.Stderr = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		last, kill = 1+rand.IntN(15), func() { _ = cmd.Process.Kill() }
		mu.Unlock()
		err := cmd.Wait()
		if err == nil {
			break
		}
		if cmd.ProcessState.Exited() {
			t.Fatalf("%v: %s", err, out)
		}
		if kills++; kills > 200 {
			t.Fatal("it does not get on")
		}
	}
	got, err := os.ReadFile(path + "0")
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("wrong bytes, or %v", err)
	}
	again := 0
	for _, times := range asked {
		again += times - 1
	}
	if most := kills * outsideConns; again > most {
		t.Errorf("%d pieces were asked for again after %d kills, want %d at most", again, kills, most)
	}
	t.Logf("%d kills, %d of %d pieces again", kills, again, len(asked))
}

// TestMemoryIsBounded fetches more files at once than there are buffers.
func TestMemoryIsBounded(t *testing.T) {
	if info, ok := debug.ReadBuildInfo(); !ok || slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("the race detector's memory is not ours")
	}
	content := randomBytes(4*ChunkBytes + 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	defer srv.Close()
	told, _ := json.Marshal(child{srv.URL, filepath.Join(t.TempDir(), "x"), hexSum(content), int64(len(content)), ChunkBytes, 5})
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asChild+"="+string(told))
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var kB int
	if _, err := fmt.Sscanf(string(out), "VmHWM: %d kB", &kB); err != nil || kB > 90<<10 {
		t.Errorf("%s (%v), want 90 MiB at most, of which 48 are chunks", out, err)
	}
	t.Logf("%s", out)
}

func sumOf(t testing.TB, cut layout, chunk []byte) Sum {
	t.Helper()
	sum, err := layout{int64(len(chunk)), cut.chunk}.sum(0, bytes.NewReader(chunk), nil)
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

func keepAll(t *testing.T, p *FilePart, content []byte, n int) {
	t.Helper()
	for i := p.n; i < n; i++ {
		off, size := p.cut.at(i)
		chunk := content[off : off+size]
		if _, err := p.WriteAt(chunk, off); err != nil {
			t.Fatal(err)
		}
		if err := p.Keep(sumOf(t, p.cut, chunk), []byte{byte(i)}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPartIsTakenUp(t *testing.T) {
	content := randomBytes(20*testChunk + 9)
	cut := layout{int64(len(content)), testChunk}
	for _, c := range []struct {
		name   string
		spoil  func(t *testing.T, path string)
		as     string
		chunks int
	}{
		{"whole", func(*testing.T, string) {}, "a", 15},
		{"a record that was half written", func(t *testing.T, path string) {
			truncate(t, path+".sums", headBytes+14*recordBytes+50)
		}, "a", 14},
		{"a record of zeroes", func(t *testing.T, path string) {
			overwrite(t, path+".sums", headBytes+13*recordBytes, make([]byte, recordBytes))
		}, "a", 13},
		{"bytes that the disk did not have", func(t *testing.T, path string) {
			overwrite(t, path, 12*testChunk, make([]byte, testChunk))
		}, "a", 12},
		{"bytes that end early", func(t *testing.T, path string) { truncate(t, path, 11*testChunk+5) }, "a", 11},
		{"another file's", func(*testing.T, string) {}, "b", 0},
		{"no sidecar", func(t *testing.T, path string) { os.Remove(path + ".sums") }, "a", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.part")
			p, err := openPart(path, "a", cut)
			if err != nil {
				t.Fatal(err)
			}
			keepAll(t, p, content, 15)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			c.spoil(t, path)
			if p, err = openPart(path, c.as, cut); err != nil {
				t.Fatal(err)
			}
			k := p.Kept()
			if len(k.Sums) != c.chunks || k.At != c.chunks || c.chunks > 0 && k.Hash[0] != byte(c.chunks-1) {
				t.Errorf("taken up: %d chunks, hash after %d; want %d", len(k.Sums), k.At, c.chunks)
			}
			keepAll(t, p, content, 21) // and it goes on
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if got, _ := os.ReadFile(path); !bytes.Equal(got, content) {
				t.Error("wrong bytes")
			}
			if p, err = openPart(path, c.as, cut); err != nil || len(p.Kept().Sums) != 21 {
				t.Errorf("%d chunks at the end, error %v", len(p.Kept().Sums), err)
			}
			p.Close()
		})
	}
}

func truncate(t *testing.T, path string, n int64) {
	t.Helper()
	if err := os.Truncate(path, n); err != nil {
		t.Fatal(err)
	}
}

func overwrite(t *testing.T, path string, off int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(b, off)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// A held file is a source without any sidecar; where the disk has lost a bit since, nobody
// takes the copy for right.
func TestHeldFile(t *testing.T) {
	content := randomBytes(5*testChunk + 100)
	blob := sha1.New()
	fmt.Fprintf(blob, "blob %d\x00", len(content))
	blob.Write(content)
	sums := Kept{}
	for chunk := range slices.Chunk(content, testChunk) {
		sums.Sums = append(sums.Sums, sumOf(t, layout{chunk: testChunk}, chunk))
	}
	for _, c := range []struct {
		spoilt bool
		kept   Kept
	}{{false, Kept{}}, {true, Kept{}}, {false, sums}, {true, sums}} {
		have := &memPart{data: bytes.Clone(content)}
		if c.spoilt {
			have.data[70_000] ^= 1
		}
		cfg := Config{Size: int64(len(content)), GitSHA1: hex.EncodeToString(blob.Sum(nil)), Part: have, Kept: c.kept,
			chunk: testChunk}
		held, err := Hold(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		cfg.Event = func(e Event) {
			if e.Err != nil {
				stop(e.Err) // there is no other source
			}
		}
		got := &memPart{data: make([]byte, len(content))}
		cfg.Part, cfg.Kept, cfg.Chain, cfg.Self, cfg.Buffers = got, Kept{}, []Member{{"holder", held}, {}}, 1, NewBuffers(2)
		f, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		err = f.Run(ctx)
		want := map[bool]error{false: ErrSum, true: ErrWrongBytes}[c.kept.Sums != nil]
		if c.spoilt && !errors.Is(err, want) {
			t.Errorf("a spoilt file: %v, want %v", err, want)
		}
		if !c.spoilt && (err != nil || !bytes.Equal(got.data, content)) {
			t.Errorf("%v, or wrong bytes", err)
		}
		stop(nil)
	}
}

func TestSumOf(t *testing.T) {
	for _, n := range []int{1, ChunkBytes / leaves, ChunkBytes/leaves + 1, ChunkBytes} {
		b := randomBytes(n)
		if SumOf(b) != sumOf(t, layout{chunk: ChunkBytes}, b) {
			t.Errorf("of %d bytes in memory there is another sum than of those in a file", n)
		}
	}
}

// TestOverHTTP hands a file down a chain over sockets, with several readers of each node.
func TestOverHTTP(t *testing.T) {
	content := randomBytes(30*testChunk + 1)
	outside := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}))
	defer outside.Close()
	const nodes = 4
	var mu sync.Mutex
	files := make([]*File, nodes)
	urls := make([]string, nodes)
	for i := range nodes {
		srv := httptest.NewServer(Handler(func(_ *http.Request, key string) (Source, error) {
			mu.Lock()
			defer mu.Unlock()
			if key != "model/1" || files[i] == nil {
				return nil, errors.New("nothing of it here")
			}
			return files[i], nil
		}))
		defer srv.Close()
		urls[i] = srv.URL
	}
	var running sync.WaitGroup
	for i := range nodes {
		part, err := openPart(filepath.Join(t.TempDir(), "x"), "x", layout{int64(len(content)), testChunk})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { part.Close() }) // others read it until then
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 20}}
		defer client.CloseIdleConnections()
		cfg := Config{Size: int64(len(content)), SHA256: hexSum(content), Part: part, Self: i, Buffers: NewBuffers(3),
			Outside: overHTTP(outside.URL), chunk: testChunk}
		cfg.Event = func(e Event) {
			if e.Err != nil {
				t.Errorf("node%d left %s: %v", i, e.Source, e.Err)
			}
		}
		for j := range nodes {
			cfg.Chain = append(cfg.Chain, Member{strconv.Itoa(j), Remote{client, urls[j], "model/1"}})
		}
		f, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		files[i] = f
		mu.Unlock()
		running.Go(func() {
			if err := errors.Join(f.Run(t.Context()), part.Sync()); err != nil {
				t.Errorf("node%d: %v", i, err)
			}
			if got, _ := os.ReadFile(part.data.Name()); !bytes.Equal(got, content) {
				t.Errorf("node%d: wrong bytes", i)
			}
		})
	}
	running.Wait()
}

func TestHandlerRefuses(t *testing.T) {
	held, err := Hold(Config{Size: 10, SHA256: hexSum(make([]byte, 10)), Part: &memPart{data: make([]byte, 10)}})
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(Handler(func(_ *http.Request, key string) (Source, error) {
		if key != "k" {
			return nil, errors.New("nothing of it here")
		}
		return held, nil
	}))
	defer srv.Close()
	got := map[string]int{}
	for _, span := range []string{"", "bytes=0-10", "bytes=-5", "bytes=3-2", "bytes=0-9"} {
		r, _ := http.NewRequest(http.MethodGet, srv.URL+"/bytes?file=k", nil)
		r.Header.Set("Range", span)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		got[span] = resp.StatusCode
	}
	want := map[string]int{"": 400, "bytes=0-10": 416, "bytes=-5": 400, "bytes=3-2": 400, "bytes=0-9": 206}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := (Remote{http.DefaultClient, srv.URL, "other"}).State(t.Context(), 0, 0); !errors.Is(err, ErrUnknown) ||
		!strings.Contains(err.Error(), "nothing of it here") {
		t.Errorf("an unknown file: %v", err)
	}
}
