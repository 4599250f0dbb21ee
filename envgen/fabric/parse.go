package fabric

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/envgen"
)

// parseState reads ports/N/state and phys_state, "4: ACTIVE" and "5: LinkUp": the word after the number. It is
// not checked against a list, since newer kernels add states.
func parseState(text string) (string, error) {
	number, word, ok := strings.Cut(strings.TrimSpace(text), ": ")
	if _, err := strconv.ParseUint(number, 10, 8); err != nil || !ok || word == "" || strings.ContainsAny(word, "\n:") {
		return "", fmt.Errorf("parse port state %q: want a line such as \"4: ACTIVE\"", text)
	}
	return word, nil
}

// maxMbps bounds every rate: 100 Tb/s is far above any link, and far below an overflow.
const maxMbps = 100_000_000

// parseRate reads ports/N/rate, "200 Gb/sec (2X NDR)" or "2.5 Gb/sec (1X SDR)", as Mb/s.
func parseRate(text string) (int, error) {
	number, rest, ok := strings.Cut(strings.TrimSpace(text), " Gb/sec")
	gbps, err := strconv.ParseFloat(number, 64)
	// NaN fails this comparison, which its negation would not.
	if !ok || err != nil || !(gbps >= 0 && gbps*1000 <= maxMbps) || rest != "" && !strings.HasPrefix(rest, " (") {
		return 0, fmt.Errorf("parse port rate %q: want a line such as \"200 Gb/sec (4X HDR)\"", text)
	}
	return int(gbps*1000 + 0.5), nil
}

// parseGID reads ports/N/gids/N: eight groups of four hexadecimal digits, never shortened. ok is false for an empty
// row (all zero).
func parseGID(text string) (addr netip.Addr, ok bool, err error) {
	text = strings.TrimSpace(text)
	bad := func() (netip.Addr, bool, error) {
		return netip.Addr{}, false, fmt.Errorf("parse GID %q: want eight groups of four hexadecimal digits", text)
	}
	if len(text) != 39 {
		return bad()
	}
	var raw [16]byte
	for i := range 8 {
		group := text[i*5 : i*5+4]
		if i < 7 && text[i*5+4] != ':' {
			return bad()
		}
		v, err := strconv.ParseUint(group, 16, 16)
		if err != nil {
			return bad()
		}
		raw[2*i], raw[2*i+1] = byte(v>>8), byte(v)
	}
	return netip.AddrFrom16(raw), raw != [16]byte{}, nil
}

// parseLinkSpeed reads a PCI device's current_link_speed, "32.0 GT/s PCIe" ("8 GT/s" on old kernels), as GT/s.
func parseLinkSpeed(text string) (float64, error) {
	number, rest, ok := strings.Cut(strings.TrimSpace(text), " GT/s")
	gtps, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || !(gtps > 0 && gtps <= 1024) || rest != "" && rest != " PCIe" {
		return 0, fmt.Errorf("parse PCIe speed %q: want a line such as \"32.0 GT/s PCIe\"", text)
	}
	return gtps, nil
}

// parseLinkWidth reads current_link_width: the number of lanes. For a device without a link it is 0 or, in some
// kernels, 63 or 255.
func parseLinkWidth(text string) (int, error) {
	lanes, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || lanes < 1 || lanes > 32 {
		return 0, fmt.Errorf("parse PCIe width %q: want 1 to 32 lanes", text)
	}
	return lanes, nil
}

// parseSpeed reads class/net/<if>/speed in Mb/s; without a link it says -1 (or 65535 or 4294967295 in old drivers).
func parseSpeed(text string) (int, error) {
	mbps, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || mbps <= 0 || mbps == 65535 || mbps > maxMbps {
		return 0, fmt.Errorf("parse link speed %q: want a positive number of Mb/s", text)
	}
	return mbps, nil
}

// parsePCITarget takes the PCI address from the end of a path: the target of a `device` link.
func parsePCITarget(target string) (envgen.PCIAddress, error) {
	return envgen.ParsePCIAddress(target[strings.LastIndexByte(target, '/')+1:])
}
