# shellcheck shell=bash
run_checks() {
	check "x" up --accept-host-key "$(fingerprint spark1)" easy@spark1
	on spark1 sparkrun status
	on spark1 ip -br a
}
