# shellcheck shell=bash
# A machine that loses its power and comes back by itself, with a job on it.

job_tells_of_loss() { on spark1 sparkrun ps steady 2>&1 | grep -F 'spark2 restarted'; }
lost_or_ended() { job_state failed || job_state stopped || job_state lost; }

section_power() {
	local host
	check "both machines are ready" both_ready
	check "a job that stays is launched" eventually 180 on spark1 sparkrun launch exec --detach --name steady --nodes 2 --node-timeout 15m --workdir / -- \
		sh -c ': VM_TEST; while :; do date +%s; sleep 1; done'
	for host in spark1 spark2; do check "its rank runs on $host" eventually 60 has_ranks "$host"; done
	check "a machine loses power" lab kill spark2
	check "and comes back" lab start spark2
	check "its agent came with it" eventually 120 agent_back
	check "both machines are ready after that" both_ready
	check "the job has ended: its rank there is lost" eventually 120 lost_or_ended
	check "and says which machine" job_tells_of_loss
	check "no rank is left on spark1" eventually 60 no_ranks spark1
	check "a launch on both after that" eventually 180 both_names
}
