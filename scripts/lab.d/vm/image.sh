# shellcheck shell=bash
# The disk of a VM host: Debian with its own kernel, systemd, netplan, OpenSSH
# and the RDMA tools; image/ is laid over it. Made once and kept: its folder is
# named by the hash of this file and of image/, so a changed recipe makes another.

VM_CACHE=${SPARKRUN_LAB_CACHE:-/var/cache/sparkrun-lab}
VM_SUITE=bookworm
VM_PACKAGES=(
	systemd-sysv dbus udev kmod libpam-systemd "linux-image-$VM_ARCH" initramfs-tools zstd
	iproute2 iputils-ping procps tar openssh-server python3-minimal netplan.io
	rdma-core ibverbs-utils perftest
)
read -ra more <<<"${SPARKRUN_LAB_PACKAGES-}"
VM_PACKAGES+=("${more[@]}")
VM_DISK=$((${#more[@]} ? 8192 : 1536))M
# Drivers that a machine of virtio has no use for: half the size of the disk.
VM_NO_DRIVERS=(
	sound drivers/{gpu,media,staging,isdn,iio,mtd,scsi,ata,usb,hwmon,video,comedi,bluetooth,input,platform,mmc,nvme,leds,rtc,w1}
	drivers/net/{wireless,wan,can,usb,fddi,hippi,ethernet,arcnet,dsa,phy,ieee802154} net/{bluetooth,wireless,mac80211,can,nfc}
	fs/{ocfs2,xfs,btrfs,ceph,nfs,nfsd,smb,gfs2,jfs,reiserfs,f2fs,ubifs,nilfs2}
)
# Units that only cost time at boot.
VM_MASK=(
	systemd-networkd-wait-online.service e2scrub_reap.service e2scrub_all.timer apt-daily.timer apt-daily-upgrade.timer
	dpkg-db-backup.timer fstrim.timer getty@tty1.service serial-getty@ttyS0.service systemd-pstore.service
	systemd-random-seed.service systemd-update-utmp.service systemd-update-utmp-runlevel.service
)

# image_find sets IMAGE to the folder with disk.img, vmlinuz and initrd, building
# it first where there is none.
image_find() {
	local hash
	hash=$({ cd "$HERE/lab.d/vm" && find image.sh image -type f -print0 | sort -z | xargs -0 sha256sum && echo "${VM_PACKAGES[@]}"; } | sha256sum)
	IMAGE=$VM_CACHE/$VM_ARCH-${hash:0:16}
	[[ ! -e $IMAGE/disk.img ]] || return 0
	mkdir -p "$VM_CACHE"
	exec 7<"$VM_CACHE"
	flock -w 3600 7 || die 1 "another lab makes the image, for an hour now"
	[[ -e $IMAGE/disk.img ]] || image_build
	exec 7<&-
}

image_build() { # under the lock: what lies half built is of one that was ended
	local work=$VM_CACHE/building started=$SECONDS
	say "building the disk of the VMs, once: some minutes; its log: $work.log"
	rm -rf --one-file-system "$work" "$IMAGE"
	mkdir -p "$work/image"
	# Mounts of its own, which end with it: debootstrap leaves /proc mounted.
	if ! (
		[[ $VM_ARCH != arm64 ]] || need_arm64
		unshare --mount --pid --fork --kill-child bash -c "$(declare -p HERE VM_ARCH VM_SUITE VM_DISK VM_PACKAGES VM_NO_DRIVERS VM_MASK)
			$(declare -f image_steps image_trim)
			image_steps $(printf %q "$work")"
	) >"$work.log" 2>&1 </dev/null 7<&-; then
		tail -n 20 "$work.log" >&2
		die 1 "build the disk of the VMs: see above and $work.log"
	fi
	mv "$work/image" "$IMAGE"
	rm -rf --one-file-system "$work"
	say "built in $((SECONDS - started)) s: $IMAGE (kept for later labs; remove it at will)"
}

image_steps() {
	set -euo pipefail
	local work=$1 root=$1/root packages
	packages=$(IFS=, && echo "${VM_PACKAGES[*]}")
	INITRD=No debootstrap --arch="$VM_ARCH" --variant=minbase --include="$packages" "$VM_SUITE" "$root"
	cp -r --preserve=mode "$HERE/lab.d/vm/image/." "$root/"
	image_trim "$root"
	chroot "$root" update-initramfs -c -k all
	chroot "$root" groupadd --system --gid 986 sparkrun
	chroot "$root" useradd --create-home --shell /bin/bash --uid 1000 spark
	chroot "$root" systemctl enable systemd-networkd.service ssh.service lab-rxe.service
	chroot "$root" systemctl mask "${VM_MASK[@]}"
	chroot "$root" systemctl set-default multi-user.target
	echo '/dev/vda / ext4 defaults,noatime 0 0' >"$root/etc/fstab"
	: >"$root/etc/machine-id" # each host brings its own
	rm -f "$root/etc/hostname"
	cp --dereference "$root"/vmlinuz "$work/image/vmlinuz"
	cp "$root"/boot/initrd.img-* "$work/image/initrd"
	umount -R "$root/proc" "$root/sys" 2>/dev/null || :
	mke2fs -q -t ext4 -L root -d "$root" "$work/image/disk.img" "$VM_DISK"
}

image_trim() { # image_trim ROOT: no documents, no drivers of hardware that is not there
	local root=$1 modules=("$1"/lib/modules/*) driver
	rm -rf "$root"/usr/share/{doc,man,info,locale,lintian} "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
	for driver in "${VM_NO_DRIVERS[@]}"; do rm -rf "${modules[0]:?}/kernel/$driver"; done
	chroot "$root" depmod "${modules[0]##*/}"
}
