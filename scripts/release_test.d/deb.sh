# shellcheck shell=bash
# What becomes of a machine when the package comes, is upgraded, goes; and the same
# with scripts/install. Read by release_test.

active() { inside systemctl is-active --quiet sparkrun; }
inactive() { [[ $(inside systemctl is-active sparkrun) =~ ^(inactive|unknown)$ ]]; }
install_deb() { inside dpkg --install "/release/$1/sparkrun_$1_$(dpkg --print-architecture).deb"; }
same_arch() { [[ -e $work/1.0.0/sparkrun_1.0.0_$(dpkg --print-architecture).deb ]]; }

unjoined() { # an installation: all there, nothing runs
	inactive && inside systemctl is-enabled --quiet sparkrun && [[ ! $(inside pgrep -x sparkrun) ]] &&
		inside getent group sparkrun && inside man -w sparkrun-launch && inside test -e /usr/share/bash-completion/completions/sparkrun &&
		[[ $(inside sparkrun version) == "sparkrun $1" ]]
}
verified() { local said && said=$(inside systemd-analyze verify sparkrun.service 2>&1 | grep -i sparkrun | grep -v RestartSteps | grep -v RestartMaxDelaySec) && echo "$said" && return 1 || return 0; }
nobody_starts() { inside systemctl start sparkrun && inactive; }
founded() {
	inside sparkrun init --host box --management eth0 && inside systemctl start sparkrun && inside sparkrun status --wait-nodes 1 --timeout 60s
}

