# shellcheck shell=bash
# The part of lab_test that concerns topologies, cables and faults: who shares a
# wire with whom, and whether both ends and both sources (kernel, sysfs root)
# tell the same of it. Sourced by lab_test, which has check, prints and the rest.
# shellcheck disable=SC2016,SC2317 # as there

# links HOST: a digit for each fabric netdev (port 0, its twin, port 1, its
# twin), 1 with carrier, from the kernel; - where the sysfs root says otherwise.
links() {
	sh_on "$1" '
		cd $SPARKRUN_SYSFS/class/net
		for nic in enp1s0f0np0 enP2p1s0f0np0 enp1s0f1np1 enP2p1s0f1np1; do
			up=0 state=0
			ip link show $nic | grep -q LOWER_UP && up=1
			grep -q ACTIVE $nic/device/infiniband/*/ports/1/state && state=1
			[ $up$up = $state$(cat $nic/carrier) ] && printf $up || printf -
		done'
}

# stations HOST NIC: who shares its wire, by an echo that needs no IPv4 address;
# 2.p0t is the twin of port 0 of spark2. The MACs are in the answers.
stations() {
	local id names=(mgmt p0 p0t p1 p1t) own all=()
	own=$(on "$1" ip -o -6 addr show dev "$2" | grep -o 'fe80::[0-9a-f:]*')
	for id in $(on "$1" ping -6 -n -c 3 -i 0.05 -W 1 "ff02::1%$2" | grep -o 'fe80::5a:52ff:[0-9a-f:]*[0-9a-f]' | LC_ALL=C sort -u | grep -vx "$own"); do
		case $id in
		*:fe00:*) id=$((16#${id##*:})) && all+=("$((id >> 8)).${names[id & 255]}") ;;
		*:feff:ff01) all+=(nas) ;;
		*) all+=("$id") ;;
		esac
	done
	echo "${all[*]}"
}

# lldp FROM NIC TO NIC [SECONDS]: does a frame that no switch passes on arrive
# within that time? (30: a busy machine sends late.)
lldp() { # exits 1 if not
	local code=0 pid fd
	exec {fd}< <(exec "$HERE/lab" exec "$3" -- perl -e '
		socket(my $s, 17, 3, unpack("S", pack("n", 0x88cc))) or die $!;
		bind($s, pack("S n i x12", 17, 0x88cc, $ARGV[0])) or die $!;
		my $group = pack("i S S H16", $ARGV[0], 0, 6, "0180c200000e0000");
		setsockopt($s, 263, 1, $group) or die $!;
		$| = 1; print "ready\n"; alarm $ARGV[1]; sysread($s, my $frame, 2000) and print "heard\n";' "$(sh_on "$3" "cat \$SPARKRUN_SYSFS/class/net/$4/ifindex")" "${5:-30}")
	pid=$!
	read -r -u "$fd"
	on "$1" perl -e '
		socket(my $s, 17, 3, 0) or die $!;
		send($s, pack("H12 H12 n a60", "0180c200000e", "025a52000101", 0x88cc, "x"), 0, pack("S n i S C C H16", 17, 0x88cc, $ARGV[0], 0, 0, 6, "0180c200000e0000")) or die $!;' \
		"$(sh_on "$1" "cat \$SPARKRUN_SYSFS/class/net/$2/ifindex")" || code=2
	read -r -u "$fd" || code=1
	exec {fd}<&-
	wait "$pid" || :
	return "$code"
}

big_ping() { on "$1" ping -q -M "do" -s 8972 -c 1 -W 2 "$2"; }
route_out() { sh_on "$1" 'ip -4 route show default | cut -d" " -f3,5'; }
fabric_addresses() { sh_on "$1" 'for n in enp1s0f0np0 enP2p1s0f0np0 enp1s0f1np1 enP2p1s0f1np1; do ip -4 -br addr show $n; done | grep -o "[0-9.]*/24" | xargs'; }
rdma() { sh_on "$1" "cd \$SPARKRUN_SYSFS/class/infiniband/$2 && echo \$(cat ports/1/state ports/1/rate device/current_link_width ports/1/gids/3 device/net/*/speed)"; }
crawls() { # crawls FROM TO: 600 x 9000 bytes at 100 Mb/s take 0.4 s, on a link that is well 0.01 s
	local report
	sh_on "$1" 'ip neigh flush all' # twins answer for each other: a MAC known from before may be the missing one's
	report=$(on "$1" ping -q -f -s 8972 -c 600 "$2") && [[ $report =~ \ 0%\ packet\ loss,\ time\ ([0-9]+)ms ]] &&
		((BASH_REMATCH[1] > 300)) || { echo "$report" && return 1; }
}

check "pair2: up" lab up --topology pair2 --no-agent
check "pair2: four subnets" prints "192.168.100.11/24 192.168.101.11/24 192.168.102.11/24 192.168.103.11/24" fabric_addresses spark1
for net in 100 101 102 103; do check "pair2: 9000 bytes on subnet $net" big_ping spark2 192.168.$net.11; done
check "a cable: either twin reaches both at the far end" prints "1.p0t 2.p0 2.p0t" stations spark1 enp1s0f0np0
check "... and so does the other" prints "1.p1 2.p1 2.p1t" stations spark1 enP2p1s0f1np1
check "a cable passes what a switch keeps to itself" lldp spark1 enp1s0f0np0 spark2 enP2p1s0f0np0
check "cut port1" lab cut spark2 port1
check "cut port1: both twins at this end" prints 1100 links spark2
check "cut port1: both twins at the far end" prints 1100 links spark1
check "cut port1: the other cable lives" big_ping spark1 192.168.101.12
check "heal" lab heal spark2
check "heal: both ends" prints "1111 1111" eval 'echo $(links spark1) $(links spark2)'
lab cut spark1 enP2p1s0f0np0
check "cut a single twin: it and its counterpart" prints "1011 1011" eval 'echo $(links spark1) $(links spark2)'
check "swapped cables" eval 'lab cable spark1 0 spark2 1 && lab cable spark1 1 spark2 0'
check "swapped: a cable put in is not cut" prints "1111 1111" eval 'echo $(links spark1) $(links spark2)'
check "swapped: port 0 leads to port 1" prints "1.p0t 2.p1 2.p1t" stations spark1 enp1s0f0np0
check "swapped: addresses stay" prints "192.168.100.11/24 192.168.101.11/24 192.168.102.11/24 192.168.103.11/24" fabric_addresses spark1
check "a cable into the switch" eval 'lab cable spark1 0 switch && lab cable spark2 0 switch'
check "... pulls out what was there" prints "1100 1100" eval 'echo $(links spark1) $(links spark2)'
check "... and joins them" big_ping spark1 192.168.100.12
check "a switch keeps to itself what is its own" exits 1 lldp spark1 enp1s0f0np0 spark2 enp1s0f0np0 2
check "no LAN here" says 2 "'mixed' only" lab cable spark1 0 lan
check "a cable from a port to itself" exits 2 lab cable spark1 0 spark1 0
check "no port 2" says 2 "no port '2'" lab cable spark1 2 spark2 0
check "cable: no such host" exits 2 lab cable spark1 0 spark3 0
check "unplug twice" says 1 "no cable" eval 'lab unplug spark2 0 && lab unplug spark2 0'
lab down

check "ring: up" lab up --topology ring --no-agent
check "ring: a ring of 2 is refused" says 2 "3 to 77" env LAB="$OTHER" "$HERE/lab" up --topology ring --nodes 2
check "ring: six subnets" prints "192.168.177.11/24 192.168.178.11/24 192.168.187.11/24 192.168.188.11/24 192.168.197.12/24 192.168.198.12/24 192.168.177.12/24 192.168.178.12/24 192.168.187.13/24 192.168.188.13/24 192.168.197.13/24 192.168.198.13/24" \
	eval 'echo $(fabric_addresses spark1) $(fabric_addresses spark2) $(fabric_addresses spark3)'
check "ring: spark1 port 0 - spark2 port 1" eval 'big_ping spark1 192.168.177.12 && big_ping spark1 192.168.178.12'
check "ring: spark2 port 0 - spark3 port 1" eval 'big_ping spark2 192.168.197.13 && big_ping spark2 192.168.198.13'
check "ring: spark3 port 0 - spark1 port 1" eval 'big_ping spark3 192.168.187.11 && big_ping spark3 192.168.188.11'
check "ring: a cable joins two hosts and no third" prints "1.p0t 2.p1 2.p1t" stations spark1 enp1s0f0np0
check "ring: kill" lab kill spark2
check "ring: the neighbours see it" prints "0011 1100" eval 'echo $(links spark1) $(links spark3)'
check "ring: start" lab start spark2
check "ring: the neighbours see it again" prints "1111 1111 1111" eval 'echo $(links spark1) $(links spark2) $(links spark3)'
check "ring: it answers again" eval 'big_ping spark1 192.168.177.12 && big_ping spark3 192.168.198.12'
check "ring: wired port 0 to port 0" eval 'lab cable spark1 0 spark2 0 && lab cable spark2 1 spark3 1'
check "ring: ... is what the wires say" prints "1.p0t 2.p0 2.p0t, 2.p1t 3.p1 3.p1t" eval 'echo "$(stations spark1 enp1s0f0np0), $(stations spark2 enp1s0f1np1)"'
check "ring: unplug" lab unplug spark1 0
check "ring: unplugged at both ends" prints "0011 0011 1111" eval 'echo $(links spark1) $(links spark2) $(links spark3)'
check "ring: heal plugs in no cable that is gone" prints 0011 eval 'lab heal spark1 && links spark1'
check "status names the cables" grep -qx "cable: spark1 port 1 - spark3 port 0" <(lab status)

check "fault: missing-twin" lab fault spark1 missing-twin 1
check "fault: no trace of it" sh_on spark1 '! ip link show enP2p1s0f1np1 2>/dev/null && ! ls -R $SPARKRUN_SYSFS | grep -E "P2p1s0f1|0002:01:00.1"'
check "fault: its twin carries" prints "1.p1 3.p0" stations spark3 enP2p1s0f0np0
check "fault: twice is an error" says 1 "mend spark1" lab fault spark1 missing-twin 1
check "fault: it survives a reboot" eval 'lab kill spark1 && lab start spark1 && sh_on spark1 "! ip link show enP2p1s0f1np1"'
check "mend: the twin is back" eval 'lab mend spark1 && big_ping spark1 192.168.188.13 && gids_agree spark1'
lab fault spark3 rate-100 1
lab fault spark3 pcie-x2 enp1s0f1np1
lab fault spark3 no-gid enP2p1s0f1np1
lab fault spark3 not-active enP2p1s0f0np0
check "fault: shown by status" prints 5 eval 'lab status | grep -c "^fault: spark3 "'
check "fault: rate-100, pcie-x2" prints "4: ACTIVE 100 Gb/sec (4X EDR) 2 0000:0000:0000:0000:0000:ffff:c0a8:c50d 100000" rdma spark3 rocep1s0f1
check "fault: no-gid" prints "4: ACTIVE 100 Gb/sec (4X EDR) 4 0000:0000:0000:0000:0000:0000:0000:0000 100000" rdma spark3 roceP2p1s0f1
check "fault: not-active has carrier" prints "1: DOWN 200 Gb/sec (4X HDR) 4 0000:0000:0000:0000:0000:ffff:c0a8:bc0d 200000" rdma spark3 roceP2p1s0f0
check "fault: its twin is well" prints "4: ACTIVE 200 Gb/sec (4X HDR) 4 0000:0000:0000:0000:0000:ffff:c0a8:bb0d 200000" rdma spark3 rocep1s0f0
check "mend: all is well" eval 'lab mend spark3 && test $(links spark3) = 1111 && gids_agree spark3'
lab fault spark3 slow-link 0
check "fault: slow-link crawls" crawls spark1 192.168.187.13
check "fault: and says 200 Gb/s" prints "4: ACTIVE 200 Gb/sec (4X HDR) 4 0000:0000:0000:0000:0000:ffff:c0a8:bb0d 200000" rdma spark3 rocep1s0f0
check "mend: nothing is slow" eval 'lab mend spark3 && ! on switch tc qdisc show | grep tbf'
check "no such fault" says 2 "no fault 'rust'" lab fault spark1 rust 0
check "management has none of them" says 2 "no ConnectX" lab fault spark1 no-gid enP7s7
lab down

check "a ring of 5, no addresses: up" lab up --topology ring --nodes 5 --no-agent --no-addresses
check "no addresses: none on the fabric" prints "" fabric_addresses spark5
check "no addresses: after a reboot neither" prints "" eval 'lab kill spark5 && lab start spark5 && fabric_addresses spark5'
check "no addresses: management has" ping_to spark1 spark5
check "no addresses: rows 0 and 1 only" gids_agree spark5
check "a ring of 5: it closes" prints "1.p1 1.p1t 5.p0t, 4.p0 4.p0t 5.p1t" eval 'echo "$(stations spark5 enp1s0f0np0), $(stations spark5 enp1s0f1np1)"'
lab down

check "mixed: up, with agents" lab up --topology mixed
check "mixed: the default route is port 1" prints "192.168.0.1 enp1s0f1np1" route_out spark2
check "mixed: port 0 to port 0" eval 'big_ping spark1 192.168.100.12 && big_ping spark1 192.168.101.12'
check "mixed: port 1 on the LAN, with one that is no member" prints "1.p1t 2.p1 2.p1t nas" stations spark1 enp1s0f1np1
check "mixed: the server answers" big_ping spark2 192.168.0.100
check "mixed: the server can be entered" prints "eth0 lo" eval 'on nas ip -br link | sed "s/[@ ].*//" | sort | xargs'
check "mixed: the server is no member's port 0" not on nas ping -q -c 1 -W 1 192.168.100.11
check "mixed: joined by management" prints 2 sh_on spark1 'sort -u /var/lib/sparkrun/members | wc -l'
check "mixed: cut port1" lab cut spark1 port1
check "mixed: ... concerns one host" prints "1100 1111" eval 'echo $(links spark1) $(links spark2)'
check "mixed: ... and its way out" not ping_to spark1 192.168.0.100
check "mixed: a cable into the LAN" eval 'lab cable spark1 0 lan && test $(links spark2) = 0011 && test $(links spark1) = 1100'
check "mixed: down leaves nothing" eval 'lab down && same_traces'
check "mixed: no addresses, but the LAN's" prints "192.168.0.11/24 192.168.0.111/24" eval 'lab up --topology mixed --no-agent --no-addresses 2>/dev/null && fabric_addresses spark1'
lab down
