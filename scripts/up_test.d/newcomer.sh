# shellcheck shell=bash
# The README's six commands, and those that follow it, as a new user types them on
# spark1 (the first one on a PC): by a login with sudo that is not root. The
# hosts have no ConnectX port, no GPU and no vLLM: command 3 has to say so, command 4
# measures what there is, and a stand-in serves. Command 6 is PyTorch's own, where this machine has it.

# user COMMAND: as easy, in a login of its own
user() { on spark1 su - easy -c "$1"; }
# shows CODE WORDS COMMAND: easy's command ends with the code and says the words
shows() {
	local out code=0
	out=$(user "$3" 2>&1 </dev/null) || code=$?
	[[ $code == "$1" ]] && grep -qE -- "$2" <<<"$out" || { echo "exit $code: $out" && return 1; }
}

stand_in() { # vLLM's stand-in, on all hosts where a program `vllm` would be
	local host
	for host in "$@"; do
		{ echo '#!/usr/bin/python3' && cat "$HERE/e2e/testdata/vllm-standin.py"; } >"$W/$host/root/usr/local/bin/vllm"
		chmod 755 "$W/$host/root/usr/local/bin/vllm"
	done
}

six_commands() {
	local host logins=()
	for host in "$@"; do logins+=("easy@$host"); done
	stand_in "$@"
	cp "$HERE/e2e/testdata/allreduce.py" "$W/spark1/root/home/easy/train.py" && chmod 644 "$W/spark1/root/home/easy/train.py"

	# shellcheck disable=SC2046
	check "1. up --containers, by a login that is not root and has not been there before" up $(all_keys) --containers "${logins[@]}"
	for host in "$@"; do
		check "$host: the rule is there, and nothing else in the file" on "$host" sh -c 'test "$(cat /etc/sparkrun/policy.yaml)" = "containers: {users: [easy]}"'
	done
	check "1. again changes nothing" says "may launch" up --containers "${logins[@]}"
	check "2. doctor looks at all machines" shows 0 "on $# machines" "sparkrun doctor || test \$? = 1"
	check "3. netplan apply says that there is nothing to plan" shows 1 "no node has an RDMA device" "sudo sparkrun netplan apply </dev/null"
	# Without --max it would be minutes, by gloo on this machine's cores.
	check "4. nccl-test ends with a verdict" shows 0 "^verdict: " "sparkrun launch nccl-test --min 1M --max 2M || test \$? = 1"
	check "5. a model's server (a stand-in) is launched without sudo, vLLM's flags beside the model, and shown with its curl" \
		shows 0 "try it: curl http://[0-9.]+:8000/v1/chat/completions .*\"model\": \"org/tiny\"" \
		"sparkrun launch vllm org/tiny --nodes 2 --name tiny --runtime host --backend native --max-model-len 4096"
	check "its address answers" shows 0 '"org/tiny"' "curl -fsS \$(sparkrun service ls | grep -o 'http://[^ ]*')/v1/models"
	check "an image is refused for want of an engine, not of rights" shows 125 "no container engine answers" "sparkrun launch exec --image busybox -- true"
	check "status" shows 0 "spark1 .*ready" "sparkrun status"
	check "ps" shows 0 "tiny .*ready" "sparkrun ps"
	check "logs" shows 0 "\[0\] " "sparkrun logs tiny"
	check "exec without --" shows 0 "^easy$" "sparkrun exec tiny id -un"
	check "service restart" shows 0 "starts again" "sparkrun service restart tiny"
	check "it answers again" eventually 60 shows 0 "tiny .*ready" "sparkrun ps"
	check "stop" shows 0 "has ended" "sparkrun stop tiny"
	if on spark1 /usr/bin/python3 -c 'import torch' 2>/dev/null; then
		check "6. torchrun --nodes 2 --stage, PyTorch's own all-reduce" shows 0 '"sum": 3.0' "sparkrun launch torchrun --nodes 2 --stage train.py -- train.py"
	else
		echo "left  6. torchrun: this machine has no PyTorch (./scripts/torch)"
	fi
	check "head has what it wants" shows 0 "^.0. y$" "sparkrun launch exec --workdir / -- yes | head -1"
	check "and ends the job" eventually 30 shows 0 "^0$" "sparkrun ps -q | wc -l"
	for host in "$@"; do rm "$W/$host/root/usr/local/bin/vllm"; on "$host" rm -r /etc/sparkrun; done
}
