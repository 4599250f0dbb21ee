package envgen

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// PCIAddress names a PCI function. It identifies a device within a node; two functions that differ only in the
// domain are twins (see Ports).
type PCIAddress struct {
	Domain   uint32 `json:"domain"`   // above 0xffff on hosts with VMD or Hyper-V
	Bus      uint8  `json:"bus"`      //
	Device   uint8  `json:"device"`   // 0-31
	Function uint8  `json:"function"` // 0-7
}

// ParsePCIAddress reads the kernel's form, domain:bus:device.function in hexadecimal: 0002:01:00.1.
func ParsePCIAddress(text string) (PCIAddress, error) {
	bad := func(why string) (PCIAddress, error) {
		return PCIAddress{}, fmt.Errorf("parse PCI address %q: %s", text, why)
	}
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return bad("want domain:bus:device.function")
	}
	slot, function, ok := strings.Cut(parts[2], ".")
	if !ok {
		return bad("want device.function after the bus")
	}
	// The widths are checked too, so that a host name or a MAC cannot pass for an address.
	if len(parts[0]) < 4 || len(parts[0]) > 8 || len(parts[1]) != 2 || len(slot) != 2 || len(function) != 1 {
		return bad("want domain:bus:device.function")
	}
	domain, errDomain := strconv.ParseUint(parts[0], 16, 32)
	bus, errBus := strconv.ParseUint(parts[1], 16, 8)
	device, errDevice := strconv.ParseUint(slot, 16, 8)
	fn, errFunction := strconv.ParseUint(function, 16, 8)
	if errDomain != nil || errBus != nil || errDevice != nil || errFunction != nil {
		return bad("not hexadecimal")
	}
	if device > 31 || fn > 7 {
		return bad("device above 1f or function above 7")
	}
	return PCIAddress{Domain: uint32(domain), Bus: uint8(bus), Device: uint8(device), Function: uint8(fn)}, nil
}

// String gives the kernel's form.
func (a PCIAddress) String() string { return fmt.Sprintf("%04x:%s", a.Domain, a.Slot()) }

// Slot is the address without its domain, 01:00.1: what twins have in common.
func (a PCIAddress) Slot() string {
	// Written by hand for speed: this is called several times for every port of a
	// cluster.
	const digits = "0123456789abcdef"
	return string([]byte{digits[a.Bus>>4], digits[a.Bus&15], ':', digits[a.Device>>4], digits[a.Device&15], '.',
		'0' + a.Function&7})
}

// Compare orders by domain, bus, device, function.
func (a PCIAddress) Compare(b PCIAddress) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Bus, b.Bus),
		cmp.Compare(a.Device, b.Device), cmp.Compare(a.Function, b.Function))
}

// MarshalText gives the kernel's form, so that JSON shows one string.
func (a PCIAddress) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the kernel's form.
func (a *PCIAddress) UnmarshalText(text []byte) error {
	parsed, err := ParsePCIAddress(string(text))
	if err != nil {
		return err
	}
	*a = parsed
	return nil
}
