# shellcheck shell=bash
# The simulated sysfs root of a host: what /sys would show of its wired NICs on
# a Spark, as plain files. Links, addresses and MACs are read from the host's
# own namespace, so the GID tables agree with them; the rest is the ConnectX-7
# it stands for. Decides no link's state. Must never be read half-written: a
# whole new tree is made beside the old one, then one rename puts it in place.

declare -A PCI=([enP7s7]=0007:01:00.0 [enp1s0f0np0]=0000:01:00.0 [enP2p1s0f0np0]=0002:01:00.0
	[enp1s0f1np1]=0000:01:00.1 [enP2p1s0f1np1]=0002:01:00.1)
declare -A RDMA=([enp1s0f0np0]=rocep1s0f0 [enP2p1s0f0np0]=roceP2p1s0f0
	[enp1s0f1np1]=rocep1s0f1 [enP2p1s0f1np1]=roceP2p1s0f1)
GID_ROWS=16
ZERO_GID=0000:0000:0000:0000:0000:0000:0000:0000
PORT_COUNTERS=(excessive_buffer_overrun_errors link_downed link_error_recovery local_link_integrity_errors
	port_rcv_constraint_errors port_rcv_data port_rcv_errors port_rcv_packets port_rcv_remote_physical_errors
	port_rcv_switch_relay_errors port_xmit_constraint_errors port_xmit_data port_xmit_discards port_xmit_packets
	port_xmit_wait symbol_error unicast_rcv_packets unicast_xmit_packets multicast_rcv_packets
	multicast_xmit_packets VL15_dropped)
HW_COUNTERS=(duplicate_request implied_nak_seq_err local_ack_timeout_err np_cnp_sent np_ecn_marked_roce_packets
	out_of_buffer out_of_sequence packet_seq_err req_cqe_error req_cqe_flush_error req_remote_access_errors
	req_remote_invalid_request resp_cqe_error resp_cqe_flush_error resp_local_length_error
	resp_remote_access_errors rnr_nak_retry_err roce_adp_retrans roce_adp_retrans_to roce_slow_restart
	roce_slow_restart_cnps roce_slow_restart_trans rp_cnp_handled rp_cnp_ignored rx_atomic_requests
	rx_icrc_encapsulated rx_read_requests rx_write_requests)

pci_dir() { # pci_dir NIC: devices/pci0000:00/0000:00:00.0/0000:01:00.0
	local domain=${PCI[$1]%%:*}
	REPLY=devices/pci$domain:00/$domain:00:00.0/${PCI[$1]}
}

