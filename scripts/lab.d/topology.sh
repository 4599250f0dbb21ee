# shellcheck shell=bash
# What the hosts are cabled and addressed like when a lab is made, for each
# topology. Decides which port is plugged into what, and the address that each
# NIC is given at boot; later rewiring (net.sh) does not change the latter, just
# as a cable moved by hand does not change a host's files.

# topology_check NODES: sets NODES to how many hosts TOPOLOGY gets.
topology_check() {
	local least=1 most=200 usual=${USUAL:-3}
	case $TOPOLOGY in
	switch) ;;
	pair | pair2 | mixed) least=2 most=2 usual=2 ;;
	ring) least=3 most=77 usual=3 ;; # two subnets a cable
	*) usage "no topology '$TOPOLOGY': switch, pair, pair2, ring or mixed" ;;
	esac
	NODES=${1:-$usual}
	[[ $NODES =~ ^[1-9][0-9]{0,2}$ ]] && ((NODES >= least && NODES <= most)) && return
	((least != most)) || usage "a pair has 2 hosts, not $NODES: --topology $TOPOLOGY"
	usage "--nodes $NODES: the topology $TOPOLOGY has $least to $most hosts"
}

# cabling sets PLUG as it is at first: from `spark1.p0` to what its cable ends
# in, another port or a switch.
cabling() {
	local host n=${#HOSTS[@]}
	for host in "${HOSTS[@]}"; do
		case $TOPOLOGY in
		switch) plug "$host.p0" switch ;;
		ring) plug "$host.p0" "spark$((${host#spark} % n + 1)).p1" ;;
		mixed) plug "$host.p1" lan ;;
		esac
	done
	case $TOPOLOGY in
	pair | pair2 | mixed) plug spark1.p0 spark2.p0 ;;&
	pair2) plug spark1.p1 spark2.p1 ;;
	esac
}

# subnet HOST NIC sets REPLY to the first three numbers of the /24 that it is
# given at boot; false where it is given none. Every twin of every cable has a
# subnet of its own; only the twins on the LAN, which no job uses, share one.
subnet() {
	local n=${1#spark} twin=0 cable
	case $TOPOLOGY.${SUFFIX[$2]} in
	*.mgmt) REPLY=172.30.0 && return ;;
	mixed.p1*) REPLY=192.168.0 && return ;; # the way out: without it, no host at all
	*t) twin=1 ;;
	esac
	[[ $ADDRESSES == yes ]] || return 1
	case $TOPOLOGY.${SUFFIX[$2]} in
	ring.p0*) cable=$n ;;
	ring.p1*) cable=$((n == 1 ? ${#HOSTS[@]} : n - 1)) ;; # the cable from the host before
	*.p0*) cable=1 ;;
	pair2.p1*) cable=2 ;;
	*) return 1 ;;
	esac
	if [[ $TOPOLOGY == ring && ${#HOSTS[@]} == 3 ]]; then
		# The numbers of the ring of three that owners copy from each other.
		cable=$((cable == 1 ? 177 : cable == 2 ? 197 : 187))
	else
		cable=$((98 + 2 * cable))
	fi
	REPLY=192.168.$((cable + twin))
}

# address HOST NIC sets REPLY to its IPv4 address, all of them /24.
address() {
	subnet "$1" "$2" || return 1
	case $TOPOLOGY.${SUFFIX[$2]} in
	mixed.p1t) REPLY+=.$((110 + ${1#spark})) ;;
	*) REPLY+=.$((10 + ${1#spark})) ;;
	esac
}

# gateway NIC sets REPLY to the default gateway if it lies behind that NIC.
gateway() {
	case $TOPOLOGY.$1 in
	mixed.enp1s0f1np1) REPLY=192.168.0.1 ;;
	mixed.*) return 1 ;;
	*.enP7s7) REPLY=172.30.0.1 ;;
	*) return 1 ;;
	esac
}
