package doctor

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// volumes are the mounted disks with their file systems' UUIDs and how the machine reaches them.
func (r *Reader) volumes() []Volume {
	uuids := r.uuids()
	var out []Volume
	for _, v := range parseMounts(r.text("/proc/self/mountinfo")) {
		device := r.blockDevice(v.Device)
		if v.UUID = uuids[device]; v.UUID == "" {
			continue
		}
		v.Transport = r.transport(device, 0)
		out = append(out, v)
	}
	return out
}

// blockDevice is the kernel's name of a device file: /dev/mapper/data is dm-0.
func (r *Reader) blockDevice(path string) string {
	if target, err := os.Readlink(r.at(path)); err == nil {
		path = target
	}
	return filepath.Base(path)
}

// uuids maps the kernel's names of block devices to the UUIDs of the file systems on them, as udev found them.
func (r *Reader) uuids() map[string]string {
	out := map[string]string{}
	for _, link := range r.glob("/dev/disk/by-uuid/*") {
		out[r.blockDevice(link)] = filepath.Base(link)
	}
	return out
}

var nvmeDisk = plain.Pattern(`^nvme(\d+)(c\d+)?n\d+`)

// transport says how a disk is reached, through the layers of device mapper and md.
func (r *Reader) transport(device string, depth int) string {
	if m := nvmeDisk().FindStringSubmatch(device); m != nil {
		// With native multipath the disk belongs to a subsystem, whose controllers have the transport.
		for _, pattern := range []string{"class/nvme-subsystem/nvme-subsys" + m[1] + "/nvme*/transport",
			"class/nvme/nvme" + m[1] + "/transport"} {
			found, _ := filepath.Glob(filepath.Join(r.cfg.Sysfs, pattern))
			for _, path := range found {
				if b, err := os.ReadFile(path); err == nil {
					return strings.TrimSpace(string(b))
				}
			}
		}
	}
	place := filepath.Join(r.cfg.Sysfs, "class/block", device)
	real, err := filepath.EvalSymlinks(place)
	if err != nil {
		return ""
	}
	switch {
	case strings.Contains(real, "/session"):
		return "iscsi"
	case strings.Contains(real, "/rport-"):
		return "fc"
	case strings.Contains(real, "/usb"):
		return "usb"
	case strings.Contains(real, "/ata"):
		return "sata"
	}
	below, _ := filepath.Glob(filepath.Join(real, "slaves/*"))
	if len(below) == 0 || depth > 4 {
		return ""
	}
	return r.transport(filepath.Base(below[0]), depth+1)
}