# sysfs_skeleton: once for the lab, all that is the same on every host at all
# times; every later tree begins as a copy of it.
sysfs_skeleton() {
	local tree=$DIR/skeleton nic pci ib n vendor device driver speed width
	local -a dirs=() links=()
	for nic in "${NICS[@]}"; do
		pci_dir "$nic"
		pci=$REPLY driver=mlx5_core
		[[ ${RDMA[$nic]-} ]] || driver=r8127
		dirs+=("$tree/$pci/net/$nic" "$tree/bus/pci/drivers/$driver" "$tree/bus/pci/devices" "$tree/class/net" "$tree/class/infiniband")
		links+=("../../$pci/net/$nic" "class/net/$nic" "../../../${PCI[$nic]}" "$pci/net/$nic/device"
			"../../../$pci" "bus/pci/devices/${PCI[$nic]}" "../../../../bus/pci/drivers/$driver" "$pci/driver")
		ib=${RDMA[$nic]-}
		[[ $ib ]] || continue
		ib=$pci/infiniband/$ib
		dirs+=("$tree/$ib/ports/1/"{counters,hw_counters,gids,gid_attrs/types,gid_attrs/ndevs})
		links+=("../../$ib" "class/infiniband/${RDMA[$nic]}" "../../../${PCI[$nic]}" "$ib/device")
	done
	mkdir -p "${dirs[@]}"
	for ((n = 0; n < ${#links[@]}; n += 2)); do ln -s "${links[n]}" "$tree/${links[n + 1]}"; done

	for nic in "${NICS[@]}"; do
		pci_dir "$nic"
		pci=$tree/$REPLY
		if [[ ${RDMA[$nic]-} ]]; then
			vendor=0x15b3 device=0x1021 driver=mlx5_core speed='32.0 GT/s PCIe' width=4
		else
			vendor=0x10ec device=0x8127 driver=r8127 speed='16.0 GT/s PCIe' width=1
		fi
		echo $vendor >"$pci/vendor"
		echo $device >"$pci/device"
		echo 0x020000 >"$pci/class"
		echo -1 >"$pci/numa_node"
		echo "$speed" >"$pci/current_link_speed"
		echo $width >"$pci/current_link_width"
		echo "$speed" >"$pci/max_link_speed"
		echo $width >"$pci/max_link_width"
		printf 'DRIVER=%s\nPCI_CLASS=20000\nPCI_ID=%s:%s\nPCI_SLOT_NAME=%s\n' \
			$driver "${vendor#0x}" "${device#0x}" "${PCI[$nic]}" >"$pci/uevent"
		echo 1 >"$pci/net/$nic/type"
		ib=${RDMA[$nic]-}
		[[ $ib ]] || continue
		echo "p${PCI[$nic]##*.}" >"$pci/net/$nic/phys_port_name"
		ib=$pci/infiniband/$ib
		echo 28.45.4028 >"$ib/fw_ver"
		echo MT4129 >"$ib/hca_type"
		echo '1: CA' >"$ib/node_type"
		echo Ethernet >"$ib/ports/1/link_layer"
		for n in "${PORT_COUNTERS[@]}"; do echo 0 >"$ib/ports/1/counters/$n"; done
		for n in "${HW_COUNTERS[@]}"; do echo 0 >"$ib/ports/1/hw_counters/$n"; done
		for ((n = 0; n < GID_ROWS; n++)); do echo $ZERO_GID >"$ib/ports/1/gids/$n"; done
	done
}

# gid ADDRESS: an IPv4 or IPv6 address as a GID is printed.
gid() {
	local IFS=.:
	local -a head tail
	if [[ $1 == *.* ]]; then
		# shellcheck disable=SC2206 # split at the dots
		head=($1)
		printf -v REPLY '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' "${head[@]}"
		return
	fi
	# shellcheck disable=SC2206
	head=(${1%%::*}) tail=()
	# shellcheck disable=SC2206
	[[ $1 != *::* ]] || tail=(${1#*::})
	while ((${#head[@]} + ${#tail[@]} < 8)); do head+=(0); done
	printf -v REPLY ':%04x' "${head[@]/#/0x}" "${tail[@]/#/0x}"
	REPLY=${REPLY//:0x/:}
	REPLY=${REPLY#:}
}

# mac_id MAC INFIX: aabb:ccXX:XXdd:eeff, the form of link-local GIDs and GUIDs.
mac_id() {
	local IFS=:
	local -a m
	# shellcheck disable=SC2206
	m=($1)
	REPLY=${m[0]}${m[1]}:${m[2]}${2%:*}:${2#*:}${m[3]}:${m[4]}${m[5]}
}

# sysfs_sync HOST: read its links and addresses, write its tree.
sysfs_sync() {
	local host=$1 me old tree nic word rest
	local -A flags=() mtu=() mac=() index=() addresses=()
	pid_of "$host" || return 0
	me=/proc/$PID/root$DIR/hosts/$host/sysfs # it is mounted there alone
	old=$(readlink "$me/sys" || :)
	[[ $old == sys.a ]] && tree=sys.b || tree=sys.a

	while read -r word rest; do
		case $word in
		*:)
			nic=${rest%%[@:]*}
			index[$nic]=${word%:}
			flags[$nic]=${rest#*<} flags[$nic]=,${flags[$nic]%%>*},
			mtu[$nic]=${rest#* mtu } mtu[$nic]=${mtu[$nic]%% *}
			;;
		link/*) mac[$nic]=${rest%% *} ;;
		inet | inet6)
			rest=${rest%% *}
			addresses[$nic]+=" ${rest%/*}"
			;;
		esac
	done < <(nsenter --target "$PID" --net ip addr)

	rm -rf "${me:?}/$tree"
	cp -a "$DIR/skeleton" "$me/$tree"
	faults_read "$host"
	for nic in "${NICS[@]}"; do sysfs_faults "$me/$tree" "$nic"; done
	for nic in "${!index[@]}"; do
		word=$me/$tree/class/net/$nic
		if [[ -z ${PCI[$nic]-} ]]; then # lo, and whatever was added by hand
			mkdir -p "$me/$tree/devices/virtual/net/$nic"
			ln -s "../../devices/virtual/net/$nic" "$word"
		fi
		sysfs_netdev "$word" "$nic"
		[[ -z ${RDMA[$nic]-} ]] || sysfs_hca "$me/$tree/class/infiniband/${RDMA[$nic]}" "$nic"
	done
	for nic in "${NICS[@]}"; do # a netdev that is gone leaves its PCI device behind
		[[ ${index[$nic]-} || ${FAULT["missing-twin $nic"]-} ]] && continue
		pci_dir "$nic"
		rm -rf "$me/$tree/class/net/$nic" "${me:?}/$tree/$REPLY/net"
		[[ -z ${RDMA[$nic]-} ]] || sysfs_hca "$me/$tree/class/infiniband/${RDMA[$nic]}" "$nic"
	done
	[[ ! -d $DIR/hosts/$host/faults ]] || cp -a "$DIR/hosts/$host/faults/." "$me/$tree/" # a test's own

	ln -s $tree "$me/sys.new"
	mv -T "$me/sys.new" "$me/sys"
}

# sysfs_faults TREE NIC: what is wrong with its PCI function (fault.sh).
sysfs_faults() {
	pci_dir "$2"
	[[ -z ${FAULT["pcie-x2 $2"]-} ]] || echo 2 >"$1/$REPLY/current_link_width"
	[[ ${FAULT["missing-twin $2"]-} ]] || return 0
	rm -rf "${1:?}/$REPLY" "$1/bus/pci/devices/${PCI[$2]}" "$1/class/net/$2" "$1/class/infiniband/${RDMA[$2]}"
}

# sysfs_netdev FOLDER NIC, with sysfs_sync's readings. While a link is
# administratively down the kernel refuses carrier and speed: absent here.
sysfs_netdev() {
	local at=$1 nic=$2 carrier=0 speed=-1 state=down type=1
	if [[ ${flags[$nic]} == *,LOWER_UP,* ]]; then
		carrier=1 state=up speed=10000
		[[ -z ${RDMA[$nic]-} ]] || speed=200000
		[[ -z ${FAULT["rate-100 $nic"]-} ]] || speed=100000
		[[ $nic != lo ]] || state=unknown type=772
	fi
	echo "${index[$nic]}" >"$at/ifindex"
	echo "${mtu[$nic]}" >"$at/mtu"
	echo "${mac[$nic]}" >"$at/address"
	[[ ${flags[$nic]} == *,UP,* ]] || state=down
	echo $state >"$at/operstate"
	[[ ${PCI[$nic]-} ]] || echo $type >"$at/type"
	[[ ${flags[$nic]} == *,UP,* ]] || return 0
	echo $carrier >"$at/carrier"
	[[ $nic == lo ]] || echo $speed >"$at/speed"
}

# sysfs_hca FOLDER NIC: state as mlx5 tells it (a port without carrier is DOWN,
# Disabled and claims 40 Gb/s), and the GID table: rows 0 and 1 are made of the
# MAC whatever the addresses, then two rows an address, in the kernel's order.
sysfs_hca() {
	local at=$1 nic=$2 port=$1/ports/1 row=0 card address own=""
	mac "$host" "${NICS[1]}" # one card, so the image GUID of all four is the first's
	card=$REPLY
	mac_id "$card" 03:00
	echo "$REPLY" >"$at/sys_image_guid"
	[[ ! ${mac[$nic]-} ]] || card=${mac[$nic]}
	mac_id "$card" 03:00
	echo "$REPLY" >"$at/node_guid"

	if [[ ${flags[$nic]-} == *,UP,*LOWER_UP,* ]]; then
		echo '4: ACTIVE' >"$port/state"
		echo '5: LinkUp' >"$port/phys_state"
		echo '200 Gb/sec (4X HDR)' >"$port/rate"
		[[ -z ${FAULT["rate-100 $nic"]-} ]] || echo '100 Gb/sec (4X EDR)' >"$port/rate"
		if [[ ${FAULT["not-active $nic"]-} ]]; then # carrier, and RDMA that does not follow
			echo '1: DOWN' >"$port/state"
			echo '2: Polling' >"$port/phys_state"
		fi
	else
		echo '1: DOWN' >"$port/state"
		echo '3: Disabled' >"$port/phys_state"
		echo '40 Gb/sec (4X QDR)' >"$port/rate"
	fi
	[[ ${mac[$nic]-} ]] || return 0
	printf -v card '%02x%s' $((0x${mac[$nic]%%:*} ^ 2)) "${mac[$nic]#??}"
	mac_id "$card" ff:fe
	own=fe80:0000:0000:0000:$REPLY
	gid_rows "$own"
	for address in ${addresses[$nic]-}; do
		[[ $address != *.* || -z ${FAULT["no-gid $nic"]-} ]] || continue
		gid "$address"
		[[ $REPLY == "$own" ]] || gid_rows "$REPLY"
	done
}

gid_rows() { # two more rows of the table sysfs_hca is writing
	local type
	for type in 'IB/RoCE v1' 'RoCE v2'; do
		((row < GID_ROWS)) || return 0
		echo "$1" >"$port/gids/$row"
		echo "$type" >"$port/gid_attrs/types/$row"
		echo "$nic" >"$port/gid_attrs/ndevs/$row"
		((++row))
	done
}

sysfs_sync_all() { # sysfs_sync_all HOST...; each once, for two at a time would spoil the tree
	local host pids=()
	local -A seen=()
	for host; do
		[[ -z ${seen[$host]-} ]] || continue
		seen[$host]=yes
		sysfs_sync "$host" &
		pids+=($!)
	done
	wait "${pids[@]}" # not for all: the hosts themselves may be children of this shell
}

# sync_cabled_with HOST: the trees of all whose carrier a change at HOST moves.
sync_cabled_with() {
	local hosts=("$1") port
	for port in p0 p1; do
		[[ ${PLUG[$1.$port]-} != *.* ]] || hosts+=("${PLUG[$1.$port]%.*}")
	done
	sysfs_sync_all "${hosts[@]}"
}
