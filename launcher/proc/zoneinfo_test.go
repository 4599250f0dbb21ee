package proc

import "testing"

func TestParseFreeOnCPUs(t *testing.T) {
	const zones = `Node 0, zone    DMA32
  pages free     176114
        low      13856
      nr_free_pages 176114
  pagesets
    cpu: 0
              count: 13312
              high:  13856
              batch: 63
  vm stats threshold: 16
    cpu: 1
              count: 2
Node 0, zone   Normal
    cpu: 0
              count:    40
`
	if n := ParseFreeOnCPUs(zones, 4096); n != 13354*4096 {
		t.Errorf("got %d pages", n/4096)
	}
	m, err := Here.Memory()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := Here.FreeOnCPUs(); err != nil || n <= 0 || n > m.Total {
		t.Errorf("this machine: %d of %d, %v", n, m.Total, err)
	}
}
