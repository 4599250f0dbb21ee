package main

import "strings"

// section is a part of a manual page that help has no place for.
type section struct{ title, text string }

// related are commands beside which a page is read; pages of groups name theirs
// by themselves.
var related = map[string][]string{
	"sparkrun launch":       {"attach", "exec", "logs", "ps", "stop", "env", "fabric"},
	"sparkrun run":          {"recipe", "launch", "ps", "logs", "stop"},
	"sparkrun recipe":       {"run", "launch"},
	"sparkrun attach":       {"launch", "logs", "stop"},
	"sparkrun exec":         {"launch", "ps"},
	"sparkrun logs":         {"launch", "ps", "attach"},
	"sparkrun ps":           {"launch", "logs", "stop", "status"},
	"sparkrun stop":         {"ps", "launch"},
	"sparkrun init":         {"join", "token", "agent"},
	"sparkrun join":         {"token", "agent", "leave"},
	"sparkrun token":        {"join"},
	"sparkrun agent":        {"init", "join", "status"},
	"sparkrun leave":        {"join", "status"},
	"sparkrun status":       {"doctor", "fabric", "raft", "version"},
	"sparkrun env":          {"launch", "fabric"},
	"sparkrun fabric":       {"doctor", "netplan", "report"},
	"sparkrun doctor":       {"fabric", "netplan", "report", "status"},
	"sparkrun netplan":      {"fabric", "doctor"},
	"sparkrun report":       {"fabric", "doctor"},
	"sparkrun mark-dead":    {"takeover", "status"},
	"sparkrun takeover":     {"mark-dead", "raft", "status"},
	"sparkrun raft":         {"takeover", "status"},
	"sparkrun version":      {"status"},
	"sparkrun launch exec":  {"ps", "logs"},
	"sparkrun raft restore": {"takeover"},
}

const usualExits = `0	It was done.
1	Something went wrong; standard error says what.
2	The command line made no sense.`

// exitStatuses are those of commands whose codes say more than the usual ones.
var exitStatuses = map[string]string{
	"sparkrun launch": launchExits, "sparkrun run": launchExits, "sparkrun launch exec": launchExits, "sparkrun launch torchrun": launchExits,
	"sparkrun launch nccl-test": ncclTestExits,
	"sparkrun launch ib-test":   ibTestExits,
	"sparkrun attach":           strings.Replace(launchExits, "; with --detach: all ranks run", "", 1),
	"sparkrun exec": `That of COMMAND, and:
125	A failure of sparkrun's own: COMMAND may not have been started.
126	COMMAND cannot be run.
127	There is no such program on that machine.
128+n	Signal n ended COMMAND.`,
	"sparkrun doctor": `0	No error stands. There may be warnings.
1	An error stands, or something could not be examined.
2	The command line made no sense.`,
	"sparkrun logs": `0	All was shown.
1	A machine did not answer, or has lost some of it; the rest was shown.
2	The command line made no sense.`,
}

const launchExits = `0	All ranks exited with 0; with --detach: all ranks run.
124	The job was ended by its --timeout.
125	A failure of sparkrun's own: bad flags, a machine that is missing or was lost, a program that is not there. Nothing was started, or everything was ended.
128+n	Signal n ended the rank that failed first, or launch was told by it to end the job: 130 is Ctrl-C.
other	The exit code of the rank that failed first.

A program that exits with 124 or 125 itself cannot be told from these by the code;
the last line on standard error can.`

const ibTestExits = `0	The links were measured, and --gate, if given, was passed. They may be low: the last line says so.
1	A link gave no result, or --gate was not passed.
125	A failure of sparkrun's own, as of launch; perftest is missing on a machine.
128+n	Signal n ended the rank that failed first, or launch was told by it to end the job.`

const ncclTestExits = `0	The links were measured, and --gate, if given, was passed. They may be low: the last line says so.
1	An element is wrong, nobody checked them, there was no result, or --gate was not passed.
125	A failure of sparkrun's own, as of launch.
128+n	Signal n ended the rank that failed first, or launch was told by it to end the job.
other	The exit code of the rank that failed first.`

