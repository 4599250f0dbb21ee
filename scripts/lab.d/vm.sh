# shellcheck shell=bash
# `lab --vm`: a host is a virtual machine under software emulation, in place of
# namespaces. This file redefines what the other files say of a host: what it is
# made of, how it is powered on and off, entered and wired, and its agent, which
# systemd keeps there. Commands, topologies and cables are the same code.
# The bridges and the VMs' taps lie in the namespace that `init switch` keeps.

ROOT=/var/tmp/sparkrun-lab-vm
DIR=$ROOT/$LAB
BASH_ARGV0="$0 --vm" # what is told to be typed
USUAL=2              # hosts, where nothing else is said
PATIENCE=2m          # what takes a second on a machine takes ten in emulation

VM_BOOT=600     # seconds until ssh must answer; 15 to 40 on an idle machine
VM_ARCH=${SPARKRUN_LAB_ARCH:-amd64}
[[ ! -e $DIR/arch ]] || VM_ARCH=$(<"$DIR/arch")
case $VM_ARCH in
amd64) VM_MEMORY=1024 VM_CONSOLE=ttyS0 QEMU_PACKAGE=qemu-system-x86 QEMU=(qemu-system-x86_64 -machine q35 -cpu max) ;;
# pauth-impdef: a cipher that is quick to emulate, in place of the architecture's own.
arm64) VM_MEMORY=2048 VM_CONSOLE=ttyAMA0 QEMU_PACKAGE=qemu-system-arm QEMU=(qemu-system-aarch64 -machine virt -cpu max,pauth-impdef=on) ;;
*) die 2 "SPARKRUN_LAB_ARCH=$VM_ARCH: want amd64 or arm64" ;;
esac
# Where the NICs are on the PCI bus: twins are functions of different slots, as on
# a Spark, though there they are in different domains. image/ names them by this.
declare -A VM_SLOT=([enp1s0f0np0]=twin0,addr=0.0,multifunction=on [enp1s0f1np1]=twin0,addr=0.1
	[enP2p1s0f0np0]=twin1,addr=0.0,multifunction=on [enP2p1s0f1np1]=twin1,addr=0.1 [enP7s7]=mgmt)

