# shellcheck shell=bash
# The command `sparkrun netplan`, on machines with a real netplan: what apply
# sets is what the kernel has, and a planted mistake is taken back everywhere.

fabric_addresses() { # fabric_addresses HOST: as the kernel has them
	on "$1" sh -c 'for nic in enp1s0f0np0 enp1s0f1np1 enP2p1s0f0np0 enP2p1s0f1np1; do ip -4 -o addr show dev $nic; done' | awk '{print $2, $4}' | sort
}
no_addresses() {
	local host
	for host in spark1 spark2; do
		if [[ $(fabric_addresses "$host") ]] || on "$host" test -e /etc/netplan/40-cx7.yaml; then fabric_addresses "$host" && return 1; fi
	done
}
same_addresses() { # same_addresses WANT1 WANT2
	diff <(echo "$1") <(fabric_addresses spark1) && diff <(echo "$2") <(fabric_addresses spark2)
}
applies() { on spark1 sparkrun netplan apply --yes --grace 3m; }
plans() { on spark1 sparkrun netplan show | grep -F "$1"; }
# taken_back WORDS...: an apply that fails with them.
taken_back() {
	local out words
	if out=$(on spark1 sparkrun netplan apply --yes --grace 2m 2>&1); then
		echo "it was applied: $out"
		return 1
	fi
	for words; do grep -qF "$words" <<<"$out" || { echo "$out" && return 1; }; done
}
# neighbours_answer: over each NIC of spark1, the address that spark2 has in the same subnet.
neighbours_answer() {
	local nic at peer
	while read -r nic at; do
		peer=$(fabric_addresses spark2 | awk '{print $2}' | grep -F "${at%.*}." | head -n 1)
		on spark1 ping -c1 -W10 -M "do" -s 8972 -I "$nic" "${peer%/*}" || return
	done < <(fabric_addresses spark1)
}

section_addresses() {
	local host before1 before2 after1 after2
	check "both machines are ready" both_ready
	before1=$(fabric_addresses spark1) before2=$(fabric_addresses spark2)
	for host in spark1 spark2; do
		check "$host: an owner without a netplan file" on "$host" sh -c 'mv /etc/netplan/40-cx7.yaml /root/ && netplan apply &&
			for nic in enp1s0f0np0 enp1s0f1np1 enP2p1s0f0np0 enP2p1s0f1np1; do ip -4 addr flush dev $nic; done'
	done
	check "no fabric NIC has an address" eventually 60 no_addresses
	check "sparkrun netplan show has a plan for them" eventually 180 plans 192.168.177.11
	# netplan apply takes away routes that are not in its files, but for those of the kernel.
	on spark2 ip route add blackhole 192.168.177.11 proto kernel
	check "apply over a planted mistake fails, and says who did not hear whom" taken_back "did not answer within" "as it was, on all nodes"
	check "everything is as it was" eventually 180 no_addresses
	check "the mistake is mended" on spark2 ip route del blackhole 192.168.177.11
	check "both machines are ready after that" both_ready
	check "apply" eventually 240 applies
	after1=$(fabric_addresses spark1) after2=$(fabric_addresses spark2)
	echo "      spark1: $(paste -sd, <<<"$after1"); spark2: $(paste -sd, <<<"$after2")"
	check "four addresses on each" test "$(wc -l <<<"$after1") $(wc -l <<<"$after2")" = "4 4"
	check "each neighbour answers, with 9000 bytes" neighbours_answer
	check "the file is root's alone" on spark2 sh -c '[ "$(stat -c %a /etc/netplan/40-cx7.yaml)" = 600 ]'
	check "a second apply changes nothing" applies
	check "the addresses are the same" same_addresses "$after1" "$after2"
	check "rollback" eventually 240 on spark1 sparkrun netplan rollback --yes
	check "no address is left, and no file" eventually 180 no_addresses
	for host in spark1 spark2; do
		check "$host: the owner's file again" on "$host" sh -c 'mv /root/40-cx7.yaml /etc/netplan/ && netplan apply'
	done
	check "the addresses of before" eventually 120 same_addresses "$before1" "$before2"
}
