#!/bin/sh
# twins: on a host of lab --vm, has the agent read a sysfs root in which its RDMA devices are what
# they are named for: twins at two PCI domains, of which qemu's machine has one. All else, GID
# tables and counters too, is the kernel's own. Until the next boot, or `twins off`.
set -eu
root=/run/twins/sys unit=/run/systemd/system/sparkrun.service.d
rm -rf "${root%/*}" "$unit"
if [ "${1-}" != off ]; then
	mkdir -p "$root/class/infiniband" "$unit"
	for each in /sys/*; do [ "$each" = /sys/class ] || ln -s "$each" "$root/"; done
	for each in /sys/class/*; do [ "$each" = /sys/class/infiniband ] || ln -s "$each" "$root/class/"; done
	for each in rocep1s0f0=0000:01:00.0 roceP2p1s0f0=0002:01:00.0 rocep1s0f1=0000:01:00.1 roceP2p1s0f1=0002:01:00.1; do
		device=${each%%=*}
		mkdir "$root/class/infiniband/$device"
		for file in "/sys/class/infiniband/$device"/*; do [ "${file##*/}" = device ] || ln -s "$file" "$root/class/infiniband/$device/"; done
		ln -s "../../../devices/${each#*=}" "$root/class/infiniband/$device/device"
	done
	printf '[Service]\nEnvironment=SPARKRUN_SYSFS=%s\n' "$root" >"$unit/twins.conf"
fi
systemctl daemon-reload
systemctl restart sparkrun
