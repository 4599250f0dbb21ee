# shellcheck shell=bash
# What up_test checks: refusals first, on a host that must stay as it was; then
# three bare hosts become a cluster, other releases come under a job, a fourth with
# the package on it comes in, the power fails.

all_keys() { local h && for h in "${HOSTS[@]}"; do printf -- '--accept-host-key %s ' "$(fingerprint "$h")"; done; }
known_line() { echo "$(address "$1") $(cut -d ' ' -f 1,2 "$W/$2/root/etc/ssh/ssh_host_ed25519_key.pub")"; }
forget() { : >"$W/home/.ssh/known_hosts"; }

refusals() {
	local key
	key="--accept-host-key $(fingerprint spark4)"
	check "a host whose key is not known is refused, and its fingerprint is told" refused "$(fingerprint spark4)" up easy@spark4
	check "nothing is written to known_hosts" test ! -s "$W/home/.ssh/known_hosts"
	{ echo '# a comment' && known_line spark4 spark1; } >"$W/home/.ssh/known_hosts"
	# shellcheck disable=SC2086
	check "a host key that has changed is refused, with file and line, whatever is accepted" refused "known_hosts has $W/home/.ssh/known_hosts:2" up $key easy@spark4
	forget
	printf '@revoked * %s\n' "$(cut -d ' ' -f 1,2 "$W/spark4/root/etc/ssh/ssh_host_ed25519_key.pub")" >"$W/home/.ssh/known_hosts"
	# shellcheck disable=SC2086
	check "a revoked host key is refused" refused "known_hosts:1" up $key easy@spark4
	forget
	# shellcheck disable=SC2086
	{
		check "an accepted key lets in, and is written down" up $key --dry-run easy@spark4
		check "known_hosts has it" grep -qF "$(cut -d ' ' -f 2 "$W/spark4/root/etc/ssh/ssh_host_ed25519_key.pub")" "$W/home/.ssh/known_hosts"
		check "with it no question is left" up --dry-run easy@spark4
	}
	echo wrong >"$W/pw"
	check "a wrong password of a login is refused" refused "log in to 172.31.7.14 as spark: the password is wrong" up --password-file "$W/pw" --ssh-config "$W/nokeys" spark@spark4
	check "a wrong password for sudo is refused" refused "sudo of spark: the password is wrong" up --password-file "$W/pw" spark@spark4
	check "no password for sudo is refused, where nobody can be asked" refused "--password-file gives it" up spark@spark4
	echo 'open sesame' >"$W/pw"
	check "a login by password, sudo by the same one" up --dry-run --password-file "$W/pw" --ssh-config "$W/nokeys" spark@spark4
	echo nothing | chroot "$W/spark4/root" sh -c 'echo plain:nothing | chpasswd'
	echo nothing >"$W/pw4"
	check "a login that may not use sudo is refused" refused "plain may not use sudo there" up --password-file "$W/pw4" plain@spark4
	on spark4 mount -t tmpfs -o size=8m tmpfs /usr/local/bin
	check "a full disk is refused" refused "its disk is full: /usr/local/bin has" up easy@spark4
	on spark4 umount /usr/local/bin
	on spark4 systemd-run --quiet --unit taken python3 -c 'import socket, time; s = socket.create_server(("", 7940)); time.sleep(999)'
	check "a program takes a port" eventually 30 on spark4 python3 -c 'import socket; socket.create_connection(("127.0.0.1", 7940))'
	check "a taken port is refused" refused "TCP port 7940 is taken" up easy@spark4
	on spark4 systemctl stop taken
	clock_behind easy
	check "a clock that is behind is refused (libfaketime, in the login's sessions)" refused "behind this machine's" up easy@spark4
	clock_right
	check "the same host with its clock right is not" up --dry-run easy@spark4
	other_machine
	check "a host of another architecture (its uname is faked) is refused without a program for it" refused "its architecture is arm64" up easy@spark4
	check "of a release it would get its own" says "copy $RELEASE/sparkrun-linux-arm64 " up --release "$RELEASE" --dry-run easy@spark4
	no_start
	check "a program that does not run there is not left there" refused "does not run there" up --release "$W/nostart" easy@spark4
	on spark4 rm /usr/local/bin/uname
	check "a host that is not there is refused" refused "connect to 172.31.7.99:22" up --ssh-config "$W/nokeys" easy@172.31.7.99
	check "spark4 is as it was" untouched spark4
}

