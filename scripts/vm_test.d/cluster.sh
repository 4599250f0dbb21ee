# shellcheck shell=bash
# A cluster under real systemd: joined by the commands a person types, agents by
# scripts/sparkrun.service, ranks that outlive restarts and crashes of them.

# marked HOST: the processes of the job's ranks there. The brackets keep the
# asking shell's own command line from matching.
marked() { on "$1" pgrep -f 'VM_[T]EST' | sort -n; }
has_ranks() { [[ -n $(marked "$1") ]]; }
no_ranks() { [[ -z $(marked "$1") ]]; }

agent_of() { on "$1" systemctl show --property MainPID --value sparkrun; }
new_agent() { # new_agent HOST OLD
	local now
	now=$(agent_of "$1") && [[ $now && $now != 0 && $now != "$2" ]]
}
both_ready() { on spark1 sparkrun status --wait-nodes 2 --timeout 2m; }

job_state() { # job_state STATE
	on spark1 sparkrun ps --all --json | python3 -c '
import json, sys
print(state := [j["state"] for j in json.load(sys.stdin) if j["name"] == "steady"][-1])
sys.exit(state != sys.argv[1])' "$1"
}

# outlives HOST NAME CMD...: the ranks of a running job are the same processes after CMD has
# put another agent in place of HOST's, and the job runs on.
outlives() {
	local host=$1 name=$2 before agent
	shift 2
	before=$(marked "$host") agent=$(agent_of "$host")
	check "$name: ranks run before" test -n "$before"
	check "$name" "$@"
	check "$name: a new agent is there" eventually 120 new_agent "$host" "$agent"
	check "$name: it did not fail on the way (219/CGROUP)" not_failed "$host"
	check "$name: both machines are ready again" both_ready
	check "$name: the ranks are the same processes" test "$before" = "$(marked "$host")"
	check "$name: the job runs" eventually 60 job_state running
}
not_failed() { ! on "$1" journalctl --no-pager --boot --unit sparkrun | grep 219/CGROUP; }

both_names() {
	local out
	out=$(on spark1 sparkrun launch exec --nodes 2 --workdir / -- hostname) || return
	[[ $(sort <<<"$out") == $'[0] spark1\n[1] spark2' || $(sort <<<"$out") == $'[0] spark2\n[1] spark1' ]] || { echo "$out" && return 1; }
}

limits() { # limits HOST: those of its ranks
	local pid
	pid=$(marked "$1" | head -n 1)
	on "$1" grep -E '^Max locked memory +unlimited +unlimited' "/proc/$pid/limits"
}
oom_of() { # oom_of HOST WANT: of its ranks
	local pid got
	pid=$(marked "$1" | head -n 1)
	got=$(on "$1" cat "/proc/$pid/oom_score_adj")
	[[ $got == "$2" ]] || { echo "oom_score_adj is $got, want $2" && return 1; }
}
agent_is_safe() {
	local got
	got=$(on "$1" cat "/proc/$(agent_of "$1")/oom_score_adj")
	[[ $got == -900 ]] || { echo "oom_score_adj is $got" && return 1; }
}
agent_back() { on spark2 systemctl is-active sparkrun; }

section_cluster() {
	local host
	check "cgroup v2 is all there is" sh_on spark1 '[ "$(stat -fc %T /sys/fs/cgroup)" = cgroup2fs ] && ! grep -q " cgroup " /proc/mounts'
	check "PID 1 is systemd" sh_on spark1 '[ "$(cat /proc/1/comm)" = systemd ]'
	check "both machines are ready" both_ready
	check "a launch on both" eventually 180 both_names # a busy machine loses one on the way
	check "the agent is out of the OOM killer's reach" agent_is_safe spark1

	check "a job that stays is launched" on spark1 sparkrun launch exec --detach --name steady --nodes 2 --workdir / -- \
		sh -c ': VM_TEST; while :; do date +%s; sleep 1; done'
	for host in spark1 spark2; do check "its rank runs on $host" eventually 60 has_ranks "$host"; done
	check "a rank may lock all memory" limits spark1
	check "a rank is within the OOM killer's reach" oom_of spark1 0
	outlives spark2 "restart of a follower's unit" on spark2 systemctl restart sparkrun
	outlives spark1 "restart of the launching host's unit" on spark1 systemctl restart sparkrun
	outlives spark2 "kill -9 of an agent" lab kill spark2 --agent
	outlives spark2 "a second restart" on spark2 systemctl restart sparkrun
	check "stop ends it" on spark1 sparkrun stop steady
	for host in spark1 spark2; do check "no rank is left on $host" eventually 60 no_ranks "$host"; done
}
