package relay

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cached is how many bytes of a file are in the page cache.
func cached(t *testing.T, f *os.File, size int) (n int) {
	t.Helper()
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(m)
	page := os.Getpagesize()
	in := make([]byte, (size+page-1)/page)
	_, _, errno := syscall.Syscall(syscall.SYS_MINCORE, uintptr(unsafe.Pointer(&m[0])), uintptr(size),
		uintptr(unsafe.Pointer(&in[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, b := range in {
		n += int(b&1) * page
	}
	return n
}

// What is written stays in the page cache for those that come right behind, and no longer:
// it is memory that the GPU shares. So it is for what is read.
func TestPageCacheIsLeft(t *testing.T) {
	dir := t.TempDir()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type == unix.TMPFS_MAGIC {
		t.Skip("the temporary folder is in memory")
	}
	const chunk = 1 << 20
	content := randomBytes(40 * chunk)
	cut := layout{int64(len(content)), chunk}
	p, err := openPart(filepath.Join(dir, "x"), "x", cut)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	keepAll(t, p, content, 38)
	if err := p.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := cached(t, p.data, 38*chunk); got < behind*chunk || got > (behind+2*unsynced)*chunk {
		t.Errorf("%d KiB are cached after writing, want the last %d to %d", got>>10, behind<<10, (behind+2*unsynced)<<10)
	}
	keepAll(t, p, content, 40)
	if err := p.Sync(); err != nil {
		t.Fatal(err)
	}
	f, err := New(Config{Size: cut.size, SHA256: hexSum(content), Part: p, Kept: Kept{Sums: make([]Sum, 40)},
		Chain: make([]Member, 1), Buffers: NewBuffers(1), chunk: chunk})
	if err == nil {
		err = f.Run(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	body, err := f.Open(t.Context(), 0, cut.size)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	if _, err := got.ReadFrom(body); err != nil || !bytes.Equal(got.Bytes(), content) {
		t.Fatalf("%v, or wrong bytes", err)
	}
	body.Close()
	if got := cached(t, p.data, len(content)); got > 2*chunk {
		t.Errorf("%d KiB are cached after all was read", got>>10)
	}
}
