package workloads

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// Ray are the options of a Ray cluster.
type Ray struct {
	// Program is `ray` on the nodes: a path, or a name looked up in the ranks' PATH.
	// Empty means the caller's $VIRTUAL_ENV/bin/ray, and ray where no virtual
	// environment is active, or in a container.
	Program string
	// Whole: the loss of a worker starts the job's next attempt, and not only that worker
	// again.
	Whole bool
	// Port and DashboardPort are the head's, for who has to find a cluster under numbers
	// that people know; 0: any that is free.
	Port, DashboardPort uint16
	// Args are further arguments of each `ray start`, HeadArgs of the head's alone.
	Args, HeadArgs []string
}

// rayRefused are arguments of `ray start` on which the rest of a job depends, and what to
// say about each.
var rayRefused = map[string]string{
	"--head":            "the first machine has the head",
	"--block":           "it is given anyway",
	"--address":         "it is where the job's head is",
	"--port":            "use --port",
	"--dashboard-port":  "use --dashboard-port",
	"--node-ip-address": "it is where the job's machines meet",
}

// check refuses arguments that would contradict what the job assumes about the cluster.
func (a Ray) check() error {
	if a.Port != 0 && a.Port == a.DashboardPort {
		return fmt.Errorf("--port and --dashboard-port %d: %w: want two ports", a.Port, launcher.ErrInvalid)
	}
	for i, arg := range slices.Concat(a.Args, a.HeadArgs) {
		if name, _, _ := strings.Cut(arg, "="); rayRefused[name] != "" {
			of := "--ray-arg"
			if i >= len(a.Args) {
				of = "--ray-head-arg"
			}
			return fmt.Errorf("%s=%s: %w: %s", of, arg, launcher.ErrInvalid, rayRefused[name])
		}
	}
	return nil
}

// The stages of a Ray job, and names of ports that others than Ray ask for.
const (
	RayHead    = "ray-head"
	RayWorkers = "ray-workers"
	RayCommand = "command"

	RayGCS       = RayHead + ".gcs"
	RayDashboard = RayHead + ".dashboard"

	// RayToken is the secret that whoever speaks to the cluster has to know
	// (docs.ray.io, "Ray token authentication": RAY_AUTH_MODE, Ray 2.52 and up).
	RayToken = "RAY_AUTH_TOKEN"
)

// rayWorkerPorts are for Ray's worker processes on a node, of which each listens on one
// (docs.ray.io, "Configuring Ray": by default 10002 to 19999).
const rayWorkerPorts = 512

// raySpec is a Ray cluster: the head, then a worker on each other node and, where there
// is a command, that on the head once all nodes are seen. Without a command the head is
// the main stage.
func raySpec(r Request) (launcher.Spec, error) {
	if r.RanksPerNode > 1 {
		return launcher.Spec{}, fmt.Errorf("--nproc-per-node %d: %w: Ray has one process a machine, which starts its "+
			"workers itself", r.RanksPerNode, launcher.ErrInvalid)
	}
	if r.Job.GPUs == launcher.NoGPUs && !r.NoGPUs {
		r.Job.GPUs = launcher.AnyGPUs
	}
	head, workers, err := r.RayCluster()
	if err != nil {
		return launcher.Spec{}, err
	}
	workers.Spares, workers.Replace = true, !r.Ray.Whole
	if len(r.Args) == 0 {
		head.Main = true
		r.Stdin, r.TTY = launcher.StdinNone, nil
		if r.Job.NodeTimeout == 0 { // it is a service: its machines may come back
			r.Job.NodeTimeout = launcher.Never
		}
		return Finish(r, "ray", []launcher.Stage{head, workers})
	}
	env, err := r.RayVariables(RayHead, RayAddress("ray"))
	if err != nil {
		return launcher.Spec{}, err
	}
	if r.Stdin == "0" { // on the head's machine the command is the second rank
		r.Stdin = "1"
	}
	command := launcher.Stage{Name: RayCommand, Main: true, Where: launcher.OnHead, PIDsOf: RayHead, RanksPerNode: 1,
		Argv: launcher.Lits(r.Args...), Env: env, Workdir: r.Workdir}
	return Finish(r, "ray", []launcher.Stage{head, workers, command})
}

// RayCluster makes the stages of a cluster, each with variables of its workload.
func (r Request) RayCluster(own ...launcher.Var) (head, workers launcher.Stage, err error) {
	if err = r.Ray.check(); err != nil {
		return head, workers, err
	}
	if head, err = r.rayStart(RayHead, launcher.OnHead, own...); err != nil {
		return head, workers, err
	}
	// Workers that find a GCS and no head in it give up after 40 s: `ray start` says so
	// once the head is in it (ray/_private/node.py, ray/scripts/scripts.py).
	head.Ready = []launcher.Probe{
		{Kind: launcher.ProbeTCP, What: "Ray's GCS", Port: launcher.Of(launcher.PortNamed(RayGCS))},
		{Kind: launcher.ProbeLog, What: "Ray on the head", Match: `Ray runtime started`},
	}
	if workers, err = r.rayStart(RayWorkers, launcher.OnRest, own...); err != nil {
		return head, workers, err
	}
	workers.Ready = r.raySees()
	return head, workers, nil
}

// RayAddress tells a program on the cluster where that is.
func RayAddress(source string) launcher.Var {
	return launcher.Var{Name: "RAY_ADDRESS", Value: launcher.Value{{Ref: launcher.Head}, {Lit: ":"},
		{Ref: launcher.HeadPortNamed(RayGCS)}}, Source: source}
}

