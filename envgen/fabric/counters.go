package fabric

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/sparkrun/sparkrun/envgen"
)

// Reading is the state of all counters of the node's RDMA devices at one moment.
type Reading struct {
	At time.Time
	// Counts are by device, then by file name; each only rises, until the device is reset.
	Counts map[string]map[string]uint64
}

// counterFolders hold one number per file: the IB-defined counters of the port, and the vendor's (mlx5:
// packet_seq_err, out_of_sequence, rnr_nak_retry_err, roce_adp_retrans, ...). No name is in both.
var counterFolders = []string{"counters", "hw_counters"}

// Counters reads the counters of every RDMA device. On real hardware each read of a vendor's counter is a request
// to the card's firmware, which the kernel sends at most every 10 ms (hw_counters/lifespan): call it seldom. A
// counter that cannot be read is left out.
func (r *Reader) Counters() Reading {
	return Reading{At: time.Now(), Counts: r.sysfs.counters()}
}

// Bytes are what each interface of this network namespace has received and sent since it came up, as rx_bytes and
// tx_bytes; RDMA traffic is not included. It asks the kernel, whatever the sysfs root is.
func (r *Reader) Bytes(ctx context.Context) (map[string]map[string]uint64, error) {
	found, err := dump(ctx, netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	all := map[string]map[string]uint64{}
	for _, l := range found {
		if a := l.Attrs(); a.Statistics != nil {
			all[a.Name] = map[string]uint64{"rx_bytes": a.Statistics.RxBytes, "tx_bytes": a.Statistics.TxBytes}
		}
	}
	return all, nil
}

func (s sysfs) counters() map[string]map[string]uint64 {
	all := map[string]map[string]uint64{}
	entries, err := fs.ReadDir(s.fsys, "class/infiniband")
	if err != nil {
		return all
	}
	for _, e := range entries {
		counts := map[string]uint64{}
		for _, folder := range counterFolders {
			s.counterFolder("class/infiniband/"+e.Name()+"/"+rdmaPort+"/"+folder, counts)
		}
		if len(counts) > 0 {
			all[e.Name()] = counts
		}
	}
	return all
}

func (s sysfs) counterFolder(dir string, into map[string]uint64) {
	entries, err := fs.ReadDir(s.fsys, dir)
	if err != nil {
		return
	}
	read, closeFolder := s.folder(dir)
	defer closeFolder()
	for _, e := range entries {
		if e.Name() == "lifespan" { // of the kernel's cache, in ms
			continue
		}
		text, err := read(e.Name())
		if err != nil {
			continue
		}
		if n, err := parseCounter(string(text)); err == nil {
			into[e.Name()] = n
		}
	}
}

// parseCounter reads one counter; a port that has no such counter says "N/A (no PMA)".
func parseCounter(text string) (uint64, error) {
	return strconv.ParseUint(strings.TrimSpace(text), 10, 64)
}

// Since gives what each device counted between two readings, by device name. A counter that is lower now was reset
// in between, and has counted what it shows since then.
func (now Reading) Since(before Reading) []envgen.Counters {
	var out []envgen.Counters
	for _, device := range slices.Sorted(maps.Keys(now.Counts)) {
		then, known := before.Counts[device]
		if !known {
			continue
		}
		c := envgen.Counters{HCA: device, Span: now.At.Sub(before.At), Counts: map[string]uint64{}}
		for name, n := range now.Counts[device] {
			was, counted := then[name]
			switch {
			case !counted:
			case n < was:
				c.Counts[name] = n
			default:
				c.Counts[name] = n - was
			}
		}
		out = append(out, c)
	}
	return out
}
