# shellcheck shell=bash
# The life of a host: its disk, power on, power off. A host is the process
# `init HOST` (lab.d/init) and the namespaces that live and die with it; its
# disk is a folder that outlives it. Decides nothing about networks or agents.

# disk_make HOST...: what a host keeps over reboots: its changes to /etc, and
# /var/lib/sparkrun.
disk_make() {
	local host me other id
	for host; do
		me=$DIR/hosts/$host
		mkdir -p "$me"/{lib,sysfs,etc.work,etc}
		echo "$host" >"$me/etc/hostname"
		# The group a package would make: its members may use the agent.
		{ grep -v '^sparkrun:' /etc/group && echo 'sparkrun:x:986:'; } >"$me/etc/group"
		id=$(md5sum <<<"$LAB/$host")
		echo "5a52${id:0:28}" >"$me/etc/machine-id"
		{
			printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n'
			for other in "${HOSTS[@]}"; do
				address "$other" enP7s7
				echo "$REPLY $other"
			done
		} >"$me/etc/hosts"
	done
}

# gpus_make: what /proc would have of NVIDIA's driver, and the tool that tells of it.
gpus_make() {
	local host
	cp "$HERE/lab.d/standin-nvidia-smi" "$DIR/bin/nvidia-smi"
	for host in "${HOSTS[@]}"; do
		mkdir -p "$DIR/hosts/$host/driver/nvidia/gpus/000f:01:00.0"
		echo util=0 >"$DIR/hosts/$host/gpu"
	done
}

# boot NAME...: start the keepers of namespaces and wait until each has said
# that its host's view is made. Sets no links.
boot() {
	local name me ready=$DIR/ready.$BASHPID said=0 word pid cgroup
	mkfifo "$ready"
	exec 4<>"$ready"
	rm "$ready"
	for name; do
		[[ -d $DIR/hosts/$name ]] && me=$DIR/hosts/$name || me=$DIR
		boot_one "$name" >>"$me/console.log" 2>&1 </dev/null &
	done
	while ((said < $#)); do
		read -r -t 20 -u 4 word pid || die 1 "a host did not come up within 20 s: see $DIR/hosts/*/console.log"
		[[ -d $DIR/hosts/$word ]] && me=$DIR/hosts/$word/ || me=$DIR/$word.
		[[ $pid != failed ]] || die 1 "start $word: see ${me%/*}/console.log"
		echo "$pid $CGROUP" >"${me}on"
		((++said))
	done
	exec 4>&-
}

# boot_one becomes the parent of PID 1, or a bare network's keeper itself. It holds
# the lab's lock until then: `down` must not miss one still on its way.
boot_one() {
	local name=$1 me=$DIR/hosts/$1 cgroup id
	[[ -d $me ]] || exec setsid unshare --net bash "$DIR/init" "$name" 9>&-
	rm -rf "${me:?}/tmp" "$me/agent.pid"
	mkdir -m 1777 "$me/tmp"
	chmod 1777 "$me/tmp"
	read -r id </proc/sys/kernel/random/uuid
	echo "$id" >"$me/boot_id"
	chmod 444 "$me/boot_id"
	if [[ $CGROUP ]]; then
		cgroup=$CGROUP/sparkrun-lab/$LAB/$name
		mkdir -p "$cgroup"
		echo "$BASHPID" >"$cgroup/cgroup.procs"
	fi
	export CGROUP
	exec setsid unshare --net --mount --uts --ipc --cgroup --pid --fork bash "$DIR/init" "$name" 9>&-
}

power_on() { # power_on HOST...
	local host
	boot "$@"
	wire_hosts "$@"
	for host; do : >"$DIR/hosts/$host/wired"; done
	wire_apply
	for host; do slow_links "$host"; done
	sysfs_sync_all "$@"
}

# power_off HOST: first its cables fall silent, so that no peer is told by a
# FIN or RST of a dying kernel; then everything on it ends at once.
power_off() {
	local host=$1 pid
	pid_of "$host"
	pid=$PID
	rm -f "$DIR/hosts/$host/on"
	wire_apply
	kill -9 "$pid"
	gone "$pid" || die 1 "power off $host: process $pid does not end (a process of it hangs in the kernel?)"
	unwire_host "$host"
	rm -f "$DIR/hosts/$host/wired" "$DIR/hosts/$host/agent.pid"
	cgroup_remove "$CGROUP/sparkrun-lab/$LAB/$host"
}

# gone PID...: have all of them ended within 10 s? One that only waits to be
# reaped by whoever adopted it has: a PID 1 dies after all it was init of.
gone() {
	local pid state i
	for pid; do
		for ((i = 0; i < 1000; i++)); do
			read -r _ _ state _ 2>/dev/null <"/proc/$pid/stat" || continue 2
			[[ $state != Z ]] || continue 2
			pause 0.01
		done
		return 1
	done
}

pause() { read -r -t "$1" -u "$NEVER" || :; } # waiting without a process
exec {NEVER}<> <(:)

# cgroup_remove FOLDER: with all below it; what still lives there is ended.
cgroup_remove() {
	local i
	[[ $CGROUP && -d $1 ]] || return 0
	for ((i = 0; i < 100; i++)); do
		find "$1" -depth -type d -exec rmdir {} + 2>/dev/null && return 0
		[[ ! -e $1/cgroup.kill ]] || echo 1 >"$1/cgroup.kill" 2>/dev/null || :
		pause 0.02
	done
	say "the cgroup $1 is still in use"
	return 1
}

find_cgroup() { # where cgroup v2 is mounted, if at all
	local line
	CGROUP=
	while read -r -a line; do
		if [[ ${line[2]} == cgroup2 ]]; then
			CGROUP=${line[1]}
			break
		fi
	done </proc/mounts
}
