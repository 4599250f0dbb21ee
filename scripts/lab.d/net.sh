# shellcheck shell=bash
# The lab's network. All bridges and the far ends of all NICs lie in one
# network namespace that the process `init switch` keeps: nothing here touches
# the machine's own links, routes or firewall. A NIC is a veth pair, a cable
# between two ports a bridge that joins both twins of both; pulling it is
# taking down the far ends, which the hosts see as NO-CARRIER.
# Decides names, MACs and which cable carries; knows nothing of sysfs.

# A Spark's wired NICs: management first, then the twins of port 0 and of port 1.
NICS=(enP7s7 enp1s0f0np0 enP2p1s0f0np0 enp1s0f1np1 enP2p1s0f1np1)
# The far end of spark2's enp1s0f0np0 is `spark2.p0` in the switch's namespace.
declare -A SUFFIX=([enP7s7]=mgmt [enp1s0f0np0]=p0 [enP2p1s0f0np0]=p0t [enp1s0f1np1]=p1 [enP2p1s0f1np1]=p1t)
declare -A TWINS=([p0]="enp1s0f0np0 enP2p1s0f0np0" [p1]="enp1s0f1np1 enP2p1s0f1np1")
declare -A MTU=([enP7s7]=1500 [enp1s0f0np0]=9000 [enP2p1s0f0np0]=9000 [enp1s0f1np1]=9000 [enP2p1s0f1np1]=9000)
# What each port is plugged into: PLUG[spark1.p0] is spark2.p1, switch or lan.
declare -A PLUG=()

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

# plug END END|switch|lan, unplug END: PLUG only; an END is `spark1.p0`.
plug() {
	PLUG[$1]=$2
	[[ $2 != *.* ]] || PLUG[$2]=$1
}
unplug() {
	[[ ${PLUG[$1]-} != *.* ]] || unset "PLUG[${PLUG[$1]}]"
	unset "PLUG[$1]"
}

# bridge_of END: the bridge its twins hang on. A cable has its name from the
# end that sorts first: `c.spark1.p0`.
bridge_of() {
	local other=${PLUG[$1]-}
	case $other in
	"") return 1 ;;
	switch) REPLY=br-fabric ;;
	lan) REPLY=br-lan ;;
	*) [[ $1 < $other ]] && REPLY=c.$1 || REPLY=c.$other ;;
	esac
}

# bridge_add NAME MTU [CABLE]: a cable passes what a switch must keep to itself,
# LLDP say (but for the three addresses that Linux never lets through). Its address is
# its own: else it is one of its ports', and when that host goes off, all others send
# to a gateway that is no more, for ten seconds.
bridge_add() {
	echo "link add $1 mtu $2 address 02:5a:52:00:00:00 type bridge stp_state 0 forward_delay 0 mcast_snooping 0 ${3:+group_fwd_mask 65528}"
	echo "link set $1 up"
}

