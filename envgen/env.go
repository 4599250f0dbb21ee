package envgen

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Var is one environment variable and where its value comes from.
type Var struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	// Source is a phrase for people: "fabric: rocep1s0f0 and twin roceP2p1s0f0 ACTIVE on 192.168.100.0/24".
	Source string `json:"source"`
}

// Place is what a node must know of its part in a job to work out its ranks' environment.
type Place struct {
	// Inventory is the node's hardware now, not when the job was placed: what has gone since then is not
	// used.
	Inventory Inventory
	// Entry is the node's own entry of the job's Meeting.
	Entry Entry
	// Nodes is the number of nodes in the job. A job on one node needs no fabric.
	Nodes int
	// NCCL is the version the ranks will load; nil (not known) means 2.21 or later, as every NCCL for GB10 is, and in a
	// ring 2.30.7 or later.
	NCCL *NCCLVersion
	// SubnetAware is true where the ranks' NCCL is older than 2.30.7 and yet routes by subnet: the dgxspark-3node-ring
	// fork. It matters in rings only.
	SubnetAware bool
}

// Env gives the network variables for a rank's place, in a fixed order. It sets nothing that NCCL chooses better
// by itself (GID index, traffic class, timeouts, algorithms), and NCCL_NET=IB only where a RoCE device reaches
// every peer: there it turns NCCL's silent fallback to sockets into an error.
func Env(place Place) []Var {
	var vars []Var
	if place.Nodes > 1 {
		vars = append(vars, ncclFabric(place)...)
	}
	return append(vars, interfaces(place)...)
}

// NCCLVariables are the names of all variables that Env may set for NCCL. They follow from one node's hardware:
// whatever carries an environment to another node must leave them out, and in a file that applies to every job they
// do harm.
func NCCLVariables() []string {
	return []string{
		"NCCL_SOCKET_IFNAME", "NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_HCA", "NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX",
		"NCCL_IB_ROCE_VERSION_NUM", "NCCL_IB_ADDR_FAMILY",
		"NCCL_IB_SUBNET_AWARE_ROUTING", "NCCL_IB_SUBNET_PREFIX_LEN", "NCCL_IB_MERGE_NICS", "NCCL_ALGO", // a ring's
	}
}

// ncclFabric gives the variables that say which RDMA devices NCCL may use.
func ncclFabric(place Place) []Var {
	if slices.ContainsFunc(place.Inventory.Devices,
		func(h HCA) bool { return h.Active() && h.LinkLayer == LayerInfiniBand }) {
		return nil // native InfiniBand needs no addresses: NCCL finds its way by itself
	}
	paths, devices := livePaths(place)
	if len(paths) == 0 {
		return ncclSockets(place, fmt.Sprintf("no RoCE subnet joins all %d nodes", place.Nodes))
	}
	var extra profile
	if place.Entry.Shape == ShapeRing {
		if extra = ringProfile(place, paths); extra.unusable != "" {
			return ncclSockets(place, extra.unusable)
		}
	}
	names := make([]string, len(devices))
	for i, h := range devices {
		names[i] = h.Name
	}
	source := "fabric: " + describePaths(paths)
	vars := []Var{
		{"NCCL_NET", "IB", "fabric: an error in place of a silent fallback to sockets"},
		{"NCCL_NET_PLUGIN", "none", "fabric: a plugin bundled with an image can drop to TCP"},
		{"NCCL_IB_HCA", "=" + strings.Join(names, ","), source},
	}
	if place.NCCL == nil || !place.NCCL.Before(ncclOwnGID) {
		vars = append(vars,
			Var{"NCCL_IB_ROCE_VERSION_NUM", "2", "fabric: NCCL finds each device's RoCE v2 GID by itself"},
			Var{"NCCL_IB_ADDR_FAMILY", "AF_INET", "fabric: the subnets are IPv4"})
		return append(vars, extra.vars...)
	}
	if index, ok := sharedGIDIndex(paths, devices); ok && place.Entry.Shape != ShapeRing {
		vars = append(vars, Var{"NCCL_IB_GID_INDEX", strconv.Itoa(index),
			fmt.Sprintf("fabric: NCCL %s cannot choose; the RoCE v2 row of every device used", place.NCCL)})
	}
	return append(vars, extra.vars...)
}

