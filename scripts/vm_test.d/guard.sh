# shellcheck shell=bash
# The memory guard against what the GPU's driver does on a Spark: memory that is in
# no process's RSS, huge pages here, or a balloon that the hypervisor blows up. A file
# /dev/nvidia0 stands in for the GPU. It must end the rank in time, each time, and
# never a server that leaves little and whose machine's page cache fills.

# Takes MiB a second until so much is available, and then serves until /root/served.
taker='
import mmap, os, sys, time  # VM_TEST
gpu = os.open("/dev/nvidia0", os.O_RDONLY)
rate, until = int(sys.argv[1]), int(sys.argv[2])
def available():
    return next(int(line.split()[1]) >> 10 for line in open("/proc/meminfo") if line.startswith("MemAvailable"))
held, began, taken = [], time.monotonic(), 0
while available() > until:
    time.sleep(max(0, began + taken / rate - time.monotonic()))
    held.append(mmap.mmap(-1, 2 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000))  # MAP_HUGETLB
    held[-1][0] = 1
    taken += 2
print("serves", flush=True)
while not os.path.exists("/root/served"):
    time.sleep(0.2)'

on_spark2() { on spark2 sparkrun launch exec --on spark2 --workdir / -- python3 -c "$taker" "$@" 2>&1; }
balloon() { echo "balloon $1" 1<>"/var/tmp/sparkrun-lab-vm/$LAB/hosts/spark2/monitor.in"; } # to so many MiB
available() { sh_on spark2 "sed -n 's/^MemAvailable: *\([0-9]*\)[0-9]\{3\} kB/\1/p' /proc/meminfo"; }
has_left() { (($(available) >= $1)); }

# blow RATE FILE: the balloon takes that many MiB a second until FILE is gone.
blow() {
	local left=1000
	while [[ -e $2 ]]; do
		sleep 0.2
		((left < 100)) || balloon $((left -= $1 / 5))
	done
	balloon 1024
}

# ends_in_time KIND RATE: prints the MiB that were left.
ends_in_time() {
	local out running
	eventually 60 has_left 600 || return 1
	if [[ $1 == huge ]]; then
		out=$(on_spark2 "$2" 0)
	else
		running=$(mktemp)
		out=$(
			on_spark2 1 2000 | while read -r line; do
				[[ $line != *serves* ]] || blow "$2" "$running" >/dev/null 2>&1 &
				echo "$line"
			done
			rm "$running"
		)
	fi
	if [[ ! $out =~ had\ ([0-9]+)[.0-9]*\ MiB\ of\ memory\ left.*--memory-floor ]]; then
		echo "$out"
		return 1
	fi
	echo "${BASH_REMATCH[1]}"
	! on spark2 dmesg | grep -E 'Out of memory|oom-kill'
}

section_guard() {
	local boot round kind rates=(12 25 50 100) in_time=0 least=9999 ended=0 left said server
	check "both machines are ready" both_ready
	boot=$(boots)
	sh_on spark2 ': >/dev/nvidia0; echo 450 >/proc/sys/vm/nr_overcommit_hugepages; rm -f /root/served'
	for round in {1..20}; do
		kind=huge
		((round % 2)) || kind=balloon
		if left=$(ends_in_time $kind "${rates[round / 2 % 4]}"); then
			in_time=$((in_time + 1)) least=$((left < least ? left : least))
		else
			echo "      round $round, $kind, ${rates[round / 2 % 4]} MiB/s: $left"
		fi
	done
	echo "      ended in time $in_time of 20, with $least MiB left or more"
	check "memory that is in no RSS: the rank is ended in time, 20 of 20" test $in_time = 20

	said=$(mktemp) server=
	eventually 60 has_left 600
	for round in {1..20}; do
		if [[ -z $server ]] || ! kill -0 "$server" 2>/dev/null; then
			on_spark2 25 200 >"$said" &
			server=$!
			eventually 120 grep -q serves "$said"
		fi
		sh_on spark2 'cat /dev/vda >/dev/null; head -c 300M /dev/zero >/root/big; rm /root/big'
		if grep -q 'memory left' "$said"; then
			ended=$((ended + 1))
			cat "$said"
			wait "$server"
		fi
	done
	echo "      a server beside whose 200 MiB the page cache fills: ended $ended of 20"
	on spark2 touch /root/served
	check "a server whose machine's page cache fills is left alone, 20 of 20" test $ended = 0
	ended=0
	wait "$server" || ended=$?
	check "it ends well" test $ended = 0
	check "the machine was not rebooted" test "$boot" = "$(boots)"
	rm -f "$said"
	sh_on spark2 'rm -f /dev/nvidia0 /root/served; echo 0 >/proc/sys/vm/nr_overcommit_hugepages'
}
