package consensus

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

const me = "00000000-0000-4000-8000-000000000001"

func mustStore(t *testing.T, dir string) *boltStore {
	t.Helper()
	s, err := openStore(dir, me)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func entry(i, term uint64, data string) *raft.Log {
	return &raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: []byte(data),
		AppendedAt: time.Unix(0, int64(i+1)*1e9)}
}

// content is everything a node would believe after opening.
type content struct {
	Entries []raft.Log
	Stable  map[string][]byte
	Commit  uint64
}

func contentOf(t testing.TB, s *boltStore) content {
	t.Helper()
	c := content{Stable: *s.stable.Load(), Commit: s.committed()}
	first, _ := s.FirstIndex()
	last, _ := s.LastIndex()
	for i := first; i != 0 && i <= last; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		c.Entries = append(c.Entries, l)
	}
	return c
}

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytesOrNil := func(label string) []byte {
			b := rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, label)
			if len(b) == 0 {
				return nil
			}
			return b
		}
		want := raft.Log{
			Index: rapid.Uint64().Draw(t, "index"), Term: rapid.Uint64().Draw(t, "term"),
			Type: raft.LogType(rapid.Byte().Draw(t, "type")), Data: bytesOrNil("data"), Extensions: bytesOrNil("ext"),
		}
		if rapid.Bool().Draw(t, "timed") {
			want.AppendedAt = time.Unix(0, rapid.Int64Range(1, 1<<60).Draw(t, "at"))
		}
		var got raft.Log
		if err := decodeEntry(encodeEntry(&want), &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
	})
}

// The store behaves as a plain slice of entries, also across reopening.
func TestStoreIsALog(t *testing.T) {
	dir := t.TempDir()
	s := mustStore(t, dir)
	defer func() { s.Close() }()
	var want []raft.Log
	rng := rand.New(rand.NewPCG(1, 2))
	next, term := uint64(1), uint64(1)
	for range 300 {
		switch k := rng.IntN(10); {
		case k < 6:
			var logs []*raft.Log
			for range 1 + rng.IntN(5) {
				l := entry(next, term, strings.Repeat("x", rng.IntN(2000)))
				logs, want, next = append(logs, l), append(want, *l), next+1
			}
			if err := s.StoreLogs(logs); err != nil {
				t.Fatal(err)
			}
		case k < 7 && len(want) > 0: // compaction
			n := rng.IntN(len(want) + 1)
			if n == 0 {
				continue
			}
			if err := s.DeleteRange(want[0].Index, want[n-1].Index); err != nil {
				t.Fatal(err)
			}
			want = want[n:]
		case k < 8 && len(want) > 0: // a conflict
			n := rng.IntN(len(want))
			if err := s.DeleteRange(want[n].Index, want[len(want)-1].Index); err != nil {
				t.Fatal(err)
			}
			next, want, term = want[n].Index, want[:n:n], term+1
		case k < 9:
			if err := s.SetUint64([]byte("CurrentTerm"), term); err != nil {
				t.Fatal(err)
			}
		default:
			s.Close()
			s = mustStore(t, dir)
		}
		if got := contentOf(t, s).Entries; len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatal(cmp.Diff(want, got))
		}
	}
	if err := s.StoreLog(entry(next+1, term, "gap")); err == nil && len(want) > 0 {
		t.Error("a gap was stored")
	}
	var l raft.Log
	if err := s.GetLog(next+7, &l); err != raft.ErrLogNotFound {
		t.Errorf("a missing entry: %v", err)
	}
	if _, err := s.Get([]byte("nothing")); err == nil || err.Error() != "not found" {
		t.Errorf("a missing key: %v; raft compares the text", err)
	}
}

