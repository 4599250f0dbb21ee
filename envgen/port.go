package envgen

import (
	"cmp"
	"slices"
)

// Port is one physical socket of a NIC: the RDMA devices that are the same PCI function in different domains. GB10
// reaches its ConnectX-7 over two PCIe links, so each QSFP port appears as two devices, the twins, and a job needs
// both for the port's full rate.
type Port struct {
	// Number is the PCI function, which is the number of the port on its card; nil for a device without PCI.
	Number *int `json:"number,omitempty"`
	// Slot is bus:device.function, or the device's name where it has no PCI address. It is unique within a node.
	Slot string `json:"slot"`
	// Twins are the port's devices by PCI domain: the first is the primary.
	Twins []HCA `json:"twins"`
}

// Ports groups a node's devices into physical ports, by port number, then bus and device; ports without PCI come
// last. Virtual functions are left out: on the host that owns them they belong to virtual machines.
func Ports(inv Inventory) []Port {
	var ports []Port
	at := map[string]int{} // slot -> index in ports
	for _, h := range SortedDevices(inv.Devices) {
		if h.PhysFn != nil {
			continue
		}
		slot := h.Name
		var number *int
		if h.PCI != nil {
			slot = h.PCI.Slot()
			number = new(int(h.PCI.Function))
		}
		i, seen := at[slot]
		if !seen {
			i = len(ports)
			at[slot] = i
			ports = append(ports, Port{Number: number, Slot: slot})
		}
		ports[i].Twins = append(ports[i].Twins, h)
	}
	slices.SortStableFunc(ports, func(a, b Port) int {
		switch {
		case a.Number != nil && b.Number != nil:
			return cmp.Or(cmp.Compare(*a.Number, *b.Number), cmp.Compare(a.Slot, b.Slot))
		case a.Number == nil && b.Number == nil:
			return cmp.Compare(a.Slot, b.Slot)
		case a.Number != nil:
			return -1
		}
		return 1
	})
	return ports
}

// SortedDevices returns the devices by PCI address; those without one come last, by name.
func SortedDevices(devices []HCA) []HCA {
	sorted := slices.Clone(devices)
	slices.SortStableFunc(sorted, func(a, b HCA) int {
		switch {
		case a.PCI != nil && b.PCI != nil:
			return cmp.Or(a.PCI.Compare(*b.PCI), cmp.Compare(a.Name, b.Name))
		case a.PCI == nil && b.PCI == nil:
			return cmp.Compare(a.Name, b.Name)
		case a.PCI != nil:
			return -1
		}
		return 1
	})
	return sorted
}
