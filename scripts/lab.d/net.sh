# shellcheck shell=bash
# The lab's network. All bridges and the far ends of all cables lie in one
# network namespace that the process `init switch` keeps: nothing here touches
# the machine's own links, routes or firewall. A cable is a veth pair; pulling
# it is taking down the far end, which the host sees as NO-CARRIER.
# Decides names, addresses and which cable carries; knows nothing of sysfs.

# A Spark's wired NICs: management first, then the twins of port 0 and of port 1.
NICS=(enP7s7 enp1s0f0np0 enP2p1s0f0np0 enp1s0f1np1 enP2p1s0f1np1)
# The far end of spark2's enp1s0f0np0 is `spark2.p0` in the switch's namespace.
declare -A SUFFIX=([enP7s7]=mgmt [enp1s0f0np0]=p0 [enP2p1s0f0np0]=p0t [enp1s0f1np1]=p1 [enP2p1s0f1np1]=p1t)
declare -A BRIDGE=([enP7s7]=br-mgmt [enp1s0f0np0]=br-fabric [enP2p1s0f0np0]=br-fabric)
declare -A NET=([enP7s7]=172.30.0 [enp1s0f0np0]=192.168.100 [enP2p1s0f0np0]=192.168.101)
declare -A MTU=([enP7s7]=1500 [enp1s0f0np0]=9000 [enP2p1s0f0np0]=9000 [enp1s0f1np1]=9000 [enP2p1s0f1np1]=9000)

address() { REPLY=${NET[$2]}.$((10 + ${1#spark})); } # address HOST NIC

# mac HOST NIC: the same at every boot; 02: says "locally administered".
mac() {
	local n=${1#spark} i=0
	while [[ ${NICS[i]} != "$2" ]]; do ((++i)); done
	printf -v REPLY '02:5a:52:%02x:%02x:%02x' $((n >> 8)) $((n & 255)) $i
}

in_switch() { # in_switch CMD...: in the namespace of the bridges
	pid_of switch || die 1 "the network of lab '$LAB' is gone: '$0 down' and start anew"
	nsenter --target "$PID" --net "$@"
}

# Both twins of a port share its cable, so one bridge takes them all, as a real
# switch would. The management gateway leads nowhere and says so at once,
# instead of letting every look-up of a name wait for its time-out.
switch_up() {
	in_switch ip -batch - <<-EOB
		link set lo up
		link add br-mgmt type bridge stp_state 0 forward_delay 0 mcast_snooping 0
		link add br-fabric mtu 9000 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
		link set br-mgmt up
		link set br-fabric up
		addr add ${NET[enP7s7]}.1/24 dev br-mgmt
		route add unreachable default
	EOB
	in_switch bash -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
}

# wire_hosts HOST...: make the cables of hosts just powered on, far ends down.
wire_hosts() {
	local host nic far
	for host; do
		pid_of "$host" || die 1 "$host died while it started: see $DIR/hosts/$host/console.log"
		for nic in "${NICS[@]}"; do
			far=$host.${SUFFIX[$nic]}
			mac "$host" "$nic"
			echo "link add $far mtu ${MTU[$nic]} type veth peer name $nic mtu ${MTU[$nic]} address $REPLY netns $PID"
			[[ -z ${BRIDGE[$nic]-} ]] || echo "link set $far master ${BRIDGE[$nic]}"
		done
	done | in_switch ip -batch -
	for host; do
		pid_of "$host"
		{
			echo "link set lo up"
			for nic in "${NICS[@]}"; do
				echo "link set $nic up"
				[[ ${NET[$nic]-} ]] || continue
				address "$host" "$nic"
				echo "addr add $REPLY/24 brd + dev $nic"
			done
			echo "route add default via ${NET[enP7s7]}.1"
		} | nsenter --target "$PID" --net ip -batch -
	done
}

unwire_host() { # its netns goes away late and by itself; the names must not wait for that
	local nic
	for nic in "${NICS[@]}"; do echo "link del $1.${SUFFIX[$nic]}"; done |
		in_switch ip -force -batch - 2>/dev/null || :
}

# carries HOST NIC: does this cable work now? The one place that knows. The
# cable of a pair is direct: it is dead when either end is pulled or off.
carries() {
	local host
	[[ ${NET[$2]-} ]] || return 1 # port 1: no cable in either topology
	for host in "${HOSTS[@]}"; do
		[[ $host == "$1" || ($TOPOLOGY == pair && $2 != enP7s7) ]] || continue
		[[ -e $DIR/hosts/$host/on ]] || return 1
		if [[ -e $DIR/hosts/$host/cut ]] && is_cut "$host" "$2"; then return 1; fi
	done
}

is_cut() {
	local nic
	while read -r nic; do [[ $nic != "$2" ]] || return 0; done <"$DIR/hosts/$1/cut"
	return 1
}

# wire_apply brings every cable of the hosts that have one to what `carries`
# says. A host that is being powered off still has its cables: they go silent.
wire_apply() {
	local host nic
	for host in "${HOSTS[@]}"; do
		[[ -e $DIR/hosts/$host/wired ]] || continue
		for nic in "${NICS[@]}"; do
			if carries "$host" "$nic"; then
				echo "link set $host.${SUFFIX[$nic]} up"
			else
				echo "link set $host.${SUFFIX[$nic]} down"
			fi
		done
	done | in_switch ip -batch -
}
