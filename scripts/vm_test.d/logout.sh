# shellcheck shell=bash
# logind's RemoveIPC=yes, its default: shared memory of a user's ranks outlives
# the end of the user's last session.

shm_rank='
import ctypes, os, time  # VM_TEST
libc = ctypes.CDLL(None, use_errno=True)
seg = libc.shmget(0x5a52, 4096, 0o1600)
assert seg >= 0, os.strerror(ctypes.get_errno())
open("/dev/shm/vm_test", "w").write("here")
while True: time.sleep(1)'
segments() { on spark2 sh -c 'ipcs -m | grep -q 0x00005a52 && test -s /dev/shm/vm_test'; }
lingers() { on spark2 test -e /var/lib/systemd/linger/spark; }
lingers_not() { ! lingers; }
no_session() { ! on spark2 loginctl list-sessions --no-legend | grep -w spark; }
# A login of the user as pam and logind see it: from outside of any session, or su would stay in that.
log_in_and_out() { on spark2 systemd-run --quiet --wait --pipe su - spark -c 'loginctl list-sessions --no-legend' | grep -w spark; }
removes_ipc() { on spark2 sh -c 'busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager RemoveIPC' | grep -x 'b true'; }

section_logout() {
	check "both machines are ready" both_ready
	check "logind removes IPC of who logs out" removes_ipc
	check "a rank of user spark with shared memory is launched" eventually 180 on spark1 sparkrun launch exec --detach --name shm --user spark --on spark2 --workdir / -- \
		python3 -c "$shm_rank"
	check "both segments are there" eventually 60 segments
	check "the user lingers while they run" eventually 60 lingers
	check "a session of the user comes and goes" log_in_and_out
	check "no session is left" eventually 60 no_session
	check "both segments are there still" segments
	check "stop ends it" on spark1 sparkrun stop shm
	check "the lingering is given back" eventually 60 lingers_not
	# That it was lingering that kept them: without it, logind takes what is left.
	on spark2 su spark -c 'echo here >/dev/shm/vm_test_unheld'
	check "another session comes and goes, with nothing lingering" log_in_and_out
	check "logind has removed what was not held" eventually 60 on spark2 test ! -e /dev/shm/vm_test_unheld
}
