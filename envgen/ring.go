package envgen

import "fmt"

// ncclSubnetRouting is the first release in which NCCL finds by itself the port that leads to a peer
// (NCCL_IB_SUBNET_AWARE_ROUTING); before, only a fork of 2.28 does, dgxspark-3node-ring.
var ncclSubnetRouting = NCCLVersion{Major: 2, Minor: 30, Patch: 7}

// profile is what a shape wants of a release of NCCL beyond the variables that any RoCE fabric wants.
type profile struct {
	vars []Var
	// unusable says why this NCCL cannot use the fabric; empty where it can.
	unusable string
}

// ringProfile is the (shape, NCCL version) table's part for rings; every other shape needs nothing of its own.
//
// How NCCL 2.30.7 routes (src/transport/net_ib/connect.cc): the listener tells the GIDs of its device's ports, and
// the connector takes a device of its own in one of their subnets. Told one port only, the wrong one for this peer,
// it finds none and the connection times out. So both ports must be told, which is what the merged device
// (NCCL_IB_MERGE_NICS=1) does. The fork matches single ports and wants 0.
func ringProfile(place Place, paths []Path) profile {
	why := fmt.Sprintf("ring of %d: ", place.Nodes)
	fork := false
	if v := place.NCCL; v != nil && v.Before(ncclSubnetRouting) {
		if !place.SubnetAware {
			return profile{unusable: fmt.Sprintf("NCCL %s cannot tell which port leads to which neighbour; it needs %s or the dgxspark-3node-ring fork",
				v, ncclSubnetRouting)}
		}
		fork = true
	}
	p := profile{vars: []Var{
		{"NCCL_IB_SUBNET_AWARE_ROUTING", "1", why + "each neighbour is behind another port, in a subnet of its own"},
		{"NCCL_IB_SUBNET_PREFIX_LEN", fmt.Sprint(prefixLength(paths)), why + "the length of the subnets' prefixes"},
	}}
	if fork {
		p.vars = append(p.vars, Var{"NCCL_IB_MERGE_NICS", "0", why + "the fork matches single ports"})
	} else {
		p.vars = append(p.vars, Var{"NCCL_IB_MERGE_NICS", "1", why + "a listener must tell the subnets of both its ports"})
	}
	if place.Nodes > 3 {
		// In a ring of three everyone is everyone's neighbour, and trees work too.
		p.vars = append(p.vars, Var{"NCCL_ALGO", "Ring", why + "a tree would need cables that are not there"})
	}
	return p
}
