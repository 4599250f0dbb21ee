# shellcheck shell=bash
# The memory guard: a rank that eats the machine is ended before it stalls. With
# the guard off the same rank wedged such a machine for eight minutes, until the
# kernel's OOM killer took it: nothing to wait for here.

eater='
import time  # VM_TEST
held = []
while True:
    held.append(bytearray(8 << 20))
    time.sleep(0.05)'

# answers: the slowest of many short commands over ssh while the rank eats.
answers() { # answers FILE
	local began took slowest=0
	while [[ -e $1 ]]; do
		began=${EPOCHREALTIME/./}
		on spark2 sparkrun ps >/dev/null 2>&1 || echo "spark2 did not answer" >>"$1"
		took=$((${EPOCHREALTIME/./} - began))
		((took <= slowest)) || slowest=$took
	done
	echo "      the slowest answer of ssh and agent meanwhile: $((slowest / 1000)) ms"
}
eats() { # eats WORDS: it ends, and the last words say why
	local out code=0
	out=$(on spark1 sparkrun launch exec --on spark2 --workdir / -- python3 -c "$eater" 2>&1) || code=$?
	echo "$out"
	((code != 0)) && grep -qE "$1" <<<"$out"
}
guard_floor() { # guard_floor SIZE
	on spark2 sh -c "mkdir -p /etc/systemd/system/sparkrun.service.d &&
		printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/sparkrun agent --memory-floor $1\n' >/etc/systemd/system/sparkrun.service.d/floor.conf &&
		systemctl daemon-reload && systemctl restart sparkrun"
}
boots() { on spark2 cat /proc/sys/kernel/random/boot_id; }

section_memory() {
	local boot while_
	check "both machines are ready" both_ready
	boot=$(boots)
	check "an agent with a floor of 128 MiB" guard_floor 128MiB
	check "both machines are ready with it" both_ready
	while_=$(mktemp)
	answers "$while_" &
	check "a rank that eats the memory is ended by the guard, and it says so" eats 'memory-floor'
	check "ssh and the agent answered all the while" test ! -s "$while_"
	rm -f "$while_" && wait $!
	on spark2 rm -r /etc/systemd/system/sparkrun.service.d
	on spark2 sh -c 'systemctl daemon-reload && systemctl restart sparkrun'
	check "both machines are ready again" both_ready
	check "the machine was not rebooted" test "$boot" = "$(boots)"
}
