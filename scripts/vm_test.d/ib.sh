# shellcheck shell=bash
# `sparkrun launch ib-test` with the real perftest over rdma_rxe: a bandwidth and a
# latency of each link, parsed and judged. What an emulated machine reaches is no measure
# of anything: that there is a figure is what is looked at.

ib_dir= # report.json and said of the last ib_run
# ib_run CODE ARGS...: it must exit so, with a report.
ib_run() {
	local want=$1 code=0
	shift
	on spark1 sparkrun launch ib-test --json "$@" >"$ib_dir/report.json" 2>"$ib_dir/said" </dev/null || code=$?
	[[ $code == "$want" ]] || { echo "exit $code: $(<"$ib_dir/said") $(grep -F '"text"' "$ib_dir/report.json")" && return 1; }
}
# ib_holds EXPRESSION: in Python, of the report r.
ib_holds() {
	python3 -c 'import json, sys; r = json.load(sys.stdin); sys.exit(not eval(sys.argv[1]))' "$1" <"$ib_dir/report.json" || { grep -F '"text"' "$ib_dir/report.json" && return 1; }
}
ib_missing() { # without perftest on one machine, nothing is started, and it is named
	local out
	on spark2 mv /usr/bin/ib_write_bw /usr/bin/ib_write_bw.away
	out=$(on spark1 sparkrun launch ib-test bw 2>&1 </dev/null)
	local code=$?
	on spark2 mv /usr/bin/ib_write_bw.away /usr/bin/ib_write_bw
	[[ $code == 125 && $out == *"ib_write_bw is not on spark2: sudo apt install perftest there"* ]] || { echo "exit $code: $out" && return 1; }
}

# ib_own_arp HOST: each NIC answers for its own address alone. Twins share a wire, and what
# RDMA sends to the other one's MAC nobody takes.
ib_own_arp() { on "$1" sh -c 'sysctl -q net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 && ip neigh flush all'; }

ib_twins() { sh_on "$1" "sh -s $2" <"$HERE/vm_test.d/twins.sh"; }
# ib_side_by_side: while a test runs, two clients of perftest are there at one time.
ib_side_by_side() {
	local pid code
	ib_run 0 bw --seconds 10 --expect 0.0001 &
	pid=$!
	eventually 120 sh_on spark1 'test "$(pgrep -cx ib_write_bw)" -ge 2'
	code=$?
	wait "$pid" && return "$code"
}

section_ib() {
	local host
	ib_dir=$(mktemp -d)
	for host in spark1 spark2; do check "$host: each NIC answers ARP for itself" ib_own_arp "$host"; done
	check "both machines are ready" both_ready
	check "perftest missing on a machine is named" ib_missing
	check "bandwidth of each link, each way" ib_run 0 bw
	check "every link has a figure" ib_holds 'len(r["cells"]) == 8 and all(c["gbps"] > 0 for c in r["cells"])'
	check "by the GIDs of its own addresses" ib_holds 'all(l["measured"]["local_gid"].startswith("::ffff:192.168.10") for c in r["cells"] for l in c["lanes"])'
	check "of software nothing is expected" ib_holds 'r["verdict"]["grade"] == "unjudged" and "RDMA in software" in r["verdict"]["text"]'
	echo "      $(python3 -c 'import json, sys; print(", ".join("%s %s %.3f Gb/s" % (c["from"], c["lanes"][0]["from"], c["gbps"]) for c in json.load(sys.stdin)["cells"]))' <"$ib_dir/report.json")"
	check "held against what it gives, it is good" ib_run 0 bw --expect 0.001 --gate 0.9
	check "the verdict" ib_holds 'r["verdict"]["grade"] == "good" and r["verdict"]["part"] > 1'
	check "held against a Spark's, --gate fails" ib_run 1 bw --expect 196 --gate 0.9
	check "the verdict" ib_holds 'r["verdict"]["grade"] == "low" and r["verdict"]["part"] < 0.1'
	check "latency of each link" ib_run 0 lat --iters 100 --expect-us 1000000
	check "every link has a figure" ib_holds 'len(r["cells"]) == 4 and all(c["us"] > 0 for c in r["cells"]) and r["verdict"]["grade"] == "good"'

	for host in spark1 spark2; do check "$host: its devices are twins" ib_twins "$host" on; done
	check "both machines are ready" both_ready
	check "the cables are seen by both ends" eventually 120 sh_on spark1 'sparkrun fabric | grep -q "joined by two cables"'
	check "both twins of a cable at once" ib_side_by_side
	check "each cable's figure is of two lanes" ib_holds 'len(r["cells"]) == 4 and all(len(c["lanes"]) == 2 and c["gbps"] > max(l["measured"]["gbps"] for l in c["lanes"]) for c in r["cells"])'
	echo "      $(python3 -c 'import json, sys; print(", ".join("%s -> %s: %s" % (c["from"], c["to"], " + ".join("%.3f" % l["measured"].get("gbps", 0) for l in c["lanes"])) for c in json.load(sys.stdin)["cells"]))' <"$ib_dir/report.json")"
	for host in spark1 spark2; do check "$host: they are no more" ib_twins "$host" off; done
	check "both machines are ready" both_ready
	rm -r "$ib_dir"
}
