# shellcheck shell=bash
# The machine that packages are tried on: systemd-nspawn boots a Debian of its own,
# with systemd as PID 1, its own cgroup v2 tree and a network that reaches nobody.
# Nothing of it is kept but the packages that it is made of.

CONTAINER_PACKAGES=systemd,systemd-sysv,dbus,libpam-systemd,init-system-helpers,man-db,iproute2,iputils-ping,procps,bash-completion

container_root() { # sets ROOT: made once, and kept by what is in it
	local hash
	hash=$(sha256sum <<<"$SUITE $CONTAINER_PACKAGES")
	ROOT=$CACHE/${hash:0:16}
	[[ ! -d $ROOT ]] || return 0
	echo "making the container's Debian, once: a few minutes; kept in $ROOT"
	mkdir -p "$CACHE"
	rm -rf --one-file-system "$ROOT.part"
	# Mounts of its own, which end with it: debootstrap leaves /proc mounted.
	unshare --mount --pid --fork --kill-child debootstrap --variant=minbase --include="$CONTAINER_PACKAGES" "$SUITE" "$ROOT.part" >"$work/debootstrap.log" 2>&1 ||
		{ tail -n 20 "$work/debootstrap.log" && return 1; }
	: >"$ROOT.part/etc/machine-id"
	chroot "$ROOT.part" useradd --create-home --uid 1000 spark
	mv "$ROOT.part" "$ROOT"
}

container_up() { # not by check, in whose subshell it would be forgotten
	if container_boots >"$work/boot.log" 2>&1; then ok "a container boots"; else fail "a container boots" "$(cat "$work/boot.log")" && return 1; fi
}
container_boots() {
	container_root || return
	# What is written goes to memory, and is gone with the container.
	SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --quiet --boot --register=no --keep-unit --private-network --volatile=overlay \
		--bind-ro="$work:/release" --directory="$ROOT" --machine="release-$$" </dev/null >"$work/console" 2>&1 &
	nspawn=$!
	eventually 60 pgrep -P "$nspawn" || return
	PID1=$(pgrep -P "$nspawn" | head -n 1)
	eventually 300 booted || { cat "$work/console" && return 1; }
	inside ip link set lo up && inside ip link add eth0 type veth peer name eth1 && inside ip link set eth1 up && inside ip address add 10.77.0.1/24 dev eth0 && inside ip link set eth0 up
}
booted() { [[ $(inside systemctl is-system-running 2>&1) =~ ^(running|degraded)$ ]]; }
inside() { nsenter --target "$PID1" --mount --uts --ipc --net --pid --cgroup env --chdir=/ -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
sh_inside() { inside sh -c "$1"; }

container_down() {
	[[ $nspawn ]] || return 0
	# Its PID 1 going is the power failing: all else in there goes with it.
	kill -KILL "$PID1" 2>/dev/null
	wait "$nspawn" 2>/dev/null
	nspawn=
}
