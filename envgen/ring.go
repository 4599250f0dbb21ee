package envgen

import "fmt"

// ncclSubnetRouting is the first release in which NCCL itself finds the port that leads to a peer
// (NCCL_IB_SUBNET_AWARE_ROUTING); before it only a fork of 2.28 does, dgxspark-3node-ring.
var ncclSubnetRouting = NCCLVersion{Major: 2, Minor: 30, Patch: 7}

// profile is what a shape needs of a release of NCCL beyond the variables of every RoCE fabric.
type profile struct {
	vars []Var
	// unusable says why this NCCL cannot use the fabric; empty where it can.
	unusable string
}

// ringProfile is the (shape, NCCL version) table's part for rings; no other shape needs one.
//
// How NCCL 2.30.7 routes (src/transport/net_ib/connect.cc): the listener sends the GIDs of its device's ports, and
// the connector uses a device of its own in one of their subnets. If it is sent only one port, the wrong one for
// this peer, it finds none and the connection times out. So both ports must be sent, which is what the merged
// device (NCCL_IB_MERGE_NICS=1) does. The fork matches single ports and needs 0.
func ringProfile(place Place, paths []Path) profile {
	why := fmt.Sprintf("ring of %d: ", place.Nodes)
	fork := false
	if v := place.NCCL; v != nil && v.Before(ncclSubnetRouting) {
		if !place.SubnetAware {
			return profile{unusable: fmt.Sprintf("NCCL %s cannot tell which port leads to which neighbour; it needs %s or "+
				"the dgxspark-3node-ring fork",
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
		// In a ring of three all are neighbours, and trees work too.
		p.vars = append(p.vars, Var{"NCCL_ALGO", "Ring", why + "a tree would need cables that are not there"})
	}
	return p
}
