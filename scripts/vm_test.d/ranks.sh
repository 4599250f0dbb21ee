# shellcheck shell=bash
# Ranks under real systemd and cgroup v2: their scope, the end of one that is
# deaf to TERM, and agents that are killed and replaced under a reader.

# scope_of HOST NAME: the scope of the newest job of that name there.
scope_of() {
	local id
	id=$(on spark1 sparkrun ps --all --json | python3 -c '
import json, sys
print([j["job_id"] for j in json.load(sys.stdin) if j["name"] == sys.argv[1]][-1])' "$2") || return
	on "$1" systemctl list-units --plain --no-legend "sparkrun-*$id*.scope" | awk '{print $1}'
}
in_its_scope() { # in_its_scope HOST NAME PATTERN: the ranks are below it, Delegate=yes, in sparkrun.slice
	local scope pid
	scope=$(scope_of "$1" "$2")
	if [[ -z $scope ]]; then echo "no scope of $2" && return 1; fi
	on "$1" systemctl show "$scope" --property Slice,Delegate | sort | paste -sd ' ' | grep -x 'Delegate=yes Slice=sparkrun.slice' || return
	pid=$(on "$1" pgrep -f "$3" | head -n 1)
	on "$1" grep -F "/sparkrun.slice/$scope/" "/proc/$pid/cgroup"
}
no_scope() { # no_scope HOST
	local left
	left=$(on "$1" systemctl list-units --plain --no-legend --all 'sparkrun-*.scope')
	[[ -z $left ]] || { echo "$left" && return 1; }
}

# A rank that notes TERM and goes on, and who sees it vanish: a unit of its own,
# so that nothing of sparkrun's ends the looking.
deaf_rank='
import os, signal, time  # VM_TEST
def told(*_):
    open("/root/deaf.term", "w").write(repr(time.clock_gettime(time.CLOCK_MONOTONIC)))
signal.signal(signal.SIGTERM, told)
open("/root/deaf.pid", "w").write(str(os.getpid()))
while True: time.sleep(0.01)'
deaf_watch='
import os, time
pid = open("/root/deaf.pid").read()
while os.path.exists("/proc/" + pid): time.sleep(0.01)
open("/root/deaf.gone", "w").write(repr(time.clock_gettime(time.CLOCK_MONOTONIC)))'
killed_at_grace() { # killed_at_grace SECONDS: and one second to either side
	on spark2 python3 -c '
import sys
took = float(open("/root/deaf.gone").read()) - float(open("/root/deaf.term").read())
print("KILL after %.3f s" % took)
sys.exit(abs(took - float(sys.argv[1])) > 1)' "$1"
}
deaf_is_there() { on spark2 test -s /root/deaf.pid; }
deaf_is_gone() { on spark2 test -s /root/deaf.gone; }

# The stream: numbered lines, so that a missing or doubled byte shows.
stream_rank='i=0; while [ $i -lt 600 ]; do i=$((i+1)); echo "VM_TEST line $i of the stream"; sleep 0.1; done; exit 7'
stream_is_whole() { # stream_is_whole FILE: the launch has ended with 7, and FILE has every line
	local code
	eventually 300 test -s "$1.code" || { tail -n 3 "$1.err" && return 1; }
	code=$(<"$1.code")
	((code == 7)) || { echo "the launch exited with $code: $(tail -n 3 "$1.err")" && return 1; }
	diff <(seq -f 'VM_TEST line %.0f of the stream' 600) "$1" | head -n 5
	((PIPESTATUS[0] == 0))
}
# put another binary in the agent's place while it runs, as a package would.
upgrade() {
	on "$1" sh -c 'cp /usr/local/bin/sparkrun /usr/local/bin/.new && echo upgraded >>/usr/local/bin/.new &&
		mv /usr/local/bin/.new /usr/local/bin/sparkrun && systemctl restart sparkrun'
}

section_ranks() {
	local out code
	check "both machines are ready" both_ready
	on spark2 rm -f /root/deaf.{pid,term,gone}
	check "a rank that is deaf to TERM is launched" eventually 180 on spark1 sparkrun launch exec --detach --name deaf --on spark2 --grace 5s --workdir / -- \
		python3 -c "$deaf_rank"
	check "it runs" eventually 60 deaf_is_there
	check "it is in a scope of sparkrun.slice, Delegate=yes" in_its_scope spark2 deaf 'VM_[T]EST'
	on spark2 systemd-run --quiet python3 -c "$deaf_watch"
	check "stop ends it" on spark1 sparkrun stop deaf
	check "it is gone" eventually 60 deaf_is_gone
	check "by KILL, the grace (5 s) after TERM, within 1 s" killed_at_grace 5
	on spark2 paste -d ' ' /root/deaf.term /root/deaf.gone | awk '{printf "      TERM to the end: %.3f s\n", $2 - $1}'
	check "no scope is left" eventually 30 no_scope spark2

	out=$(mktemp)
	{
		code=0
		lab exec spark1 -- sparkrun launch exec --name steady --on spark2 --workdir / --output raw -- sh -c "$stream_rank" >"$out" 2>"$out.err" </dev/null || code=$?
		echo "$code" >"$out.code"
	} &
	check "a rank writes to a reader on another machine" eventually 120 has_ranks spark2
	outlives spark2 "kill -9 of the agent under it" lab kill spark2 --agent
	outlives spark2 "an upgrade of the agent under it" upgrade spark2
	check "every line came once and in order, and exit 7" stream_is_whole "$out"
	rm -f "$out" "$out".{err,code}
	check "no scope is left after that" eventually 30 no_scope spark2
}
