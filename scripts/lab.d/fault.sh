# shellcheck shell=bash
# What may be wrong with a host's ConnectX while the cables are right. A fault
# is a line `KIND NIC` in hosts/HOST/fault and survives a reboot: broken
# hardware does. Decides which NICs are there and what passes them; how a fault
# shows in the sysfs root is told in sysfs.sh.

FAULTS=(missing-twin rate-100 pcie-x2 no-gid not-active slow-link)
SLOW=100mbit # far below what a veth does, as 13 Gb/s is far below 200

# faults_read HOST sets FAULT, with keys like "no-gid enp1s0f0np0".
declare -A FAULT=()
faults_read() {
	local kind nic
	FAULT=()
	[[ -e $DIR/hosts/$1/fault ]] || return 0
	while read -r kind nic; do FAULT["$kind $nic"]=yes; done <"$DIR/hosts/$1/fault"
}

# nics_there HOST sets THERE to the NICs whose PCI function is not missing.
nics_there() {
	local nic
	THERE=("${NICS[@]}")
	faults_read "$1"
	((${#FAULT[@]})) || return 0
	THERE=()
	for nic in "${NICS[@]}"; do [[ ${FAULT["missing-twin $nic"]-} ]] || THERE+=("$nic"); done
}

# slow_links HOST: the far end lets little through towards the host, while all
# that tells of the link's speed stays as it is.
slow_links() {
	local nic
	[[ -e $DIR/hosts/$1/fault ]] || return 0
	nics_there "$1"
	for nic in "${THERE[@]}"; do
		[[ ${FAULT["slow-link $nic"]-} ]] || continue
		in_switch tc qdisc replace dev "$1.${SUFFIX[$nic]}" root tbf rate $SLOW burst 256k latency 50ms
	done
}

# one_way HOST in|out NIC...: what comes to the host or leaves it by these goes
# into a bridge that leads nowhere. Links stay, and neither end can tell. No power
# cycle outlives it: the far ends are made anew.
one_way() {
	local host=$1 dir=egress nic
	[[ $2 == in ]] || dir=ingress # of the far end
	in_switch ip link add nowhere type bridge 2>/dev/null || : # there from the last time
	in_switch ip link set nowhere up
	for nic in "${@:3}"; do
		in_switch tc qdisc replace dev "$host.${SUFFIX[$nic]}" clsact
		in_switch tc filter add dev "$host.${SUFFIX[$nic]}" $dir protocol all u32 match u32 0 0 action mirred egress redirect dev nowhere
	done
}

both_ways() { # both_ways HOST: takes that back
	local nic
	for nic in "${NICS[@]}"; do
		in_switch tc qdisc del dev "$1.${SUFFIX[$nic]}" clsact 2>/dev/null || : # it has none
	done
}

# fault HOST KIND NIC...
fault() {
	local host=$1 kind=$2 nic
	shift 2
	nics_there "$host"
	for nic; do
		[[ " ${THERE[*]} " == *" $nic "* ]] || die 1 "$host has no $nic any more: '$0 mend $host' first"
		[[ ! ${FAULT["$kind $nic"]-} ]] || die 1 "$host's $nic has that fault already"
	done
	printf "$kind %s\n" "$@" >>"$DIR/hosts/$host/fault"
	[[ -e $DIR/hosts/$host/wired ]] || return 0
	case $kind in
	missing-twin) for nic; do echo "link del $host.${SUFFIX[$nic]}"; done | in_switch ip -batch - ;;
	slow-link) slow_links "$host" ;;
	esac
	sysfs_sync "$host"
}

# mend HOST: all its faults are gone; a twin that was missing comes back as
# after a reboot.
mend() {
	local host=$1 nic back=() slow=()
	faults_read "$host"
	rm -f "$DIR/hosts/$host/fault"
	[[ -e $DIR/hosts/$host/wired ]] || return 0
	for nic in "${NICS[@]}"; do
		if [[ ${FAULT["missing-twin $nic"]-} ]]; then
			back+=("$nic")
		elif [[ ${FAULT["slow-link $nic"]-} ]]; then
			slow+=("$nic")
		fi
	done
	for nic in "${slow[@]}"; do in_switch tc qdisc del dev "$host.${SUFFIX[$nic]}" root; done
	if ((${#back[@]})); then
		nics_add "$host" "${back[@]}" | in_switch ip -batch -
		pid_of "$host"
		nics_set "$host" "${back[@]}" | nsenter --target "$PID" --net ip -batch -
		wire_apply
	fi
	sysfs_sync "$host"
}