# A host's clock is this kernel's: no namespace has a time of day of its own. So what
# a login runs there is told another one.
clock_behind() {
	local lib
	lib=$(dpkg -L libfaketime | grep '/libfaketime.so.1$')
	printf 'Match User %s\n\tSetEnv LD_PRELOAD=%s FAKETIME=-1h\n' "$1" "$lib" >"$W/spark4/root/etc/ssh/sshd_config.d/zz-clock.conf"
	on spark4 systemctl restart ssh
}
clock_right() { rm "$W/spark4/root/etc/ssh/sshd_config.d/zz-clock.conf" && on spark4 systemctl restart ssh; }

other_machine() {
	printf '#!/bin/sh\n[ "$*" != -m ] || { echo aarch64; exit; }\nexec /usr/bin/uname "$@"\n' >"$W/spark4/root/usr/local/bin/uname"
	chmod 755 "$W/spark4/root/usr/local/bin/uname"
}

# A program for arm64 without an entry point: it does not run where an emulator starts those programs either.
no_start() {
	mkdir "$W/nostart" && cp "$RELEASE/sparkrun-linux-arm64" "$W/nostart/" &&
		head -c 8 /dev/zero | dd of="$W/nostart/sparkrun-linux-arm64" bs=8 seek=3 conv=notrunc status=none
}

# An old login: it has begun before there was a group sparkrun, and never begins anew.
old_login_opens() {
	mkfifo "$W/old.in"
	ssh -F "$W/nokeys" -i "$W/home/.ssh/id_ed25519" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR spark@spark1 sh 7>&- <"$W/old.in" >"$W/old.out" 2>&1 &
	exec 7>"$W/old.in"
	echo 'id; echo opened' >&7
}
old_login_launches() {
	echo 'id -Gn; /usr/local/bin/sparkrun launch exec --nodes 3 --workdir / -- sh -c "id -un; hostname"; echo launched $?' >&7
	eventually 60 grep -q '^launched 0' "$W/old.out" && [[ $(grep -c '\] spark$' "$W/old.out") == 3 ]] || { cat "$W/old.out" && return 1; }
	! grep -w sparkrun <(sed -n '/opened/,$p' "$W/old.out" | sed -n 2p) # it is not in the group
}

agents() { local h && for h in "$@"; do on "$h" systemctl show --property MainPID,NRestarts sparkrun; done; }
again_changes_nothing() {
	local before out
	before=$(agents spark1 spark2 spark3)
	# shellcheck disable=SC2046
	out=$(up --json --release "$RELEASE" --password-file "$W/pw" spark@spark1 spark@spark2 spark@spark3) || { echo "$out" && return 1; }
	[[ $before == "$(agents spark1 spark2 spark3)" ]] || { echo "the agents are others" && return 1; }
	python3 -c '
import json, sys
changed = [s for h in json.loads(sys.argv[1])["hosts"] for s in h["steps"] if s["state"] == "done" and s["step"] in ("binary", "unit", "group", "cluster", "start")]
print(changed)
sys.exit(bool(changed))' "$out"
}
who_is_what() {
	local out
	out=$(up --dry-run --password-file "$W/pw" spark@spark1 easy@spark4 2>&1) || { echo "$out" && return 1; }
	grep -E '^spark@spark1 +spark1 +member +1\.0\.0 +not changed' <<<"$out" && grep -E '^easy@spark4 +spark4 +would join +- +not changed' <<<"$out" || { echo "$out" && return 1; }
}
no_secret_in_argv() { ! grep -aE 'spk1\.|sesame' "$W/argv"; }
watch_argv() { # every command line of every host, again and again
	while [[ -e $W/watching ]]; do
		cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' ' >>"$W/argv"
		sleep 0.05
	done
}

