package proc

import (
	"os"
	"strconv"
	"strings"
)

// FreeOnCPUs is the free memory that the CPUs keep on lists of their own, in bytes. MemFree and MemAvailable leave it out.
// What a large file has held, or a process, passes through them as it is freed. All together take up to a zone's low
// watermark, and since Linux 6.7 up to an eighth of it (mm/page_alloc.c, zone_highsize).
func (fs FS) FreeOnCPUs() (int64, error) {
	b, err := os.ReadFile(string(fs) + "/zoneinfo")
	if err != nil {
		return 0, err
	}
	return ParseFreeOnCPUs(string(b), int64(os.Getpagesize())), nil
}

// ParseFreeOnCPUs reads /proc/zoneinfo (mm/vmstat.c, zoneinfo_show_print): "count" is of pages, one a CPU and zone.
func ParseFreeOnCPUs(text string, page int64) (free int64) {
	for line := range strings.Lines(text) {
		if count, is := strings.CutPrefix(strings.TrimSpace(line), "count:"); is {
			n, _ := strconv.ParseInt(strings.TrimSpace(count), 10, 64)
			free += n * page
		}
	}
	return free
}
