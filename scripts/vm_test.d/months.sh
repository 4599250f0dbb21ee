# shellcheck shell=bash
# Both machines were off for 60 days, by their own clocks, and one of them while the gossip key was changed: every certificate
# has ended, and that one has a key that nobody uses any more. Nobody helps. Comes last: the machines stay in that time.

# A third member, so that there is one to take out: it joins from namespaces on spark2, at an address of its own, and never runs.
third_joins() {
	on spark2 ip addr add 172.30.0.99/24 dev enP7s7 || return
	on spark1 sparkrun token create | tail -n 1 | lab exec spark2 -- unshare --mount --uts sh -c '
		hostname spark3 && mount -t tmpfs tmpfs /var/lib/sparkrun && mount -t tmpfs tmpfs /run/sparkrun && exec sparkrun join 172.30.0.11 --no-start --management 172.30.0.99 --token-file -' &&
		on spark2 ip addr del 172.30.0.99/24 dev enP7s7
}
ring_of() { on "$1" sha256sum /var/lib/sparkrun/trust/gossip.json; }
another_ring() { local now && now=$(ring_of "$1") && [[ $now != "$2" ]]; }
ends() { # ends HOST: when its certificate ends, in seconds
	local text
	text=$(on "$1" cat /var/lib/sparkrun/trust/node.pem) || return
	date -d "$(openssl x509 -noout -enddate <<<"$(sed -n '/BEGIN CERTIFICATE/,/END CERTIFICATE/p' <<<"$text")" | cut -d = -f 2)" +%s
}
is_later() { # is_later HOST DAYS: by its own clock
	local now
	now=$(on "$1" date +%s) && ((now - $(date +%s) > ($2 * 24 - 1) * 3600))
}
is_good() { # is_good HOST: its certificate has over 25 days left, by its own clock
	local now end
	now=$(on "$1" date +%s) && end=$(ends "$1") && ((end - now > 25 * 86400)) || { echo "it ends at $end, and it is $now there" && return 1; }
}
one_ring() { [[ $(ring_of spark1) == "$(ring_of spark2)" ]]; }

section_months() {
	local host before
	check "both machines are ready" both_ready
	check "a third joins, and is off" third_joins
	before=$(ring_of spark1)
	check "both have one gossip key" one_ring
	check "spark2 loses power" lab kill spark2
	check "the third is taken out" eventually 180 on spark1 sparkrun node remove --yes --force spark3
	check "the gossip key of spark1 is another" eventually 180 another_ring spark1 "$before"
	check "spark1 loses power" lab kill spark1
	for host in spark1 spark2; do
		check "60 days later $host has power again" env SPARKRUN_LAB_CLOCK="$(date -u -d '60 days' +%FT%T)" "$HERE/lab" --vm start "$host"
	done
	for host in spark1 spark2; do check "its own clock says so, on $host" is_later "$host" 60; done
	check "both machines are ready, by nobody's hand" eventually 600 both_ready
	for host in spark1 spark2; do check "$host has a certificate of that day" eventually 120 is_good "$host"; done
	check "both have one gossip key" eventually 180 one_ring
	check "it is the new one" another_ring spark2 "$before"
	check "a launch on both after that" eventually 180 both_names
}