// ncclSockets keeps NCCL off RoCE devices that do not reach every peer: by itself it would use them, and hang in
// its first connection.
func ncclSockets(place Place, why string) []Var {
	for _, h := range SortedDevices(place.Inventory.Devices) {
		if h.Active() && h.RoCE() {
			return []Var{{"NCCL_IB_DISABLE", "1",
				fmt.Sprintf("%s: %s, so %s must stay idle", place.Entry.Kind, why, h.Name)}}
		}
	}
	return nil
}

// livePaths drops what has gone since the meeting was chosen, and returns each device once, in the order of the
// paths. A path is alive as long as its device has its address.
func livePaths(place Place) (paths []Path, devices []HCA) {
	for _, p := range place.Entry.Paths {
		h, ok := place.Inventory.Device(p.HCA)
		if !ok || !h.Active() {
			continue
		}
		now, _ := deviceWays(place.Inventory, h)
		if !slices.ContainsFunc(now, func(w way) bool { return w.Addr == p.Addr && w.Subnet == p.Subnet }) {
			continue
		}
		paths = append(paths, p)
		if !slices.ContainsFunc(devices, func(d HCA) bool { return d.Name == h.Name }) {
			devices = append(devices, h)
		}
	}
	return paths, devices
}

// sharedGIDIndex returns the row that is right for every device: a pinned index applies to all of them.
func sharedGIDIndex(paths []Path, devices []HCA) (index int, ok bool) {
	for i, p := range paths {
		at := slices.IndexFunc(devices, func(h HCA) bool { return h.Name == p.HCA })
		row, found := devices[at].gidFor(p.Addr)
		if !found || i > 0 && row != index {
			return 0, false
		}
		index = row
	}
	return index, len(paths) > 0
}

// describePaths says which devices are used where: "rocep1s0f0 and twin roceP2p1s0f0 ACTIVE on A and B".
func describePaths(paths []Path) string {
	var devices, subnets, slots []string
	for _, p := range paths {
		if s := p.Subnet.String(); !slices.Contains(subnets, s) {
			subnets = append(subnets, s)
		}
		name := p.HCA
		if slices.Contains(devices, name) || slices.Contains(devices, "twin "+name) {
			continue
		}
		if slices.Contains(slots, p.Slot) {
			name = "twin " + name
		}
		slots = append(slots, p.Slot)
		devices = append(devices, name)
	}
	return joinWords(devices) + " ACTIVE on " + joinWords(subnets)
}

// interfaces gives the variables that tell each library the interface of the meeting. Their syntax differs:
// NCCL matches prefixes unless the name begins with "=", all others need the plain name (gloo refuses
// "=eth0").
func interfaces(place Place) []Var {
	name := place.Entry.NIC
	loopback := place.Entry.Addr.IsLoopback()
	if nic, ok := place.Inventory.Holder(place.Entry.Addr); ok {
		name = nic.Name // the address decides, since the name may have changed
	}
	if name == "" {
		return nil
	}
	source := fmt.Sprintf("%s: %s is on %s", place.Entry.Kind, place.Entry.Addr, name)
	vars := []Var{
		{"NCCL_SOCKET_IFNAME", "=" + name, source},
		{"GLOO_SOCKET_IFNAME", name, source},
		{"TP_SOCKET_IFNAME", name, source},
	}
	if !loopback { // on lo UCX only has shared memory, which needs no device
		vars = append(vars, Var{"UCX_NET_DEVICES", name, source})
	}
	// Without these Open MPI also tries docker0, whose address is the same on every node, and hangs.
	return append(vars,
		Var{"OMPI_MCA_btl_tcp_if_include", name, source},
		Var{"OMPI_MCA_oob_tcp_if_include", name, source})
}