forms_cluster() {
	local out code=0 h
	: >"$W/watching"
	watch_argv &
	# shellcheck disable=SC2046
	out=$(up $(all_keys) --release "$RELEASE" --password-file "$W/pw" spark@spark1 plain@spark4 spark@spark2 spark@spark3 2>&1) || code=$?
	rm "$W/watching"
	((code == 1)) || { echo "exit $code: $out" && return 1; }
	for h in 1 2 3; do grep -E "^spark@spark$h +spark$h +(founded|joined) +1\.0\.0 +ready" <<<"$out" || { echo "$out" && return 1; }; done
	grep -E '^plain@spark4 .*failed: ' <<<"$out" || { echo "$out" && return 1; }
}

package() { cp "$RELEASE/sparkrun_1.0.0_$(dpkg --print-architecture).deb" "$W/spark4/small/sparkrun.deb" && on spark4 dpkg --install /mnt/small/sparkrun.deb; }
packages_own() { on spark4 sh -c '[ ! -e /usr/local/bin/sparkrun ] && [ ! -e /etc/systemd/system/sparkrun.service ] && [ "$(sparkrun version)" = "sparkrun 1.0.0" ] && readlink /proc/$(systemctl show --property MainPID --value sparkrun)/exe | grep -x /usr/bin/sparkrun'; }

# From the last host's boot until a launch on all of them has succeeded, by nobody's
# hand: a minute at most.
back_in_a_minute() {
	local host on booted now out
	on=$(date +%s%N)
	for host in "${HOSTS[@]}"; do eventually 180 host_booted "$host" || return; done
	booted=$(date +%s%N)
	while ! out=$(on spark1 sparkrun launch exec --nodes 4 --workdir / -- hostname 2>&1); do
		now=$(date +%s%N)
		((now - booted < 60000000000)) || { echo "no launch within a minute of the last boot: $out" && return 1; }
		sleep 0.5
	done
	now=$(date +%s%N)
	printf 'a launch on all four ended %d.%03d s after the last host had booted, which took %d.%03d s from power on (load %s)\n' \
		$(((now - booted) / 1000000000)) $(((now - booted) / 1000000 % 1000)) $(((booted - on) / 1000000000)) $(((booted - on) / 1000000 % 1000)) \
		"$(cut -d ' ' -f 1 /proc/loadavg)" >"$W/back"
}

far() { printf '\nHost far\n\tHostName %s\n\tUser easy\n\tProxyJump easy@spark2\n' "$(address spark4)" >>"$W/home/.ssh/config"; }
not_reachable_directly() { on spark4 nft add table ip t 2>/dev/null; }

# types TEXT...: a person at a terminal, who answers prompts in their order: PROMPT=ANSWER.
at_terminal() {
	python3 - "$@" <<'P'
import os, pty, re, sys
split = sys.argv.index("--")
answers, argv = [a.split("=", 1) for a in sys.argv[1:split]], sys.argv[split + 1:]
pid, fd = pty.fork()
if pid == 0:
    os.execvp(argv[0], argv)
seen = ""
while True:
    try:
        chunk = os.read(fd, 4096)
    except OSError:
        break
    if not chunk:
        break
    sys.stdout.write(chunk.decode(errors="replace"))
    seen += chunk.decode(errors="replace")
    if answers and answers[0][0] in seen:
        seen = ""
        os.write(fd, answers.pop(0)[1].encode() + b"\n")
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
sys.exit(code or (answers and print("never asked:", answers) or 1 if answers else 0))
P
}
on_terminal() {
	local out
	out=$(at_terminal 'Is it the same?=yes' 'password of spark on=open sesame' -- \
		env -i PATH="$PATH" HOME="$W/home" TERM=xterm "$BIN" up --ssh-config "$W/home/.ssh/config" --dry-run spark@spark4) || { echo "$out" && return 1; }
	grep -qF "$(fingerprint spark4)" <<<"$out" || { echo "$out" && return 1; }
	! grep -F sesame <<<"$out"
}