# A job that counts into its output, in a scope of its own on cgroup v2.
job_begins() {
	sh_inside 'sparkrun launch -d --name count exec --on-failure continue --nproc-per-node 2 --workdir / -- sh -c "
		i=0; while [ ! -e /run/enough ]; do i=\$((i + 1)); echo \$i; sleep 0.05; done; echo last \$i; exit 7" >/run/job' || return
	eventually 60 lines_of 20
}
# TAB, in a bash with what the package has brought: the running job, and the node.
names_complete() {
	inside bash -c '
		. /usr/share/bash-completion/bash_completion
		. /usr/share/bash-completion/completions/sparkrun
		tab() {
			COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_TYPE=9 COMPREPLY=()
			COMP_POINT=${#COMP_LINE}
			__start_sparkrun
			echo "$(echo ${COMPREPLY[*]})"
		}
		job=$(tab sparkrun stop co) node=$(tab sparkrun launch --on b)
		[[ $job == count && $node == box ]] || { echo "stop co: $job; --on b: $node"; exit 1; }'
}
lines_of() { (($(inside sparkrun logs count --rank 0 | wc -l) >= $1)); }
# Shim and ranks: what may not change. The agent's own is another from restart to restart, and
# what a rank has just forked, still under its name, is no rank: a shim's children are.
who_runs() { sh_inside 'shims=$(pgrep -d, -f "[s]parkrun shim") && ps -o pid=,lstart=,args= --pid $shims --ppid $shims'; }
in_scopes() { sh_inside 'cat "/proc/$(pgrep -f "[s]parkrun shim")/cgroup" | grep "^0::/sparkrun.slice/sparkrun-.*\.scope"'; }
main_pid() { inside systemctl show --property MainPID --value sparkrun; }
same_ranks() { # same_ranks BEFORE: the same processes, an agent that answers, and output that goes on
	eventually 60 inside sparkrun status --wait-nodes 1 || return
	[[ $(who_runs) == "$1" ]] || { printf 'before:\n%s\nnow:\n%s\n' "$1" "$(who_runs)" && return 1; }
	local n
	n=$(inside sparkrun logs count --rank 0 | wc -l)
	eventually 60 lines_of $((n + 10))
}
job_ends() { # the exit code is the ranks', no line is missing
	inside touch /run/enough
	eventually 60 sh_inside 'sparkrun ps --all --json | grep -q "\"exit_code\": 7"' || { inside sparkrun ps --all && return 1; }
	local rank
	for rank in 0 1; do
		inside sparkrun logs count --rank "$rank" --output raw >"$work/lines" || return
		diff <(seq "$(($(wc -l <"$work/lines") - 1))"; echo "last $(($(wc -l <"$work/lines") - 1))") "$work/lines" || return
	done
}
removed() { inside dpkg --remove sparkrun && ! inside test -e /usr/bin/sparkrun && ! inside pgrep -x sparkrun && inside test -e /var/lib/sparkrun/node.json; }
purged() {
	inside dpkg --purge sparkrun && ! inside test -e /var/lib/sparkrun && ! inside test -e /etc/systemd/system/multi-user.target.wants/sparkrun.service &&
		[[ ! $(inside systemctl list-unit-files 'sparkrun*' --no-legend) ]]
}
back() { eventually 60 active && inside sparkrun status --wait-nodes 1 --timeout 60s; }

section_deb() {
	local before agent
	check "the release has this machine's architecture" same_arch
	check "a later version is built" built 1.0.1 || return
	container_up || return
	check "installed: unit enabled, nothing runs, group and manual are there" install_deb 1.0.0
	check "as it should be on a machine in no cluster" unjoined 1.0.0
	check "alerts and a dashboard are there" inside test -e /usr/share/sparkrun/alerts.yml -a -e /usr/share/sparkrun/dashboard.json
	check "the unit has no mistakes" verified
	check "it does not start there, and that is no failure" nobody_starts
	check "init, and the agent starts" founded
	check "a job of two ranks" job_begins
	check "its shim is in a scope of its own" in_scopes
	check "bash completes jobs and nodes" names_complete
	before=$(who_runs) agent=$(main_pid)
	check "systemctl restart sparkrun" inside systemctl restart sparkrun
	check "the same processes, output goes on" same_ranks "$before"
	check "the upgrade" install_deb 1.0.1
	check "the same processes under the new agent" same_ranks "$before"
	if [[ $(main_pid) != "$agent" && $(inside sparkrun version --cluster) == *1.0.1* ]]; then ok "the agent is the new version"; else fail "the agent is the new version" "$(inside sparkrun version --cluster 2>&1)"; fi
	check "the job ends with its own exit code, its output is whole" job_ends
	check "an agent that was stopped stays so over an upgrade" stopped_stays
	check "removed: the agent has gone, the state is kept" removed
	check "installed again: it is back in its cluster" again
	check "purged: nothing is left" purged
	container_down
}
stopped_stays() { inside systemctl stop sparkrun && install_deb 1.0.0 && inactive && inside systemctl start sparkrun && back; }
again() { install_deb 1.0.1 && back; }

# The tar.gz, with its installer.
from_tar() { inside "/release/sparkrun-1.0.0-linux-$(dpkg --print-architecture)/install" "$@"; }
refuses() { # refuses WORDS CMD...: it fails, and says so
	local words=$1 out
	shift
	if out=$("$@" 2>&1); then echo "it did not refuse: $out" && return 1; fi
	[[ $out == *"$words"* ]] || { echo "it said: $out" && return 1; }
}
as_spark() { inside runuser -u spark -- "/release/sparkrun-1.0.0-linux-$(dpkg --print-architecture)/install"; }
installed() {
	from_tar && [[ $(inside sparkrun version) == "sparkrun 1.0.0" ]] && inactive && inside systemctl is-enabled --quiet sparkrun &&
		inside getent group sparkrun && inside man -w sparkrun-launch && inside grep -q '^ExecStart=/usr/local/bin/sparkrun agent' /etc/systemd/system/sparkrun.service
}
elsewhere() { from_tar --prefix /opt/spark && inside grep -q '^ExecStart=/opt/spark/bin/sparkrun agent' /etc/systemd/system/sparkrun.service && inside test -x /opt/spark/bin/sparkrun; }
uninstalled() {
	from_tar --uninstall && ! inside test -e /usr/local/bin/sparkrun && ! inside test -e /etc/systemd/system/sparkrun.service &&
		[[ ! $(inside find /usr/local -name '*sparkrun*') ]] && inside test -e /var/lib/sparkrun/node.json
}
section_install() {
	unpacked "$(dpkg --print-architecture)"
	unpacked arm64
	container_up || return
	check "refused: not root" refuses "this takes root" as_spark
	check "refused: another architecture's" refuses "does not run on this machine" from_tar --binary /release/1.0.0/sparkrun-linux-arm64
	check "refused: no program there" refuses "there is no /nowhere" from_tar --binary /nowhere
	check "nothing was left by these" refuses "" inside test -e /usr/local/bin/sparkrun
	check "installed" installed
	check "init, and the agent starts" founded
	check "a job of two ranks" job_begins
	local before && before=$(who_runs)
	check "installed over it" from_tar
	check "the same processes, output goes on" same_ranks "$before"
	check "the job ends with its own exit code, its output is whole" job_ends
	check "uninstalled: the state is kept" uninstalled
	check "refused: uninstalled already" refuses "nothing was installed there" from_tar --uninstall
	check "installed under another prefix" elsewhere
	check "refused beside the package" beside_package
	container_down
}
beside_package() { from_tar --uninstall --prefix /opt/spark && install_deb 1.0.0 && refuses "the package sparkrun is installed" from_tar; }