// manual gives the sections of a page that stand between options and examples.
func manual(path string) []section {
	out := []section{{"EXIT STATUS", usualExits}}
	if special, ok := exitStatuses[path]; ok {
		out[0].text = special
	}
	switch path {
	case "sparkrun":
		out = append(out, section{"ENVIRONMENT", commandEnvironment}, section{"FILES", files})
	case "sparkrun launch", "sparkrun launch exec", "sparkrun launch torchrun", "sparkrun launch nccl-test", "sparkrun launch ib-test":
		out = append(out, section{"ENVIRONMENT", rankEnvironment})
		if path == "sparkrun launch" {
			out = append(out, section{"FILES", jobFiles})
		}
	case "sparkrun agent":
		out = append(out, section{"ENVIRONMENT", agentEnvironment}, section{"FILES", files})
	case "sparkrun init", "sparkrun join", "sparkrun leave":
		out = append(out, section{"FILES", files})
	}
	return out
}

const commandEnvironment = `SPARKRUN_SOCKET	Where the agent answers (default: /run/sparkrun/agent.sock).
SPARKRUN_STATE	Where a machine keeps its state (default: /var/lib/sparkrun).
SPARKRUN_RUN	What must not outlive a reboot (default: /run/sparkrun).
SPARKRUN_SYSFS	Where sysfs is (default: /sys).
NO_COLOR	Any value: no colours.
COLUMNS	The width of what is no terminal.

The three folders are for several agents on one machine, as tests have them: the
agent and all commands have to be given the same.`

const agentEnvironment = `SPARKRUN_LOG	debug logs every step, as --verbose does.
SPARKRUN_POLICY	Who may run ranks here (default: /etc/sparkrun/policy.yaml).
SPARKRUN_NETPLAN_APPLY	A program to run in place of netplan apply.
GOMEMLIMIT, GOGC, GOMAXPROCS	What the Go runtime goes by, in place of the agent's own choice.

SPARKRUN_STATE, SPARKRUN_RUN, SPARKRUN_SYSFS and SPARKRUN_SOCKET are told of in
sparkrun(1).`

const rankEnvironment = `Every rank finds, over what --env and the variables that travel bring:

RANK, WORLD_SIZE	Its number from 0, and how many ranks there are.
LOCAL_RANK, LOCAL_WORLD_SIZE	The same among the ranks of its machine.
GROUP_RANK, GROUP_WORLD_SIZE	The number of its machine, and how many there are.
ROLE_RANK, ROLE_WORLD_SIZE, ROLE_NAME	As torchrun sets them.
MASTER_ADDR, MASTER_PORT	An address of rank 0's machine that all others reach, and a port that was free there.
TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_MAX_RESTARTS, TORCHELASTIC_RUN_ID	Which try this is, of how many, of which job.
TORCHELASTIC_ERROR_FILE	Where torch's @record writes the exception that launch shows.
NCCL_*, GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, UCX_NET_DEVICES, OMPI_MCA_*	What that machine's network ports ask for; sparkrun env shows them, with sources.
OMP_NUM_THREADS	1 where a machine has several ranks.
SPARKRUN_JOB, SPARKRUN_HOST, SPARKRUN_ADDR	The job's id, the machine's name, its address.
SPARKRUN_NODE_RANK, SPARKRUN_NODE_COUNT	The number of its machine, and how many there are.
SPARKRUN_STAGE	The folder of --stage, where that was given.
SPARKRUN_SECRETS_DIR, NAME, NAME_FILE	The folder of the secrets; of each --secret its content, and its file.
HOME, USER, SHELL	Of the user, on that machine.

--env wins over all of these.`

const files = `/var/lib/sparkrun	This machine's identity, its copy of the record, the output of jobs. It is root's alone, for there are keys in it.
/run/sparkrun/agent.sock	Where the agent answers. Root and the group sparkrun may ask.
/lib/systemd/system/sparkrun.service	The agent's unit, where a package brought it; by the installer: /etc/systemd/system/sparkrun.service.
/var/lib/sparkrun/audit.log	Who did what, and who was refused: a JSON object a line, the machine's own; the older ones are audit.log.1 and on.
/etc/sparkrun/policy.yaml	Whom this machine lets run ranks, if the file is there: launch.users and launch.groups, lists of names. Root's, mode 0644.
/etc/netplan/40-cx7.yaml	The fabric's addresses, where sparkrun netplan apply has set them.`

const jobFiles = `/var/lib/sparkrun/logs	On each machine, what its ranks have written. sparkrun logs reads it.
/var/lib/sparkrun/stage	On each machine, what --stage brought.
/run/sparkrun/secrets	On each machine, in memory: what --secret brought, until the ranks have ended.
/etc/sparkrun/policy.yaml	On each machine, if it is there: who may run ranks on it.`
