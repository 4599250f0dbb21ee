# shellcheck shell=bash
# What up_test checks of upgrades: three members, on which a job of three runs all the while.

# A job of three that counts into its output, until it is told to end.
job_begins() {
	on spark1 sparkrun launch -d --name count exec --nodes 3 --workdir / --on-failure continue -- sh -c '
		i=0; while [ ! -e /run/enough ]; do i=$((i + 1)); echo $i; sleep 0.05; done; echo last $i; exit 7' || return
	eventually 60 counted 20
}
counted() { local rank && for rank in 0 1 2; do (($(on spark1 sparkrun logs count --rank $rank | wc -l) >= $1)) || return; done; }
# Shims and ranks, which are their children: what a rank has just forked, still under its name, is none.
who_runs() { local h && for h in 1 2 3; do on spark$h sh -c 'shims=$(pgrep -d, -f "[s]parkrun shim") && ps -o pid=,lstart=,args= --pid $shims --ppid $shims'; done; }
versions() { [[ $(on spark1 sparkrun version --cluster 2>/dev/null | grep -cwF "$1") == "$2" ]] || { on spark1 sparkrun version --cluster && return 1; }; }
upgraded() { # under the job: other agents, the same ranks
	local before agents out
	before=$(who_runs) agents=$(agents spark1 spark2 spark3)
	[[ $(wc -l <<<"$before") -ge 6 ]] || { echo "$before" && return 1; }
	# spark2 is as a run leaves it that was interrupted between the program and the agent.
	install -m 755 "$BIN" "$W/spark2/root/usr/local/bin/.new" && mv "$W/spark2/root/usr/local/bin/.new" "$W/spark2/root/usr/local/bin/sparkrun" || return
	out=$(up --upgrade --password-file "$W/pw" spark@spark1 spark@spark2 spark@spark3 2>&1) || { echo "$out" && return 1; }
	[[ $agents != "$(agents spark1 spark2 spark3)" ]] || { echo "the agents are the same: $out" && return 1; }
	diff <(echo "$before") <(who_runs)
}
job_failed_by() { on spark1 sparkrun ps --all --json | grep -q "\"exit_code\": $1"; }
job_ends() {
	local h rank n
	n=$(on spark1 sparkrun logs count --rank 0 | wc -l)
	eventually 60 counted $((n + 10)) || return
	for h in 1 2 3; do on spark$h touch /run/enough; done
	eventually 60 job_failed_by 7 || { on spark1 sparkrun ps --all && return 1; }
	for rank in 0 1 2; do
		on spark1 sparkrun logs count --rank $rank --output raw >"$W/lines" || return
		n=$(($(wc -l <"$W/lines") - 1))
		diff <(seq $n && echo "last $n") "$W/lines" || return
	done
}

three() { up --upgrade --password-file "$W/pw" "$@" spark@spark1 spark@spark2 spark@spark3; }
# goes_back HOW: the first in the line gets a release that does not work, and has its own again; the others are not touched.
goes_back() {
	local ranks out code=0
	ranks=$(who_runs)
	out=$(three --release "$BROKEN/$1" 2>&1) || code=$?
	((code == 1)) || { echo "exit $code: $out" && return 1; }
	[[ $(grep -cE '^spark@spark. +spark. +member +1\.0\.1 +failed: .*release 1\.0\.1 is back in its place, and ready' <<<"$out") == 1 ]] || { echo "$out" && return 1; }
	[[ $(grep -cE '^spark@spark. +spark. +member +1\.0\.1 +failed: .*whose turn was before, failed: nothing was changed here' <<<"$out") == 2 ]] || { echo "$out" && return 1; }
	versions 1.0.1 3 && diff <(echo "$ranks") <(who_runs)
}
quick_starts() { # on or off: a start that is not ready within 20 s has failed
	local h
	for h in 1 2 3; do
		on spark$h sh -c 'd=/run/systemd/system/sparkrun.service.d; rm -rf $d; [ $0 = off ] || { mkdir -p $d && printf "[Service]\nTimeoutStartSec=20\n" >$d/short.conf; }; systemctl daemon-reload' "$1" || return
	done
}
# The one who types goes away while the new release, which is no member, is waited for: the host goes back by itself. Its timer would take ten minutes.
back_by_itself() {
	local pid host h ranks
	ranks=$(who_runs)
	three --release "$BROKEN/alone" >"$W/left" 2>&1 </dev/null &
	pid=$!
	for _ in $(seq 600); do
		host=
		for h in 1 2 3; do on spark$h sh -c 'cmp -s "/proc/$(systemctl show --property MainPID --value sparkrun)/exe" /usr/local/bin/sparkrun && [ "$(sparkrun version --json | tr -d " \n")" = "{\"version\":\"1.0.2\",\"protocol\":$0}" ]' "$PROTOCOL" && host=spark$h; done
		[[ -z $host ]] || break
		sleep 0.2
	done
	pkill -KILL -P $pid
	wait $pid
	[[ $host ]] || { cat "$W/left" && return 1; }
	on "$host" systemctl is-active sparkrun-rollback.timer || return
	on "$host" systemctl start sparkrun-rollback.service || return
	eventually 60 members spark1 3 && versions 1.0.1 3 && diff <(echo "$ranks") <(who_runs)
}
# With one voter away, no other is touched.
no_majority_to_spare() {
	local before
	on spark3 systemctl stop sparkrun || return
	before=$(agents spark1 spark2)
	refused "spark3 is away: without spark" up --upgrade --release "$BROKEN/ends" --password-file "$W/pw" spark@spark1 spark@spark2 || return
	[[ $before == "$(agents spark1 spark2)" ]] || { echo "the agents are others" && return 1; }
	on spark3 systemctl start sparkrun && members spark1 3
}
older_by_consent() { three --release "$RELEASE" --downgrade && versions 1.0.0 3 && three && versions 1.0.1 3; }

upgrades() {
	check "a job of three" job_begins
	check "up --upgrade: the members have the new release, the job's processes are the same" upgraded
	check "all run the new one" versions 1.0.1 3
	check "a release whose agent ends: the first has its own back, the others are as they were" goes_back ends
	quick_starts on
	check "one whose agent never becomes ready: likewise" goes_back silent
	quick_starts off
	check "one that is ready and no member, and up has gone away: the host goes back by itself" back_by_itself
	check "with a voter away none is upgraded" no_majority_to_spare
	check "an older release is refused" refused "has release 1.0.1 (protocol $PROTOCOL), and 1.0.0 (protocol $PROTOCOL) is older" three --release "$RELEASE"
	check "with consent it comes, and goes" older_by_consent
	check "the job ends with its own exit code, its output is whole" job_ends
}
