package topology

import "github.com/sparkrun/sparkrun/envgen"

// Explanations has all codes, each with what it means, in the order of Codes.
func Explanations() []envgen.Explanation {
	return []envgen.Explanation{
		{Code: CodeNoRDMADevice, Text: "the node has no RDMA device: jobs with it run over TCP"},
		{Code: CodeFabricPortUnknown, Text: "--fabric-port names a port that the node does not have"},
		{Code: CodeManagementOnFabric, Text: "management runs over a NIC of the fabric, so that one cable takes both away"},
		{Code: CodeManagementWireless,
			Text: "management runs over Wi-Fi, which all jobs' calls and in a ring the jobs themselves depend on"},
		{Code: CodeDuplicateHost, Text: "two nodes have one host name"},
		{Code: CodeProbeTrouble, Text: "the cable probe does not work there: cables are known from addresses only"},
		{Code: CodeClonedNode, Text: "another machine says it is this node: it was copied with its state"},
		{Code: CodePortLAN, Text: "the port serves the LAN, and jobs leave it alone"},
		{Code: CodeStranger, Text: "a host that is no member of the cluster is on the network of a port that jobs use"},
		{Code: CodeNoLink, Text: "a port has addresses, or a cable was seen there, and it has no link: a cable that is " +
			"out, a far end that is off, a NIC that is set down"},
		{Code: CodeTwinMissing, Text: "one of the two devices of a port is not there: half of its bandwidth is out of reach"},
		{Code: CodeTwinDown, Text: "one of the two devices of a port has no carrier while the other has"},
		{Code: CodeCarrierNotActive, Text: "the NIC has a carrier and its RDMA device is not ACTIVE"},
		{Code: CodeNoInterface, Text: "an RDMA device has no network interface in this network namespace"},
		{Code: CodeBondOnFabric, Text: "the twins are bonded: NCCL sees one device where there are two"},
		{Code: CodeMTULow, Text: "the MTU is below 9000: RoCE packets are smaller than they could be, which costs 10-15 %"},
		{Code: CodeLinkSpeed, Text: "the link runs at less than 200 Gb/s: a cable for less, or a switch that negotiated it"},
		{Code: CodePCIeDegraded, Text: "the device's PCIe link is not Gen5 x4: power the machine off at the wall, then " +
			"look for firmware"},
		{Code: CodeLinkErrors, Text: "the device counts errors on the wire: reseat or change the cable"},
		{Code: CodeRetransmits, Text: "packets are lost and sent again"},
		{Code: CodeLinkDegraded, Text: "a test moved far less than the link can, whatever it says: power both machines " +
			"off at the wall"},
		{Code: CodeNoIPv4, Text: "a device has no IPv4 address and jobs cannot use it"},
		{Code: CodeSeveralIPv4, Text: "a device has several IPv4 addresses: which GID a job gets is up to chance"},
		{Code: CodeNoRoCEv2GID, Text: "an address has no RoCE v2 row in the GID table"},
		{Code: CodeTwinsOneSubnet, Text: "both devices of a port are in one subnet: the kernel may answer on the wrong one"},
		{Code: CodePortsOneSubnet, Text: "two ports of a node are in one subnet"},
		{Code: CodeSubnetOnTwoLinks, Text: "one subnet is in use on two cables that nothing joins"},
		{Code: CodeDuplicateAddress, Text: "two interfaces have one address"},
		{Code: CodeOverlapsBridge, Text: "a fabric subnet overlaps that of docker0 or another bridge"},
		{Code: CodeOverlapsManagement, Text: "a fabric subnet overlaps management's"},
		{Code: CodeOverlapsOther, Text: "a fabric subnet overlaps that of another NIC"},
		{Code: CodePeerNotInSubnet, Text: "the node at the other end of the cable has no address in the subnet"},
		{Code: CodePrefixUnequal, Text: "the two ends of a cable have different prefix lengths"},
		{Code: CodeSubnetOrder, Text: "the subnets are crossed between twins: NCCL joins first with first, and no cable " +
			"does"},
		{Code: CodeLinkLocalAmbiguous, Text: "a link-local address does not say where the cable leads, and no probe does"},
		{Code: CodeRingPrefixLengths, Text: "the subnets of a ring have different prefix lengths, and NCCL knows one"},
		{Code: CodeMTUUnequal, Text: "the MTUs along a cable differ: large packets one way are lost"},
		{Code: CodeGIDIndexUnlike, Text: "the RoCE v2 rows lie at different indices: NCCL_IB_GID_INDEX must not be set"},
		{Code: CodeCableSwapped, Text: "a cable is in another port than the addresses want"},
		{Code: CodeCableLoop, Text: "a cable joins two ports of one node"},
		{Code: CodeCableUnknownEnd, Text: "a cable leads to a node or port that nobody knows"},
		{Code: CodeSecondCable, Text: "a second cable between two nodes adds nearly nothing"},
		{Code: CodeNoNeighbour, Text: "a port with a link hears no other node"},
		{Code: CodeRingMiswired, Text: "a node in a ring has its two plugs crossed"},
		{Code: CodeChain, Text: "the cables form a chain: one is missing for a ring"},
		{Code: CodeIslands, Text: "the fabric joins some nodes, but not all"},
		{Code: CodeNotJoined, Text: "nodes have fabric ports, and nothing joins them"},
		{Code: CodeStillLooking, Text: "the cable probe has not listened long enough to say what the fabric joins: ask again"},
		{Code: CodeFirmwareUnequal, Text: "ConnectX firmware differs between nodes"},
	}
}
