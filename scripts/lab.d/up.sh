# shellcheck shell=bash
# A lab as a whole: up, status, down, and its lock. All of a lab is its folder,
# the processes whose argv names that folder, and one cgroup; `down` goes by
# these alone, so that it clears up whatever half of a lab there is.

# lock: one command at a time changes a lab. The lock is the folder itself, so
# that none is left behind. Daemons must be started with 9>&-.
lock() {
	exec 9<"$DIR"
	flock -n 9 || {
		say "waiting for another command on lab '$LAB'"
		flock -w 120 9 || die 1 "another command holds lab '$LAB' for two minutes now"
	}
	[[ $DIR -ef /proc/self/fd/9 ]] || die 1 "lab '$LAB' was taken down meanwhile"
}

# with_root CMD...: while no other lab comes or goes.
with_root() {
	while :; do
		mkdir -p "$ROOT"
		[[ -O $ROOT ]] || die 1 "$ROOT belongs to someone else: look at it and remove it"
		exec 8<"$ROOT"
		flock -w 120 8 || die 1 "another lab comes or goes for two minutes now"
		[[ $ROOT -ef /proc/self/fd/8 ]] && break
	done
	local code=0
	"$@" || code=$?
	exec 8<&-
	return $code
}

load() { # what `up` decided: HOSTS, TOPOLOGY, AGENTS, ADDRESSES, CGROUP; and PLUG as it is now
	local count
	read -r count TOPOLOGY AGENTS ADDRESSES CGROUP <"$DIR/lab" || die 1 "lab '$LAB' is half up: '$0 down' first"
	host_names "$count"
	plugs_read
}

host_names() {
	local i
	HOSTS=()
	for ((i = 1; i <= $1; i++)); do HOSTS+=("spark$i"); done
}

cmd_up() {
	local nodes="" binary="" named="" share shares=()
	[[ $LAB == lab ]] || named="LAB=$LAB "
	SECONDS=0 # not local: that takes its meaning away
	TOPOLOGY=switch AGENTS=yes ADDRESSES=yes GPU=no
	while (($#)); do
		case $1 in
		--nodes | --topology | --binary | --share)
			(($# >= 2)) || usage "$1 wants a value"
			case $1 in
			--nodes) nodes=$2 ;;
			--topology) TOPOLOGY=$2 ;;
			--binary) binary=$2 ;;
			--share) shares+=("$2") ;;
			esac
			shift 2
			;;
		--no-agent) AGENTS=no && shift ;;
		--no-addresses) ADDRESSES=no && shift ;;
		--gpu) GPU=yes && shift ;;
		*) usage "up: what is '$1'?" ;;
		esac
	done
	topology_check "$nodes"
	for share in "${shares[@]}"; do
		[[ $share == /tmp/* && -d $share ]] || usage "--share $share: only a folder below /tmp needs it"
	done
	tools_need
	[[ ! -d $DIR ]] || up_already
	binary_find "$binary"

	with_root folder_make || up_already
	lock
	trap 'up_failed' EXIT
	find_cgroup
	host_names "$NODES"
	cabling
	hosts_make "${shares[@]}"
	trap - EXIT
	if [[ $AGENTS == yes ]]; then
		cluster_make
		say "$NODES hosts are up and joined after $SECONDS s: ${named}$0 exec spark1 -- sparkrun status"
	else
		say "$NODES hosts are up, without agents: ${named}$0 exec spark1 -- CMD..."
	fi
	[[ $VM == yes ]] || say "warning: /root and /home are this machine's own: what a program removes there is removed here"
}

tools_need() {
	local tool
	for tool in ip tc nsenter unshare setsid setpriv flock; do
		command -v $tool >/dev/null || die 1 "$tool is missing: apt-get install iproute2 util-linux"
	done
}

up_already() { die 1 "lab '$LAB' is there already: use it, or '$0 down' first, or have a second one: LAB=other $0 up"; }

up_failed() {
	say "it did not come up; clearing away what there was"
	cat "$DIR"/console.log "$DIR"/hosts/*/console.log >&2 2>/dev/null || :
	dismantle
}

folder_make() { # under with_root
	mkdir "$DIR" 2>/dev/null || return 1
	[[ -d /var/lib/sparkrun ]] || { : >"$ROOT/.made" && mkdir /var/lib/sparkrun; } # to mount on
}

hosts_make() { # hosts_make SHARE...
	local host
	mkdir "$DIR/bin" "$DIR/hosts" "${HOSTS[@]/#/$DIR/hosts/}"
	# Copies: the lab goes on by what it was made with, and its hosts see them
	# wherever this repository lies.
	cp "$HERE/lab.d/init" "$HERE/lab.d/enter" "$HERE/lab.d/fake-netplan-apply" "$DIR/"
	# shellcheck disable=SC2153 # set by binary_find
	cp "$BINARY" "$DIR/bin/sparkrun"
	[[ $REPO/ != /tmp/* ]] || set -- "$@" "$REPO"
	: >"$DIR/shares"
	(($# == 0)) || realpath "$@" >"$DIR/shares"

	local networks=(switch)
	[[ $TOPOLOGY != mixed ]] || networks+=(nas)
	boot "${networks[@]}" &
	local switch=$!
	sysfs_skeleton
	disk_make "${HOSTS[@]}"
	[[ $GPU == no ]] || gpus_make
	wait $switch
	switch_up
	plugs_write
	power_on "${HOSTS[@]}"
	echo "${#HOSTS[@]} $TOPOLOGY $AGENTS $ADDRESSES $CGROUP" >"$DIR/lab"
}

cmd_status() {
	local host nic flags boot agent line pid other word
	(($# == 0)) || usage "status takes nothing"
	[[ -d $DIR ]] || die 1 "no lab '$LAB' is up: $0 up"
	load
	printf "lab '%s': %d hosts, topology %s, agents %s\n" "$LAB" ${#HOSTS[@]} "$TOPOLOGY" "$AGENTS"
	printf 'folder %s; logs: hosts/*/{agent,join,console}.log\n\n' "$DIR"
	printf '%-8s %-6s %-7s %-9s %-13s %-9s %-9s %-9s %-9s %-9s %s\n' \
		HOST POWER PID BOOT ADDRESS enP7s7 port0 port0twin port1 port1twin AGENT
	for host in "${HOSTS[@]}"; do
		if ! pid_of "$host"; then
			printf '%-8s off\n' "$host"
			continue
		fi
		# shellcheck disable=SC2153 # set by pid_of
		pid=$PID
		local -A up=() there=()
		while read -r nic _ _ flags; do
			there[${nic%%@*}]=yes
			[[ $flags == *LOWER_UP* ]] && up[${nic%%@*}]=up
		done < <(nsenter --target "$pid" --net ip -br link)
		line=()
		for nic in "${NICS[@]}"; do
			word=${up[$nic]:-no-link}
			other=$host.${SUFFIX[$nic]}
			if [[ ! ${there[$nic]-} ]]; then
				word=missing
			elif [[ $nic != enP7s7 && ! ${PLUG[${other%t}]-} ]]; then
				word=no-cable
			elif is_cut "$host" "$nic"; then
				word=cut
			fi
			line+=("$word")
		done
		read -r boot <"$DIR/hosts/$host/boot_id"
		agent=none
		[[ ! -e $DIR/hosts/$host/agent.pid ]] || agent=dead
		! agent_pid "$host" || agent="pid $REPLY"
		address "$host" enP7s7
		printf '%-8s %-6s %-7s %-9s %-13s %-9s %-9s %-9s %-9s %-9s %s\n' \
			"$host" on "$pid" "${boot%%-*}" "$REPLY" "${line[@]}" "$agent"
	done
	status_cables
	for other in "$ROOT"/*/; do
		other=${other%/}
		[[ $other == "$DIR" ]] || printf '\nanother lab: LAB=%s %s status\n' "${other##*/}" "$0"
	done
}

status_cables() { # and what is broken on purpose
	local host port other
	local -A on=()
	printf '\n'
	for host in "${HOSTS[@]}"; do
		for port in p0 p1; do
			other=${PLUG[$host.$port]-}
			case $other in
			"") ;;
			*.*) [[ $other < $host.$port ]] || printf 'cable: %s port %s - %s port %s\n' "$host" "${port#p}" "${other%.*}" "${other#*.p}" ;;
			*) on[$other]+=", $host port ${port#p}" ;;
			esac
		done
		[[ ! -e $DIR/hosts/$host/fault ]] || sed "s/^/fault: $host /" "$DIR/hosts/$host/fault"
	done
	for other in "${!on[@]}"; do echo "$other: ${on[$other]#, }"; done
}