// rayStart is a stage of `ray start`. Every port that it may listen on is given, as
// Ray's own defaults are the same for two clusters on one machine; but for that of Ray
// Client, 10001, as a Ray without that extra refuses the flag (ray/scripts/scripts.py).
func (r Request) rayStart(name string, where launcher.Where, own ...launcher.Var) (launcher.Stage, error) {
	st := launcher.Stage{Name: name, Where: where, RanksPerNode: 1, Workdir: r.Workdir}
	argv := launcher.Lits(r.rayProgram(), "start", "--block", "--log-color=false")
	flag := func(name string, value ...launcher.Part) {
		argv = append(argv, append(launcher.Value{{Lit: "--" + name + "="}}, value...))
	}
	port := func(of string, count int) launcher.Ref {
		named := launcher.NamedPort{Name: name + "." + of, Count: count}
		switch named.Name {
		case RayGCS:
			named.At = r.Ray.Port
		case RayDashboard:
			named.At = r.Ray.DashboardPort
		}
		st.Ports = append(st.Ports, named)
		return launcher.PortNamed(name + "." + of)
	}
	flag("node-ip-address", launcher.Part{Ref: launcher.NodeAddr})
	if where == launcher.OnHead {
		argv = append(argv, launcher.Lit("--head"), launcher.Lit("--dashboard-host=127.0.0.1"))
		flag("port", launcher.Part{Ref: port("gcs", 1)})
		if r.Container != nil { // where the command's container finds the sockets of this one
			argv = append(argv, launcher.Lit("--temp-dir="+launcher.SharedDir+"/ray"))
		}
		flag("dashboard-port", launcher.Part{Ref: port("dashboard", 1)})
	} else {
		flag("address", launcher.Part{Ref: launcher.Head}, launcher.Part{Lit: ":"},
			launcher.Part{Ref: launcher.HeadPortNamed(RayGCS)})
	}
	for _, of := range []string{"node-manager", "object-manager", "dashboard-agent-listen", "dashboard-agent-grpc",
		"runtime-env-agent"} {
		flag(of+"-port", launcher.Part{Ref: port(of, 1)})
	}
	flag("metrics-export-port", launcher.Part{Ref: port("metrics", 1)})
	flag("min-worker-port", launcher.Part{Ref: port("workers", rayWorkerPorts)})
	flag("max-worker-port", launcher.Part{Ref: launcher.LastPortNamed(name + ".workers")})
	argv = append(argv, launcher.Lits(r.Ray.Args...)...)
	if where == launcher.OnHead {
		argv = append(argv, launcher.Lits(r.Ray.HeadArgs...)...)
	}
	st.Argv = argv
	// two that have no flag (ray/dashboard/consts.py, ray/autoscaler/_private/constants.py)
	if where == launcher.OnHead {
		own = append([]launcher.Var{
			{Name: "DASHBOARD_METRIC_PORT", Value: launcher.Of(port("dashboard-metrics", 1)), Source: "ray"},
			{Name: "AUTOSCALER_METRIC_PORT", Value: launcher.Of(port("autoscaler-metrics", 1)), Source: "ray"},
		}, own...)
	}
	var err error
	st.Env, err = r.RayVariables(name, own...)
	return st, err
}

// RayVariables are what Ray's processes get, and what runs beside them: no rank's variables of
// torch, which Ray's workers would inherit and take for their own.
func (r Request) RayVariables(stage string, own ...launcher.Var) ([]launcher.Var, error) {
	lit := func(name, value string) launcher.Var {
		return launcher.Var{Name: name, Value: launcher.Lit(value), Source: "ray"}
	}
	all := []launcher.Var{
		lit("RAY_AUTH_MODE", "token"),
		lit("RAY_USAGE_STATS_ENABLED", "0"),
		// On a machine whose GPU has the memory Ray would kill workers for memory that is
		// the GPU's; sparkrun has a guard of its own.
		lit("RAY_memory_monitor_refresh_ms", "0"),
	}
	if stage == RayHead {
		all = append(all, launcher.Var{Name: "RAY_API_SERVER_ADDRESS", Value: launcher.Value{{Lit: "http://127.0.0.1:"},
			{Ref: launcher.HeadPortNamed(RayDashboard)}}, Source: "ray"})
	}
	return r.Variables("ray", false, append(all, own...)...)
}

// raySees are the probes that count what the cluster knows of. `ray status` lists nodes
// as " 1 node_HEX", and resources as " 0.0/3.0 GPU".
func (r Request) raySees() []launcher.Probe {
	status := []launcher.Value{launcher.Lit(r.rayProgram()), launcher.Lit("status"), launcher.Lit("--address"),
		{{Ref: launcher.Head}, {Lit: ":"}, {Ref: launcher.HeadPortNamed(RayGCS)}}}
	probes := []launcher.Probe{{
		Kind: launcher.ProbeExec, Head: true, What: "nodes seen in ray status", Argv: status,
		Match: `(?m)^ (\d+) node_[0-9a-f]{16,}`, Want: launcher.Of(launcher.NodeCount),
	}}
	if g := r.Job.GPUs; g != launcher.NoGPUs && g != launcher.AnyGPUs && !r.NoGPUs { // a Spark has one
		probes = append(probes, launcher.Probe{
			Kind: launcher.ProbeExec, Head: true, What: "GPUs seen in ray status", Argv: status,
			Match: `(?m)^ [0-9.]+/([0-9.]+) GPU`, Want: launcher.Of(launcher.NodeCount),
		})
	}
	return probes
}

func (r Request) rayProgram() string {
	if r.Ray.Program != "" {
		return r.Ray.Program
	}
	return r.InVenv("ray")
}