# All hosts share the kernel's one table of neighbours, of 1024: in a lab of 33 hosts or more, whose
# hosts all know each other, packets would be lost. It stays as large.
neighbours_fit() {
	local all=$((4 * ${#HOSTS[@]} * ${#HOSTS[@]})) path=/proc/sys/net/ipv4/neigh/default/gc_thresh now n
	for n in 3 2 1; do
		read -r now <$path$n
		((now >= all)) || ((all <= 1024)) || echo "$all" >$path$n
	done
}

# The gateways lead nowhere and say so at once, instead of letting every look-up
# of a name wait for its time-out.
switch_up() {
	local end
	# The far ends of cables have nothing of their own to say on them.
	in_switch bash -c 'echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; echo 1 >/proc/sys/net/ipv4/ip_forward'
	neighbours_fit
	{
		echo "link set lo up"
		bridge_add br-mgmt 1500
		bridge_add br-fabric 9000
		echo "addr add 172.30.0.1/24 dev br-mgmt"
		echo "route add unreachable default"
		for end in "${!PLUG[@]}"; do
			bridge_of "$end"
			[[ $REPLY != "c.$end" ]] || bridge_add "$REPLY" 9000 cable
		done
		[[ $TOPOLOGY != mixed ]] || lan_up
	} | in_switch ip -batch -
	[[ $TOPOLOGY != mixed ]] || nas_up
}

# The LAN of `mixed`: its router is the bridge itself, and a server that is no
# member has a namespace of its own (`init nas`).
lan_up() {
	bridge_add br-lan 9000
	echo "addr add 192.168.0.1/24 dev br-lan"
	pid_of nas
	echo "link add nas mtu 9000 type veth peer name eth0 mtu 9000 address 02:5a:52:ff:ff:01 netns $PID"
	echo "link set nas master br-lan up"
}

nas_up() {
	pid_of nas
	nsenter --target "$PID" --net ip -batch - <<-EOB
		link set lo up
		link set eth0 up
		addr add 192.168.0.100/24 brd + dev eth0
		route add default via 192.168.0.1
	EOB
}

# nics_add, nics_set HOST NIC...: the commands that make NICs, in the switch's
# namespace, and then set them up on the host as its netplan files would.
nics_add() {
	local host=$1 nic
	pid_of "$host" || die 1 "$host died while it started: see $DIR/hosts/$host/console.log"
	for nic in "${@:2}"; do
		mac "$host" "$nic"
		echo "link add $host.${SUFFIX[$nic]} mtu ${MTU[$nic]} type veth peer name $nic mtu ${MTU[$nic]} address $REPLY netns $PID"
	done
}
nics_set() {
	local host=$1 nic
	for nic in "${@:2}"; do
		echo "link set $nic up"
		if address "$host" "$nic"; then echo "addr add $REPLY/24 brd + dev $nic"; fi
		if gateway "$nic"; then echo "route add default via $REPLY"; fi
	done
}

# wire_hosts HOST...: make the NICs of hosts just powered on, far ends down.
wire_hosts() {
	local host
	for host; do
		nics_there "$host"
		nics_add "$host" "${THERE[@]}"
	done | in_switch ip -batch -
	for host; do
		nics_there "$host"
		pid_of "$host"
		{
			echo "link set lo up"
			nics_set "$host" "${THERE[@]}"
		} | nsenter --target "$PID" --net ip -batch -
	done
}

unwire_host() { # its netns goes away late and by itself; the names must not wait for that
	local nic
	for nic in "${NICS[@]}"; do echo "link del $1.${SUFFIX[$nic]}"; done |
		in_switch ip -force -batch - 2>/dev/null || :
}

# carries HOST NIC: does its cable work now? The one place that knows. A cable
# between two ports is dead when either end is pulled or off. A single netdev
# that was cut takes its counterpart at the other end along, not its twin.
carries() {
	local end=$1.${SUFFIX[$2]} other
	is_live "$1" "$2" || return 1
	[[ $2 != enP7s7 ]] || return 0
	other=${PLUG[${end%t}]-}
	case $other in
	"") return 1 ;;
	switch | lan) return 0 ;;
	esac
	# shellcheck disable=SC2086 # both twins' names
	set -- ${TWINS[${other#*.}]}
	[[ $end != *t ]] || shift
	is_live "${other%.*}" "$1"
}

is_live() { [[ -e $DIR/hosts/$1/on ]] && ! is_cut "$1" "$2"; } # is_live HOST NIC

is_cut() {
	local nic
	[[ -e $DIR/hosts/$1/cut ]] || return 1
	while read -r nic; do [[ $nic != "$2" ]] || return 0; done <"$DIR/hosts/$1/cut"
	return 1
}

# wire_apply brings the far ends of all NICs to where PLUG and `carries` say. A
# host that is being powered off still has its NICs: they go silent.
wire_apply() {
	local host nic far state
	for host in "${HOSTS[@]}"; do
		[[ -e $DIR/hosts/$host/wired ]] || continue
		nics_there "$host"
		for nic in "${THERE[@]}"; do
			far=$host.${SUFFIX[$nic]}
			if carries "$host" "$nic"; then state=up; else state=down; fi
			link_told "$far" $state
			if [[ $nic == enP7s7 ]]; then
				echo "link set $far master br-mgmt $state"
			elif bridge_of "${far%t}"; then
				echo "link set $far master $REPLY $state"
			else
				echo "link set $far nomaster down"
			fi
		done
	done | in_switch ip -batch -
}

link_told() { :; } # a veth's other end knows

# rewire END [END|switch|lan]: what was plugged into these ports is pulled out,
# then they are connected.
rewire() {
	local end bridges=() touched=()
	for end; do
		[[ $end == *.* ]] || continue
		touched+=("${end%.*}")
		if bridge_of "$end" && [[ $REPLY == c.* ]]; then
			bridges+=("$REPLY")
			touched+=("${PLUG[$end]%.*}")
		fi
		unplug "$end"
		cut_forget "$end"
	done
	plugs_write
	wire_apply
	for end in "${bridges[@]}"; do echo "link del $end"; done | in_switch ip -force -batch - 2>/dev/null || :
	if (($# == 2)); then
		plug "$1" "$2"
		bridge_of "$1"
		if [[ $REPLY == c.* ]]; then bridge_add "$REPLY" 9000 cable | in_switch ip -batch -; fi
		plugs_write
		wire_apply
	fi
	sysfs_sync_all "${touched[@]}"
}

cut_forget() { # cut_forget END: a port with a cable put into it has none pulled out
	local file=$DIR/hosts/${1%.*}/cut nic left=()
	[[ -e $file ]] || return 0
	while read -r nic; do [[ " ${TWINS[${1#*.}]} " == *" $nic "* ]] || left+=("$nic"); done <"$file"
	rm "$file"
	((${#left[@]} == 0)) || printf '%s\n' "${left[@]}" >"$file"
}

plugs_write() {
	local end
	for end in "${!PLUG[@]}"; do echo "$end ${PLUG[$end]}"; done >"$DIR/plugs.new"
	mv "$DIR/plugs.new" "$DIR/plugs"
}
plugs_read() {
	local end other
	PLUG=()
	while read -r end other; do PLUG[$end]=$other; done <"$DIR/plugs"
}

# port_of WORD sets REPLY to p0 or p1.
port_of() {
	[[ $1 =~ ^(port|p)?([01])$ ]] || usage "no port '$1': a Spark has 0 (beside the RJ-45) and 1"
	REPLY=p${BASH_REMATCH[2]}
}