cmd_down() {
	(($# == 0)) || usage "down takes nothing"
	find_cgroup
	if [[ -d $DIR ]]; then
		lock
	elif ! lab_pids; then
		die 1 "no lab '$LAB' is up"
	fi
	dismantle
}

# lab_pids sets PIDS: the keepers of this lab's hosts and those entering them;
# their parents (unshare) only when none of these is left, for they reap them.
lab_pids() {
	local file argv parents=()
	PIDS=()
	for file in /proc/[0-9]*/cmdline; do
		argv=()
		mapfile -d '' -t argv 2>/dev/null <"$file" || continue
		[[ " ${argv[*]-} " == *" $DIR/"@(init|enter)" "* ]] || continue
		file=${file%/cmdline}
		[[ ${argv[0]} == bash ]] && PIDS+=("${file##*/}") || parents+=("${file##*/}")
	done 2>/dev/null
	((${#PIDS[@]})) || PIDS=("${parents[@]}")
	((${#PIDS[@]}))
}

dismantle() {
	local tries=0
	while lab_pids; do
		((tries++ < 20)) || die 1 "processes of lab '$LAB' do not end: ${PIDS[*]}"
		kill -9 "${PIDS[@]}" 2>/dev/null || :
		gone "${PIDS[@]}" || :
	done
	cgroup_remove "$CGROUP/sparkrun-lab/$LAB"
	engine_groups_remove "$DIR"/hosts/*
	with_root folder_remove
}

folder_remove() { # under with_root; the last lab takes along what the first one made
	local left
	rm -rf --one-file-system "$DIR"
	left=("$ROOT"/*/)
	[[ -e ${left[0]} ]] && return
	[[ ! -e $ROOT/.made ]] || rmdir --ignore-fail-on-non-empty /var/lib/sparkrun
	rm -f "$ROOT/.made"
	[[ -z $CGROUP || ! -d $CGROUP/sparkrun-lab ]] || rmdir --ignore-fail-on-non-empty "$CGROUP/sparkrun-lab"
	rmdir "$ROOT"
}
