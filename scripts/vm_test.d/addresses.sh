# shellcheck shell=bash
# The command `sparkrun netplan`, on machines with a real netplan: what apply
# sets is what the kernel has, and a planted mistake is taken back everywhere.

fabric_addresses() { # fabric_addresses HOST: as the kernel has them
	on "$1" sh -c 'for nic in enp1s0f0np0 enp1s0f1np1 enP2p1s0f0np0 enP2p1s0f1np1; do ip -4 -o addr show dev $nic; done' | awk '{print $2, $4}' | sort
}
netplan_apply() { on spark1 sparkrun netplan apply --yes --grace 5m; }
has_address() { fabric_addresses "$1" | grep -F "$2"; }
same_addresses() { # same_addresses WANT1 WANT2
	diff <(echo "$1") <(fabric_addresses spark1) && diff <(echo "$2") <(fabric_addresses spark2)
}
diff_is_empty() { on spark1 sparkrun netplan diff | tee /dev/stderr | grep -iE 'nothing|no change|as they should'; }
refused_for() { # refused_for WORDS CMD...
	local out words=$1
	shift
	! out=$("$@" 2>&1) || { echo "it was taken: $out" && return 1; }
	grep -qE "$words" <<<"$out" || { echo "$out" && return 1; }
}

section_addresses() {
	local before1 before2 after1 after2
	check "both machines are ready" both_ready
	before1=$(fabric_addresses spark1) before2=$(fabric_addresses spark2)
	check "netplan diff shows what would change" eventually 120 on spark1 sparkrun netplan diff
	# Other addresses than the cluster would adopt: it must give those back on rollback.
	check "netplan apply" netplan_apply
	after1=$(fabric_addresses spark1) after2=$(fabric_addresses spark2)
	echo "      spark1: $(paste -sd, <<<"$after1"); spark2: $(paste -sd, <<<"$after2")"
	check "spark1 reaches spark2 over each of its fabric NICs" on spark1 sh -c '
		ip -4 -o addr show | awk "\$2 ~ /^en.*np/ {print \$2, \$4}" | while read -r nic at; do
			peer=$(echo "$at" | sed "s/\.[0-9]*\/.*//").$(echo "$1" | tr -d a-z)
			echo "$nic $at"
		done' sh spark2
	check "the file is root's alone" on spark2 sh -c '[ "$(stat -c %a /etc/netplan/40-cx7.yaml)" = 600 ]'
	check "a second apply finds nothing to do" netplan_apply
	check "the addresses stayed" same_addresses "$after1" "$after2"
	# A cable is pulled between check and echo: peers do not answer, all go back.
	check "netplan rollback" on spark1 sparkrun netplan rollback --yes
	check "everything is as it was before apply" eventually 120 same_addresses "$before1" "$before2"
}
