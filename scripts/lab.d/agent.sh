# shellcheck shell=bash
# sparkrun on the hosts: build it, start and kill its agents, and make one
# cluster of them by the commands a person would type: init, token create, join.

on() { # on HOST CMD...: run CMD there as this lab's own hand
	pid_of "$1" || die 1 "$(why_not "$1")"
	nsenter --target "$PID" --net --mount --uts --ipc --pid --cgroup \
		env -C / PATH="$DIR/bin:$PATH" SPARKRUN_SYSFS="$DIR/hosts/$1/sysfs/sys" "${@:2}"
}

# binary_find [PATH]: sets BINARY, building it when none is named.
binary_find() {
	BINARY=${1:-${SPARKRUN_BIN:-}}
	if [[ -z $BINARY ]]; then
		. "$REPO/scripts/needs" # knows where Go is
		command -v go >/dev/null || die 1 "build sparkrun: no Go here: install it, or give --binary PATH"
		BINARY=$REPO/.build/sparkrun
		"$REPO/scripts/build" "$BINARY" ||
			die 1 "build sparkrun: see above; another binary can be given with --binary PATH"
	fi
	[[ -f $BINARY && -x $BINARY ]] || die 2 "--binary $BINARY: no such program"
}

has_state() { # has_state HOST: did it ever join?
	local found=("$DIR/hosts/$1/lib/"*)
	[[ -e ${found[0]} ]]
}

# agent_pid HOST sets REPLY to its agent's PID as the host counts. The host's
# /proc is asked whether that process is still the lab's sparkrun.
agent_pid() {
	local argv=()
	pid_of "$1" && [[ -r $DIR/hosts/$1/agent.pid ]] && read -r REPLY <"$DIR/hosts/$1/agent.pid" &&
		mapfile -d '' -t argv 2>/dev/null <"/proc/$PID/root/proc/$REPLY/cmdline" &&
		[[ " ${argv[*]-}" == *[\ /]"sparkrun agent"* ]]
}

# agent_start HOST: as the unit would start it: a bare environment, a cgroup of
# its own, a child of PID 1. Returns when it listens on its socket.
agent_start() {
	local host=$1 me=$DIR/hosts/$1 i name
	local kept=("HF_ENDPOINT=${HF_ENDPOINT:-http://127.0.0.1:9}") # the Hub: no host of a lab reaches the real one
	! agent_pid "$host" || die 1 "$host has an agent already, process $REPLY there: '$0 kill $host --agent' first"
	for name in SPARKRUN_LOG GOCOVERDIR GODEBUG GORACE GOTRACEBACK; do
		[[ -z ${!name-} ]] || kept+=("$name=${!name}")
	done
	rm -f "$me/agent.pid"
	pid_of "$host"
	# The reader of $! is the host's own shell, so the number is the host's.
	# shellcheck disable=SC2016 # expanded there
	nsenter --target "$PID" --net --mount --uts --ipc --pid --cgroup \
		env -i HOME=/root LANG=C.UTF-8 SPARKRUN_SYSFS="$me/sysfs/sys" SPARKRUN_NETPLAN_APPLY="$DIR/fake-netplan-apply" "${kept[@]}" \
		PATH="$DIR/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
		bash -c '
			[[ -z $2 ]] || echo $$ >"$2/system.slice/sparkrun.service/cgroup.procs"
			cd /
			setsid env --default-signal=INT,QUIT sparkrun agent &
			echo $! >"$1"' - "$me/agent.pid" "$CGROUP" </dev/null >>"$me/agent.log" 2>&1 9>&-
	for ((i = 0; i < 1500; i++)); do
		agent_listens && return
		# In the middle of an exec a process has no argv.
		agent_pid "$host" || ((i < 3)) || [[ -d /proc/$PID/root/proc/$REPLY ]] || break
		pause 0.02
	done
	say "start agent on $host: it $([[ -d /proc/$PID/root/proc/$REPLY ]] && echo does not listen || echo ended):"
	tail -n 5 "$me/agent.log" >&2
	return 1
}

agent_listens() { # at PID's host: is a socket of that name open, not merely left behind?
	local flags path
	while read -r _ _ _ flags _ _ _ path; do
		[[ $flags == 00010000 && $path == */sparkrun/agent.sock ]] && return
	done <"/proc/$PID/net/unix"
	return 1
}

agent_kill() { # agent_kill HOST: kill -9 of that one process; its ranks live on
	local host=$1 agent
	agent_pid "$host" || die 1 "$host has no agent: '$0 start $host --agent'"
	agent=$REPLY
	on "$host" bash -c "kill -9 $agent"
	# Until it is reaped: its memory, and so its argv, goes before its locks do.
	while [[ -e /proc/$PID/root/proc/$agent ]]; do pause 0.01; done
	rm -f "$DIR/hosts/$host/agent.pid"
}

PATIENCE=45s # for all to be seen by the first

# cluster_make: spark1 makes the cluster, the others join all at once.
cluster_make() {
	local first=${HOSTS[0]} rest=("${HOSTS[@]:1}") host token pids=() failed=()
	local wait=(on "$first" sparkrun status --timeout $PATIENCE --wait-nodes)
	on "$first" sparkrun init >>"$DIR/hosts/$first/join.log" 2>&1 || join_failed init "$first"
	agent_start "$first"
	if ((${#rest[@]})); then
		"${wait[@]}" 1 >>"$DIR/hosts/$first/join.log" 2>&1 || join_failed "wait for" "$first"
		token=$(on "$first" sparkrun token create --uses ${#rest[@]} 2>>"$DIR/hosts/$first/join.log") ||
			join_failed "token create on" "$first"
		for host in "${rest[@]}"; do
			join_one "$host" "$token" &
			pids+=($!)
		done
		for host in "${!pids[@]}"; do wait "${pids[host]}" || failed+=("${rest[host]}"); done
		((!${#failed[@]})) || join_failed join "${failed[@]}"
	fi
	"${wait[@]}" ${#HOSTS[@]} >>"$DIR/hosts/$first/join.log" 2>&1 || join_failed "wait for all to be ready on" "$first"
}

join_one() { # the token goes by a pipe: in argv every user would see it
	address "${HOSTS[0]}" enP7s7
	on "$1" sparkrun join "$REPLY" --token-file - <<<"$2" >>"$DIR/hosts/$1/join.log" 2>&1 && agent_start "$1"
}

join_failed() { # join_failed STEP HOST...: the hosts stay up, to be looked at
	local host
	for host in "${@:2}"; do
		say "$1 $host:"
		tail -n 5 "$DIR/hosts/$host/join.log" "$DIR/hosts/$host/agent.log" >&2 2>/dev/null || :
	done
	die 1 "the hosts are up, the cluster is not; logs: $DIR/hosts/*/{join,agent}.log; '$0 down' removes all"
}
