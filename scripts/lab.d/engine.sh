# shellcheck shell=bash
# A container engine on a host: a real dockerd with a containerd of its own, in the
# host's namespaces, its data on the host's disk. It is started when somebody asks for
# it. Decides nothing about what runs in it.

# engine_start HOST: returns when it answers.
engine_start() {
	local host=$1 me=$DIR/hosts/$1 i
	for i in dockerd containerd runc; do
		command -v "$i" >/dev/null || die 1 "$i is missing: apt-get install docker.io"
	done
	mkdir -p "$me/docker"
	# Its groups of cgroup v1 lie in a tree that all hosts share.
	# shellcheck disable=SC2016 # expanded there
	on "$host" bash -c '
		setsid env --default-signal=INT,QUIT dockerd --data-root "$1/docker" --exec-root /run/docker -p /run/docker.pid -H unix:///run/docker.sock \
			--bridge=none --iptables=false --ip6tables=false --cgroup-parent "/sparkrun-lab-$2" "${@:3}" &' \
		- "$me" "$LAB-$host" "${@:2}" </dev/null >>"$me/engine.log" 2>&1 9>&-
	for ((i = 0; i < 3000; i++)); do
		on "$host" docker version >/dev/null 2>&1 && return
		pause 0.05
	done
	say "start the engine of $host: it does not answer:"
	tail -n 5 "$me/engine.log" >&2
	return 1
}

engine_pid() { on "$1" cat /run/docker.pid 2>/dev/null; }

# engine_stop HOST: as `systemctl stop docker` would; containers stay with --live-restore alone.
engine_stop() {
	local pid i
	pid=$(engine_pid "$1") || die 1 "$1 has no engine: '$0 engine $1'"
	on "$1" kill "$pid"
	for ((i = 0; i < 3000; i++)); do
		on "$1" test -d "/proc/$pid" || return 0
		pause 0.02
	done
	die 1 "the engine of $1 does not end"
}

# engine_image HOST NAME [CHANGE...]: has the image lab/NAME there, of a tree that tree_NAME makes. It is made
# once and brought to all: an import of its own on each host would have an ID of its own.
engine_image() {
	local host=$1 name=$2 tree=$DIR/image.$2 changes=() c
	! on "$host" docker image inspect "lab/$name" >/dev/null 2>&1 || return 0
	if [[ ! -e $tree.tar ]]; then
		for c in "${@:3}"; do changes+=(--change "$c"); done
		mkdir -p "$tree"
		"tree_$name" "$tree"
		tar -C "$tree" -c . | on "$host" docker import "${changes[@]}" - "lab/$name" >/dev/null
		on "$host" docker save "lab/$name" >"$tree.tar.new"
		mv "$tree.tar.new" "$tree.tar"
	fi
	on "$host" docker load -q <"$tree.tar" >/dev/null
}

tree_busybox() { # busybox alone
	local box applet
	box=$(command -v busybox) || die 1 "busybox is missing: apt-get install busybox-static"
	mkdir -p "$1"/{bin,tmp,etc}
	chmod 1777 "$1/tmp"
	cp "$box" "$1/bin/busybox"
	for applet in $("$box" --list); do [[ -e $1/bin/$applet ]] || ln -s busybox "$1/bin/$applet"; done
}

tree_bare() { # nothing but the way to a /usr that is to be mounted: this machine's programs in a container
	mkdir -p "$1"/{usr,tmp,etc,proc,dev,sys,sbin} # docker-init is put into /sbin: a link would lead below the mount
	chmod 1777 "$1/tmp"
	ln -s usr/bin usr/lib usr/lib64 "$1/"
}

# engine_groups_remove HOST...: what runc leaves in the trees of cgroup v1.
engine_groups_remove() {
	local host group
	for host in "${@##*/}"; do
		for group in /sys/fs/cgroup/*/"sparkrun-lab-$LAB-$host"; do
			[[ ! -d $group ]] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || :
		done
	done
}

cmd_engine() {
	local stop="" options=() host
	while [[ ${1-} == --* ]]; do
		case $1 in
		--stop) stop=yes ;;
		--live-restore | --insecure-registry=*) options+=("$1") ;;
		--containerd-store)
			echo '{"features": {"containerd-snapshotter": true}}' >"$DIR/containerd-store.json"
			options+=(--config-file "$DIR/containerd-store.json")
			;;
		*) usage "engine: what is '$1'?" ;;
		esac
		shift
	done
	(($#)) || usage "engine wants HOST..."
	for host; do need_host "$host" on; done
	local starts=() start
	for host; do
		if [[ $stop ]]; then
			engine_stop "$host"
		elif ! on "$host" docker version >/dev/null 2>&1; then
			engine_start "$host" "${options[@]}" &
			starts+=($!)
		fi
	done
	for start in "${starts[@]}"; do wait "$start"; done
	[[ ! $stop ]] || return 0
	for host; do
		engine_image "$host" busybox 'ENV PATH=/bin' 'ENV SHAPE=image'
		engine_image "$host" bare 'ENV PATH=/usr/bin'
	done
}