// fill makes a folder with branch pages, inline buckets and overflow pages.
func fill(t *testing.T, dir string) content {
	t.Helper()
	s := mustStore(t, dir)
	for i := uint64(1); i <= 120; i++ {
		size := 40
		if i%40 == 0 {
			size = 9000
		}
		s.commit(i / 2)
		if err := s.StoreLog(entry(i, 1+i/50, strings.Repeat("d", size))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.SetUint64([]byte("CurrentTerm"), 7), s.SetUint64([]byte("LastVoteTerm"), 7),
		s.Set([]byte("LastVoteCand"), []byte(me)), s.DeleteRange(1, 20)); err != nil {
		t.Fatal(err)
	}
	c := contentOf(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return c
}

// One flipped bit anywhere: the file is refused by name, or it did not matter.
// It never crashes the process and never changes what is read.
func TestBitFlips(t *testing.T) {
	dir := t.TempDir()
	want := fill(t, dir)
	path := filepath.Join(dir, logFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	refused, harmless := 0, 0
	check := func(pos int, bit byte) {
		b := bytes.Clone(whole)
		b[pos] ^= bit
		im, err := parseImage(bytes.NewReader(b), int64(len(b)))
		if err == nil {
			err = im.check()
		}
		if err != nil {
			refused++
			return
		}
		harmless++
		// The tree is sound: bbolt must read the same out of it.
		flipped := filepath.Join(t.TempDir(), "flipped")
		if err := os.MkdirAll(flipped, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(flipped, logFile), b, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := openStore(flipped, me)
		if err != nil {
			t.Fatalf("byte %d: sound, but: %v", pos, err)
		}
		if got := contentOf(t, s); !reflect.DeepEqual(want, got) {
			t.Fatalf("byte %d bit %#x: other content:\n%s", pos, bit, cmp.Diff(want, got))
		}
		s.Close()
	}
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 2 * pageSize { // both meta pages, wholly
		check(i, 1<<rng.IntN(8))
		if i%pageSize > 120 { // the rest of such a page is unused
			break
		}
	}
	for range 1500 {
		check(rng.IntN(len(whole)), 1<<rng.IntN(8))
	}
	t.Logf("%d refused, %d harmless of a file of %d bytes", refused, harmless, len(whole))
	if refused < 200 {
		t.Errorf("only %d flips were refused", refused)
	}
}

// What a person reads on the node that will not start.
func TestOpenRefusesDamage(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, dir string) (file string){
		"bit in an entry": func(t *testing.T, dir string) string {
			return flip(t, filepath.Join(dir, logFile), []byte("dddddddd"))
		},
		"older meta page only": func(t *testing.T, dir string) string {
			p := filepath.Join(dir, logFile)
			b, _ := os.ReadFile(p)
			b[pageHeader+50] ^= 1
			os.WriteFile(p, b, 0o600)
			return p
		},
		"cut short": func(t *testing.T, dir string) string {
			p := filepath.Join(dir, logFile)
			os.Truncate(p, 3*pageSize)
			return p
		},
		"empty file": func(t *testing.T, dir string) string {
			p := filepath.Join(dir, logFile)
			os.Truncate(p, 0)
			return p
		},
		"snapshot state": func(t *testing.T, dir string) string {
			p := glob(t, dir, "snapshots/*/state.bin")
			flip(t, p, []byte("Entries"))
			return filepath.Dir(p)
		},
		"snapshot membership": func(t *testing.T, dir string) string {
			p := glob(t, dir, "snapshots/*/meta.json")
			flip(t, p, []byte("000000001"))
			return filepath.Dir(p)
		},
		"log lost": func(t *testing.T, dir string) string {
			os.Remove(filepath.Join(dir, logFile))
			return dir
		},
		"snapshots lost": func(t *testing.T, dir string) string {
			os.RemoveAll(filepath.Join(dir, "snapshots"))
			return dir
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, lead := start(t, 1, false, func(c *Config) { c.TrailingLogs = 2 })
			for range 10 {
				c.apply(lead, strings.Repeat("d", 40))
			}
			if err := lead.Snapshot(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.apply(lead, strings.Repeat("d", 40))
			c.crash(lead)
			file := damage(t, lead.dir)
			err := c.open(lead, false)
			var ce *CorruptError
			if !errors.As(err, &ce) {
				t.Fatalf("open: %v, want a CorruptError", err)
			}
			if !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "refuses to vote") {
				t.Errorf("%q names neither %s nor the way out", err, file)
			}
		})
	}
}

func glob(t *testing.T, dir, pattern string) string {
	t.Helper()
	m, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(m) == 0 {
		t.Fatalf("%s: %v, %v", pattern, m, err)
	}
	return m[0]
}

func flip(t *testing.T, path string, at []byte) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil || !bytes.Contains(b, at) {
		t.Fatalf("%s: no %q: %v", path, at, err)
	}
	// Every copy: which page is in use is bbolt's business.
	bad := bytes.Clone(at)
	bad[2] ^= 2
	b = bytes.ReplaceAll(b, at, bad)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A copied machine brings its state folder along under another id.
func TestOtherNodesFolder(t *testing.T) {
	dir := t.TempDir()
	mustStore(t, dir).Close()
	if _, err := openStore(dir, nodeID(2)); err == nil || !strings.Contains(err.Error(), "belongs to node "+me) {
		t.Errorf("opened by another node: %v", err)
	}
}

// A crash between a snapshot's arrival and the log's replacement.
func TestReconcile(t *testing.T) {
	for _, tc := range []struct {
		name        string
		first, last uint64 // of the log
		terms       func(i uint64) uint64
		snapIndex   uint64
		snapTerm    uint64
		want        [2]uint64
		corrupt     bool
	}{
		{name: "log within", first: 1, last: 5, snapIndex: 9, snapTerm: 3, want: [2]uint64{0, 0}},
		{name: "log agrees", first: 1, last: 12, snapIndex: 9, snapTerm: 1, want: [2]uint64{1, 12}},
		{name: "log conflicts", first: 1, last: 12, snapIndex: 9, snapTerm: 2, want: [2]uint64{0, 0}},
		{name: "log follows", first: 10, last: 12, snapIndex: 9, snapTerm: 1, want: [2]uint64{10, 12}},
		{name: "gap", first: 11, last: 12, snapIndex: 9, snapTerm: 1, corrupt: true},
		{name: "no snapshot", first: 1, last: 3, want: [2]uint64{1, 3}},
		{name: "no snapshot, no beginning", first: 2, last: 3, corrupt: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := mustStore(t, t.TempDir())
			defer s.Close()
			for i := tc.first; i <= tc.last; i++ {
				if err := s.StoreLog(entry(i, 1, "")); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.SetUint64([]byte("CurrentTerm"), 3); err != nil {
				t.Fatal(err)
			}
			cfg, err := (Config{ID: me, Dir: "d", Machine: &list{}, Transport: inmem()}).withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			n := &Raft{cfg: cfg, log: cfg.Logger,
				store: &failStop{disk: s, limit: time.Minute, fatal: func(err error) { t.Error(err) }}}
			var meta *raft.SnapshotMeta
			if tc.snapIndex > 0 {
				meta = &raft.SnapshotMeta{Index: tc.snapIndex, Term: tc.snapTerm}
			}
			err = n.reconcile(meta)
			var ce *CorruptError
			if errors.As(err, &ce) != tc.corrupt || (err != nil) != tc.corrupt {
				t.Fatalf("reconcile: %v", err)
			}
			if first, last := s.cur.Load().first, s.cur.Load().last; !tc.corrupt && [2]uint64{first, last} != tc.want {
				t.Errorf("log %d-%d, want %v", first, last, tc.want)
			}
		})
	}
}

func inmem() raft.Transport {
	_, tr := raft.NewInmemTransport("")
	return tr
}

// Two processes on one folder.
func TestLocked(t *testing.T) {
	dir := t.TempDir()
	s := mustStore(t, dir)
	defer s.Close()
	if _, err := openStore(dir, me); err == nil || !strings.Contains(err.Error(), "another agent") {
		t.Errorf("opened twice: %v", err)
	}
}

func FuzzEntry(f *testing.F) {
	f.Add(encodeEntry(entry(3, 2, "data")))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		// The checksum would hide everything from the fuzzer.
		var l raft.Log
		if decodeEntry(sealed(b), &l) == nil && !bytes.Equal(encodeEntry(&l), sealed(b)) {
			t.Fatalf("%x was read as %+v, which is %x", sealed(b), l, encodeEntry(&l))
		}
		decodeEntry(b, &l)
		decodeState(sealed(b))
	})
}

// No bytes at all may crash the reader or make it ask for much memory.
func FuzzImage(f *testing.F) {
	dir := f.TempDir()
	s, err := openStore(dir, me)
	if err != nil {
		f.Fatal(err)
	}
	for i := uint64(1); i < 90; i++ {
		if err := s.StoreLog(entry(i, 1, fmt.Sprint("entry ", i))); err != nil {
			f.Fatal(err)
		}
	}
	s.Close()
	whole, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(2*pageSize), []byte{0xff}, uint32(3*pageSize), []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, a uint32, x []byte, b uint32, y []byte) {
		img := slices.Clone(whole)
		for _, p := range []struct {
			at uint32
			b  []byte
		}{{a, x}, {b, y}} {
			copy(img[int(p.at)%len(img):], p.b)
		}
		if im, err := parseImage(bytes.NewReader(img), int64(len(img))); err == nil {
			im.check()
		}
	})
}
