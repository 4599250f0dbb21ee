package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// A veth is no ConnectX, so that sparkrun would not take it for the fabric. The hosts'
// agents therefore read a simulated sysfs root in which the two fabric interfaces have
// RDMA devices, as scripts/lab has it. There is none in truth: NCCL is told so by
// --env NCCL_NET=Socket, and goes by TCP over the interfaces that sparkrun chose.

var rdma = map[string]struct{ pci, hca string }{
	primary: {"0000:01:00.0", "rocep1s0f0"},
	twin:    {"0002:01:00.0", "roceP2p1s0f0"},
}

// sysfs writes the root of a host's /sys as far as sparkrun reads it.
func sysfs(root string, host int) error {
	files := map[string]string{}
	links := map[string]string{}
	for _, n := range nics {
		r, fabric := rdma[n.name]
		pci, vendor := r.pci, "0x15b3"
		if !fabric {
			pci, vendor = "0007:01:00.0", "0x10ec"
		}
		dev := fmt.Sprintf("devices/pci%s:00/%s", pci[:4], pci)
		net := dev + "/net/" + n.name
		files[dev+"/vendor"] = vendor
		links["class/net/"+n.name] = "../../" + net
		links[net+"/device"] = "../../../" + pci
		files[net+"/type"] = "1"
		files[net+"/speed"] = "10000"
		if !fabric {
			continue
		}
		files[net+"/speed"] = "200000"
		files[net+"/phys_port_name"] = "p0"
		files[dev+"/current_link_speed"], files[dev+"/current_link_width"] = "32.0 GT/s PCIe", "4"
		ib := dev + "/infiniband/" + r.hca
		links["class/infiniband/"+r.hca] = "../../" + ib
		links[ib+"/device"] = "../../../" + pci
		files[ib+"/fw_ver"], files[ib+"/hca_type"], files[ib+"/node_type"] = "28.45.4028", "MT4129", "1: CA"
		guid := fmt.Sprintf("025a:52ff:fe00:%02x%02x", host, n.mac)
		files[ib+"/node_guid"], files[ib+"/sys_image_guid"] = guid, guid
		port := ib + "/ports/1/"
		files[port+"state"], files[port+"phys_state"] = "4: ACTIVE", "5: LinkUp"
		files[port+"rate"], files[port+"link_layer"] = "200 Gb/sec (4X HDR)", "Ethernet"
		for row, kind := range []string{"IB/RoCE v1", "RoCE v2"} {
			var a [4]byte
			if _, err := fmt.Sscanf(n.addr(host), "%d.%d.%d.%d", &a[0], &a[1], &a[2], &a[3]); err != nil {
				return err
			}
			files[fmt.Sprintf("%sgids/%d", port, row)] = fmt.Sprintf("0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x",
				a[0], a[1], a[2], a[3])
			files[fmt.Sprintf("%sgid_attrs/types/%d", port, row)] = kind
			files[fmt.Sprintf("%sgid_attrs/ndevs/%d", port, row)] = n.name
		}
	}
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			return err
		}
	}
	for path, to := range links {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(to, path); err != nil {
			return err
		}
	}
	return nil
}

// captureRDMA keeps the machine's real RDMA devices, if it has any, as a fixture.
func captureRDMA(dir string) (string, error) {
	found, _ := os.ReadDir("/sys/class/infiniband")
	if len(found) == 0 {
		return "", notHereError{"this machine has no /sys/class/infiniband/*"}
	}
	var names []string
	for _, d := range found {
		names = append(names, d.Name())
		base := "/sys/class/infiniband/" + d.Name()
		err := filepath.WalkDir(base+"/", func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return nil //nolint:nilerr // what may not be read is left out
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil //nolint:nilerr // a file that may not be read, as many of a NIC's
			}
			to := filepath.Join(dir, strings.TrimPrefix(path, "/"))
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				return err
			}
			return os.WriteFile(to, text, 0o644)
		})
		if err != nil {
			return "", err
		}
	}
	return strings.Join(names, ", ") + " in " + dir, nil
}