removed() { on spark1 sparkrun node remove --yes --uninstall --ssh-config /root/ssh.conf --accept-host-key "$(fingerprint spark3)" "$1"; }
removed_by_alias() {
	printf 'Host spark2\n\tHostName %s\n\tIdentityFile /home/easy/.ssh/id_ed25519\n' "$(address spark3)" >>"$W/spark1/root/root/ssh.conf"
	removed easy@spark2
}

run_checks() {
	local host
	printf 'Host *\n\tIdentityFile /dev/null\n' >"$W/nokeys"
	for host in "${HOSTS[@]}"; do printf 'Host %s\n\tHostName %s\n' "$host" "$(address "$host")" >>"$W/nokeys"; done
	refusals
	forget
	check "at a terminal a key is shown and asked about, a password asked for and not shown" on_terminal
	old_login_opens
	check "a login of before stands open" eventually 30 grep -q opened "$W/old.out"
	check "three bare hosts become a cluster; a fourth that may not is named and stops nobody" forms_cluster
	check "no token and no password stood in a command line" no_secret_in_argv
	check "all three are members" members spark1 3
	check "the login of before launches on all three, without the group" old_login_launches
	check "again changes nothing, and no agent is another" again_changes_nothing
	check "a look says who is a member, with which release, and who would join" who_is_what
	six_commands spark1 spark2 spark3
	check "a member keeps its release" says "another release is there: --upgrade replaces it" up --dry-run --password-file "$W/pw" spark@spark1
	upgrades
	check "a fourth has the package" package
	far
	check "a fourth comes in through a jump host, by a member that is named" up easy@spark1 far
	check "it keeps the package's program and unit" packages_own
	check "again, with --upgrade, too" says "a package has installed it" up --upgrade --dry-run far
	check "all four are members, of two releases" members spark4 4
	check "who comes new to a host whose agent runs may launch there too" says spark1 on spark1 su easy -c 'sparkrun launch exec --on spark1 --workdir / -- hostname'
	for host in "${HOSTS[@]}"; do power_off "$host"; done
	for host in "${HOSTS[@]}"; do host_boot "$host"; done
	check "the cluster is back by itself and launches, within a minute of the last boot" back_in_a_minute
	[[ ! -e $W/back ]] || cat "$W/back"
	for host in "${HOSTS[@]}"; do check "$host lets logins in" eventually 120 host_up "$host"; done
	check "all four are members" members spark1 4
	check "and launches" says spark3 on spark1 sparkrun launch exec --on spark3 --workdir / -- hostname
	check "a member is not removed from under its cluster" refused "it is in cluster" desk "$BIN" down --ssh-config "$W/home/.ssh/config" easy@spark3
	check "a machine leaves" on spark3 sparkrun leave --yes
	check "down removes what up has brought" desk "$BIN" down --ssh-config "$W/home/.ssh/config" easy@spark3
	check "spark3 is bare again" untouched spark3
	check "down again is harmless" desk "$BIN" down --ssh-config "$W/home/.ssh/config" easy@spark3
	install -d -m 700 "$W/spark1/root/home/easy/.ssh" && cp "$W/home/.ssh/id_ed25519" "$W/spark1/root/home/easy/.ssh/" && on spark1 chown easy: /home/easy/.ssh/id_ed25519
	# shellcheck disable=SC2046
	check "from a member, by a login that needs sudo for the token" on spark1 su easy -c "sparkrun up --accept-host-key $(fingerprint spark3) easy@$(address spark3)"
	check "all four are members again" members spark3 4
	printf 'Host spark3\n\tHostName %s\n\tIdentityFile /home/easy/.ssh/id_ed25519\n' "$(address spark3)" >"$W/spark1/root/root/ssh.conf"
	check "a machine that ssh does not reach is not taken out" refused "log in to" removed nobody@spark3
	check "it is a member as before" members spark3 4
	check "one that calls itself otherwise is not taken out" refused "calls itself spark3" removed_by_alias
	check "node remove --uninstall takes a machine out, and all of it off" removed easy@spark3
	check "spark3 is bare once more" untouched spark3
	check "the others do not list it" refused "no such node" on spark1 sparkrun node remove --yes spark3
	check "and still launch" says spark2 on spark1 sparkrun launch exec --on spark2 --workdir / -- hostname
}