vm_help() {
	cat <<'HELP'
lab --vm: the hosts are virtual machines under software emulation (qemu, no KVM):
Debian's own kernel with cgroup v2 only, systemd, netplan, sshd, and RDMA devices
(rdma_rxe) over the fabric's interfaces. For what namespaces cannot show; slow.

  lab --vm up [--nodes N] [--topology switch|pair|pair2|ring|mixed] [--no-agent]
              [--no-addresses] [--binary PATH]
                            2 hosts where nothing else is said, 1 GiB and one
                            emulated CPU each. It waits until sshd answers and
                            sparkrun.service runs. The first `up` builds their
                            disk (some minutes, needs Debian's archive) and keeps
                            it in /var/cache/sparkrun-lab ($SPARKRUN_LAB_CACHE).
                            SPARKRUN_LAB_ARCH=arm64 before it: arm64 machines, of
                            2 GiB, for which --binary has to be. And
                            SPARKRUN_LAB_PACKAGES="NAME...": on their disk, too
  lab --vm exec HOST -- CMD...
                            by ssh as root; stdio and exit code pass through;
                            signals do not, but the end of the connection does
  lab --vm kill HOST [--agent]
                            as if the power went; --agent: kill -9 its agent,
                            which systemd starts again
  lab --vm start HOST [--agent]
                            SPARKRUN_LAB_CLOCK=2027-01-31T12:00:00 before it: the
                            time that the machine's own clock has then (UTC)
  lab --vm cut|heal|cable|unplug|status|down
                            as without --vm

fault, mend, sync and --share are of the hosts in namespaces only.
VM labs have names of their own: LAB=x is not the same lab as LAB=x --vm.

Examples
  ./scripts/lab --vm up --topology pair2
  ./scripts/lab --vm exec spark1 -- ibv_devinfo -v
  ./scripts/lab --vm exec spark2 -- systemctl restart sparkrun
  ./scripts/lab --vm exec spark1 -- sh -c 'cat >/root/x' <x
  ./scripts/lab --vm down
HELP
}

tools_need() {
	# shellcheck source=SCRIPTDIR/../needs
	source "$HERE/needs"
	need ip:iproute2 tc:iproute2 nsenter:util-linux unshare:util-linux setsid:util-linux flock:util-linux \
		"${QEMU[0]}:$QEMU_PACKAGE" qemu-img:qemu-utils debootstrap:debootstrap mke2fs:e2fsprogs ssh:openssh-client >&2
}

is_keeper() { # is_keeper NAME, with argv: a bare network's keeper, or the qemu of that host
	[[ ${argv[1]-} == "$DIR/init" && ${argv[2]-} == "$1" ]] ||
		[[ ${argv[1]-} == -name && ${argv[2]-} == "$1" && " ${argv[*]}" == *"=$DIR/hosts/$1/"* ]]
}

lab_pids() { # sets PIDS: all processes of this lab
	local file argv
	PIDS=()
	for file in /proc/[0-9]*/cmdline; do
		argv=()
		mapfile -d '' -t argv 2>/dev/null <"$file" || continue
		file=${file%/cmdline}
		case " ${argv[*]-}" in
		" bash $DIR/init "* | " qemu-system-"*" -name "*"=$DIR/hosts/"* | " ssh: $DIR/hosts/"* | " ssh -F $DIR/ssh_config "*) PIDS+=("${file##*/}") ;;
		esac
	done 2>/dev/null
	((${#PIDS[@]}))
}

# on HOST CMD...: ssh joins its arguments by spaces and gives them to a shell.
# The namespace matters only while there is no connection to share.
on() {
	local host=$1
	shift
	in_switch ssh -F "$DIR/ssh_config" "$host" "${*@Q}"
}

vm_exec() {
	local host=${1-} tty=-T
	[[ ${2-} == -- ]] && set -- "$1" "${@:3}"
	(($# >= 2)) || usage "exec wants HOST -- CMD..."
	((EUID == 0)) || die 255 "needs root: sudo $0 exec $host ..."
	pid_of "$host" || die 255 "$(why_not "$host")"
	[[ $host != switch && $host != nas ]] || exec nsenter --net --target "$PID" "${@:2}"
	[[ ! -t 0 || ! -t 1 ]] || tty=-t
	pid_of switch
	shift
	exec nsenter --net --target "$PID" ssh -F "$DIR/ssh_config" $tty "$host" "${*@Q}"
}

folder_make() { mkdir "$DIR" 2>/dev/null; }
find_cgroup() { CGROUP=; }
sysfs_skeleton() { :; }
sysfs_sync_all() { :; }
sync_cabled_with() { :; }
has_state() { on "$1" test -e /var/lib/sparkrun/node.json; }

# disk_make HOST...: what was written since the common disk, and the tar that
# makes the host who it is (image/ lays it over the disk at the first boot).
disk_make() {
	local host me
	image_find
	cp "$IMAGE/vmlinuz" "$IMAGE/initrd" "$DIR/"
	echo "$VM_ARCH" >"$DIR/arch"
	ssh-keygen -q -t ed25519 -N '' -C "lab $LAB" -f "$DIR/key"
	cat >"$DIR/ssh_config" <<-EOC
		User root
		IdentityFile $DIR/key
		IdentitiesOnly yes
		StrictHostKeyChecking no
		UserKnownHostsFile /dev/null
		LogLevel ERROR
		ConnectTimeout 60
		ServerAliveInterval 30
		ControlPath $DIR/hosts/%n/ssh
	EOC
	for host; do
		me=$DIR/hosts/$host
		address "$host" enP7s7
		printf 'Host %s\n\tHostName %s\n' "$host" "$REPLY" >>"$DIR/ssh_config"
		qemu-img create -q -f qcow2 -b "$IMAGE/disk.img" -F raw "$me/disk.qcow2"
		mkfifo "$me/monitor.in" "$me/monitor.out"
		mkdir -p "$me"/seed/{etc/netplan,etc/systemd/system/multi-user.target.wants,root/.ssh,usr/local/bin}
		seed_etc "$host" "$me/seed/etc"
		chmod 700 "$me/seed/root" "$me/seed/root/.ssh"
		cp "$DIR/key.pub" "$me/seed/root/.ssh/authorized_keys"
		cp "$DIR/bin/sparkrun" "$me/seed/usr/local/bin/"
		cp "$HERE/sparkrun.service" "$me/seed/etc/systemd/system/"
		ln -s /etc/systemd/system/sparkrun.service "$me/seed/etc/systemd/system/multi-user.target.wants/"
		tar -C "$me/seed" --owner=0 --group=0 -cf "$me/seed.tar" .
		rm -r "$me/seed"
	done
}

seed_etc() { # seed_etc HOST FOLDER
	local host=$1 at=$2 other nic
	echo "$host" >"$at/hostname"
	{
		printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n'
		for other in "${HOSTS[@]}"; do
			address "$other" enP7s7
			echo "$REPLY $other"
		done
	} >"$at/hosts"
	seed_netplan "$host" "${NICS[0]}" >"$at/netplan/01-management.yaml"
	seed_netplan "$host" "${NICS[@]:1}" >"$at/netplan/40-cx7.yaml"
	chmod 600 "$at"/netplan/*
}

seed_netplan() { # seed_netplan HOST NIC...
	local host=$1 nic
	shift
	printf 'network:\n  version: 2\n  renderer: networkd\n  ethernets:\n'
	for nic; do
		printf '    %s:\n      dhcp4: false\n      link-local: [ipv6]\n      mtu: %s\n      optional: true\n' "$nic" "${MTU[$nic]}"
		if address "$host" "$nic"; then printf '      addresses: [%s/24]\n' "$REPLY"; fi
		if gateway "$nic"; then printf '      routes: [{to: default, via: %s}]\n' "$REPLY"; fi
	done
}

nics_add() { # nics_add HOST NIC...: the taps that its qemu takes over
	local nic
	for nic in "${@:2}"; do echo "tuntap add dev $1.${SUFFIX[$nic]} mode tap"; done
}
wire_hosts() {
	local host
	for host; do
		nics_there "$host"
		nics_add "$host" "${THERE[@]}"
		for nic in "${THERE[@]}"; do echo "link set $host.${SUFFIX[$nic]} mtu ${MTU[$nic]}"; done
	done | in_switch ip -batch -
}

# link_told FAR up|down: a tap that is down leaves its guest's carrier as it was:
# qemu is told. Opened for both ways, a pipe does not wait for one who is gone.
link_told() {
	local me=$DIR/hosts/${1%%.*} state=on
	[[ $2 == up ]] || state=off
	[[ ! -e $me/wired ]] || echo "set_link $1 $state" 1<>"$me/monitor.in"
}

vm_boot() { # vm_boot HOST: returns when qemu has all it needs and the guest begins
	local host=$1 me=$DIR/hosts/$1 nic args=() id
	id=$(md5sum <<<"$LAB/$host")
	nics_there "$host"
	for nic in "${THERE[@]}"; do
		mac "$host" "$nic"
		args+=(-netdev "tap,id=$host.${SUFFIX[$nic]},ifname=$host.${SUFFIX[$nic]},script=no,downscript=no"
			-device "virtio-net-pci,netdev=$host.${SUFFIX[$nic]},mac=$REPLY,romfile=,bus=${VM_SLOT[$nic]}")
	done
	pid_of switch
	# Beside a busy machine's other work an emulated CPU would lose its ticks.
	nsenter --net --target "$PID" nice -n -20 "${QEMU[0]}" -name "$host" "${QEMU[@]:1}" -nodefaults -no-user-config -display none \
		-accel tcg,thread=multi -smp 1 -m $VM_MEMORY \
		-kernel "$DIR/vmlinuz" -initrd "$DIR/initrd" \
		-append "root=/dev/vda rw console=$VM_CONSOLE quiet audit=0 no_timer_check systemd.hostname=$host systemd.machine_id=5a52${id:0:28}" \
		-drive "file=$me/disk.qcow2,if=virtio,format=qcow2,cache=unsafe" \
		-drive "file=$me/seed.tar,if=virtio,format=raw,readonly=on" \
		-device virtio-balloon-pci,deflate-on-oom=on \
		-rtc "base=${SPARKRUN_LAB_CLOCK:-utc}" -device virtio-rng-pci -serial "file:$me/console.log" \
		-chardev "pipe,id=monitor,path=$me/monitor" -mon chardev=monitor \
		-device pcie-root-port,id=twin0,chassis=1 -device pcie-root-port,id=twin1,chassis=2 \
		-device pcie-root-port,id=mgmt,chassis=3 "${args[@]}" \
		-daemonize -pidfile "$me/on" </dev/null >"$me/qemu.log" 2>&1 8>&- 9>&- || {
		cat "$me/qemu.log" >&2
		die 1 "power on $host: qemu did not start, see above"
	}
	echo -20 >"/proc/$(<"$me/on")/autogroup" || true # its own priority counts only within its session
	: >"$me/wired"
}

power_on() { # power_on HOST...
	local host
	wire_hosts "$@"
	for host; do
		rm -f "$DIR/hosts/$host/ssh"
		vm_boot "$host"
	done
	wire_apply
	for host; do ssh_await "$host" || die 1 "$host does not answer by ssh: its console is $DIR/hosts/$host/console.log"; done
}

# ssh_await HOST: until it lets us in; the connection stays, for all that follow.
ssh_await() {
	local host=$1 me=$DIR/hosts/$1 until=$((SECONDS + VM_BOOT))
	while ((SECONDS < until)); do
		pid_of "$host" || { say "$host went off while it booted" && break; }
		! in_switch ssh -F "$DIR/ssh_config" -o ControlMaster=yes -o ControlPersist=yes -o ConnectTimeout=10 -fN "$host" \
			</dev/null >/dev/null 2>"$me/ssh.log" 8>&- 9>&- || return 0
		pause 1
	done
	tail -n 20 "$me/console.log" "$me/ssh.log" >&2
	return 1
}

agent_pid() { # agent_pid HOST sets REPLY
	REPLY=$(on "$1" systemctl show --property MainPID --value sparkrun 2>/dev/null) && [[ $REPLY && $REPLY != 0 ]]
}

agent_start() { # returns when it answers
	local host=$1 me=$DIR/hosts/$1
	on "$host" systemctl start sparkrun
	on "$host" timeout 120 sh -c 'until [ -S /run/sparkrun/agent.sock ]; do sleep 0.2; done' || {
		on "$host" journalctl --no-pager -u sparkrun >"$me/agent.log"
		say "start agent on $host: it does not listen:"
		tail -n 5 "$me/agent.log" >&2
		return 1
	}
}

agent_kill() { # systemd starts another
	agent_pid "$1" || die 1 "$1 has no agent: '$0 start $1 --agent'"
	on "$1" systemctl kill --kill-who=main --signal=KILL sparkrun
}

cmd_status() {
	local host agent
	(($# == 0)) || usage "status takes nothing"
	[[ -d $DIR ]] || die 1 "no lab '$LAB' is up: $0 up"
	load
	printf "lab '%s': %d virtual machines, topology %s, agents %s\n" "$LAB" ${#HOSTS[@]} "$TOPOLOGY" "$AGENTS"
	printf 'folder %s; logs: hosts/*/{console,qemu,join}.log\n\n' "$DIR"
	printf '%-8s %-6s %-7s %-13s %s\n' HOST POWER PID ADDRESS AGENT
	for host in "${HOSTS[@]}"; do
		if ! pid_of "$host"; then
			printf '%-8s off\n' "$host"
			continue
		fi
		agent=none
		! agent_pid "$host" || agent="pid $REPLY"
		pid_of "$host"
		address "$host" enP7s7
		printf '%-8s %-6s %-7s %-13s %s\n' "$host" on "$PID" "$REPLY" "$agent"
	done
	status_cables
}

vm_only() { usage "$1 works on hosts in namespaces only: what a VM tells, its own kernel tells it"; }
cmd_fault() { vm_only fault; }
cmd_mend() { vm_only mend; }
cmd_sync() { vm_only sync; }
