package wire

import (
	"net/netip"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/usage"
	"github.com/sparkrun/sparkrun/rendezvous"
)

// WhyRequest asks what is wrong with a job, a service or a machine.
type WhyRequest struct {
	Of string `json:"of"` // a job as JobRequest has it, else a host
}

// WhyResponse is what was found, the most probable cause first.
type WhyResponse struct {
	Job  *rendezvous.JobStatus `json:"job,omitempty"`
	Host string                `json:"host,omitempty"` // of a machine that was asked for
	// Findings are empty where nothing was found.
	Findings []WhyFinding `json:"findings"`
	// Looked is what was looked at, in words; Unasked is what could not be, and why.
	Looked  []string `json:"looked"`
	Unasked []string `json:"unasked,omitempty"`
}

// WhyFinding is one thing that is wrong, or may be.
type WhyFinding struct {
	Code string `json:"code"` // stable: rank-stopped
	Text string `json:"text"` // a sentence: what is wrong, and where
	// Sure is how likely it is the cause, 1 to 100.
	Sure     int      `json:"sure"`
	Rank     *int     `json:"rank,omitempty"`
	Host     string   `json:"host,omitempty"`
	Port     string   `json:"port,omitempty"` // of the fabric
	Evidence []string `json:"evidence,omitempty"`
	Remedy   string   `json:"remedy,omitempty"` // what to type next
}

// LookRequest has a node look at itself and at ranks for two seconds.
type LookRequest struct {
	Job launcher.JobID `json:"job,omitempty"` // its ranks; empty: those of all jobs
	// Stacks has programs asked where they are, by py-spy, with their user's rights.
	Stacks bool `json:"stacks,omitempty"`
	// Folders are those whose file systems are of interest.
	Folders []string `json:"folders,omitempty"`
	// Engine has its container engine asked for a job, and even if nothing has had containers there.
	Engine bool `json:"engine,omitempty"`
	// Ends has it told at once who is at some ends of connections, and nothing else.
	Ends []Ends `json:"ends,omitempty"`
}

// Ends are those of a connection: that on the node that is asked, and the other one.
type Ends struct {
	Here  netip.AddrPort `json:"here"`
	There netip.AddrPort `json:"there"`
}

// End is who has one of them.
type End struct {
	PID  int            `json:"pid,omitempty"` // 0: no process of this machine has
	Name string         `json:"name,omitempty"`
	Job  launcher.JobID `json:"job_id,omitempty"` // whose it is; empty: no job's
	Rank int            `json:"rank"`
	// Listens: it has not taken the connection, or there is none.
	Listens bool `json:"listens,omitempty"`
	// Read: it has read all that has come, and is not stopped by a signal.
	Read bool `json:"read,omitempty"`
}

// NodeLook is what was seen on one node.
type NodeLook struct {
	ID      launcher.NodeID     `json:"id"`
	Host    string              `json:"host"`
	Machine usage.Machine       `json:"machine"`
	Past    []usage.Machine     `json:"past,omitempty"` // of the last minutes, the oldest first
	Links   []envgen.LinkChange `json:"links,omitempty"`
	Counts  []envgen.Counters   `json:"counts,omitempty"` // what RDMA devices counted in the last minute
	Ranks   []RankLook          `json:"ranks,omitempty"`
	Busy    []BusyProgram       `json:"busy,omitempty"`               // what else uses most of the processor
	Floor   int64               `json:"memory_floor_bytes,omitempty"` // the memory guard's; 0: there is none
	Starts  []StartLook         `json:"starts,omitempty"`             // of jobs whose ranks have not been exec'd
	Engine  string              `json:"engine,omitempty"`             // what is wrong with its container engine
	Ends    []End               `json:"ends,omitempty"`               // as asked for
	// Refused are attempts at a connection, of whomever, that failed at ports where ranks meet.
	Refused []Refused     `json:"refused,omitempty"`
	Error   string        `json:"error,omitempty"`
	Over    time.Duration `json:"over_ns"` // how long it was looked at
}

// Refused is where connections were refused while a node was looked at, and how many.
type Refused struct {
	At    netip.AddrPort `json:"at"`
	Count int            `json:"count"`
}

// StartLook is what a node does for a job until its ranks have been exec'd.
type StartLook struct {
	Job   launcher.JobID `json:"job_id"`
	Text  string         `json:"text"` // "pulls IMAGE: 3 GiB of 20 GiB"
	For   time.Duration  `json:"for_ns"`
	Still time.Duration  `json:"still_ns"`        // since Text was another one
	Brief bool           `json:"brief,omitempty"` // it takes a moment where nothing is wrong
}

// BusyProgram is a process that belongs to no rank that was asked for.
type BusyProgram struct {
	PID  int            `json:"pid"` // 0: several of them
	Name string         `json:"name"`
	Job  launcher.JobID `json:"job_id,omitempty"` // whose it is; empty: no job's
	CPU  float64        `json:"cpu"`              // cores in use
}

// RankLook is how the processes of one rank are, by the kernel's word.
type RankLook struct {
	Job    launcher.JobID `json:"job_id"`
	Rank   int            `json:"rank"`
	Host   string         `json:"host,omitempty"`
	Since  time.Time      `json:"since"`          // of its start
	Port   int            `json:"port,omitempty"` // at the head, where ranks meet; 0: none
	Main   ThreadLook     `json:"main"`           // the main thread of its program
	PID    int            `json:"pid"`            // of its program
	Name   string         `json:"name"`
	Count  int            `json:"threads"`
	Tracer int            `json:"tracer,omitempty"` // the process that traces it
	// TracerName is that process's name.
	TracerName string  `json:"tracer_name,omitempty"`
	CPU        float64 `json:"cpu"`        // cores in use while it was looked at
	Mean       float64 `json:"cpu_mean"`   // the same since it began
	Queued     float64 `json:"queued"`     // cores that its threads waited for
	Top        float64 `json:"top_thread"` // of its busiest thread, and those that it waited for
	// Locked: each thread waits without an end for what only another thread of its process could give.
	Locked bool `json:"locked,omitempty"`
	// Stuck is a process below it of which the same holds; Full is one that has as many files open as it may.
	Stuck *BusyProgram `json:"stuck,omitempty"`
	Full  *FullFiles   `json:"full,omitempty"`
	// Unread is a process below it that waits to write to its parent, which waits for it to end and reads nothing.
	Unread *BusyProgram `json:"unread,omitempty"`
	// Hang is a file for which a thread of it has waited all the while.
	Hang *FileWait `json:"hang,omitempty"`
	// Under is the program that waits for that of PID, which it has started; empty: none does, or a shell or the like.
	Under string `json:"under,omitempty"`
	// Backlog is how many connections wait until it takes them.
	Backlog int `json:"backlog,omitempty"`
	// Signals: it has handlers for signals that people send.
	Signals bool     `json:"signals,omitempty"`
	Disk    float64  `json:"disk"`   // 0 to 1: how often a thread of it waited for a disk or for memory
	Faults  float64  `json:"faults"` // pages a second that had to be read
	Swapped int64    `json:"swapped_bytes,omitempty"`
	Waits   []string `json:"waits,omitempty"` // the functions of the kernel in which its threads wait
	Group   Cgroup   `json:"cgroup"`
	Moves   Moves    `json:"moves"`
	Conns   []Conn   `json:"conns,omitempty"`
	// Awaits are the connections in which its threads wait, those of the main one first.
	Awaits []Await `json:"awaits,omitempty"`
	// Network are the variables of its environment that choose networks, with their values: NCCL_SOCKET_IFNAME=eth0.
	Network []string `json:"network,omitempty"`
	// World is the WORLD_SIZE in the environment of its processes, the greatest; Has are the RANKs of those that have it.
	World   int              `json:"world,omitempty"`
	Has     []int            `json:"has,omitempty"`
	Listens []netip.AddrPort `json:"listens,omitempty"`
	Stacks  []string         `json:"stacks,omitempty"` // of its main thread, the innermost function first
	Dumps   []string         `json:"dumps,omitempty"`  // files of NCCL's flight recorder
	// FileLock is the lock for which a thread of it has waited all the while.
	FileLock *FileLock `json:"file_lock,omitempty"`
	// Dead are processes below it that have not ended well, and that nobody has waited for.
	Dead []DeadChild `json:"dead,omitempty"`
	// Unseen says why there are no stacks.
	Unseen string `json:"unseen,omitempty"`
}

// Moves is what a rank loads and saves, in bytes a second, and the file in which it moves most; empty: that is not seen.
type Moves struct {
	Read    float64 `json:"read_bps"`
	Written float64 `json:"written_bps"`
	File    string  `json:"file,omitempty"`
}

// FileLock is a file's, and who holds it, as /proc/locks has it.
type FileLock struct {
	File   string      `json:"file"`
	Holder BusyProgram `json:"holder"`          // without PID: it is not told, as of one on another machine
	Works  bool        `json:"works,omitempty"` // it uses the processor, or waits for a disk or the network
}

// FullFiles is a process with its descriptors, those that are sockets, and how many it may have.
type FullFiles struct {
	PID     int    `json:"pid"`
	Name    string `json:"name"`
	Open    int    `json:"open"`
	Sockets int    `json:"sockets"`
	Limit   int    `json:"limit"`
}

// FileWait is a file that its file system does not give to a process; empty: which is not seen.
type FileWait struct {
	PID   int    `json:"pid"`
	Name  string `json:"name"`
	File  string `json:"file,omitempty"`
	Type  string `json:"type,omitempty"` // of the file system: fuse.sshfs, nfs4
	Mount string `json:"mount,omitempty"`
}

// DeadChild is a zombie.
type DeadChild struct {
	PID  int    `json:"pid"`
	Name string `json:"name"`
	End  string `json:"end"` // "exit 1", "killed by SIGKILL (9)"
}

// ThreadLook is how one thread is.
type ThreadLook struct {
	State string `json:"state"` // R, S, D, T, t or Z
	// In is what it waits for: lock, file lock, sleep, network, poll, input, pipe, terminal, child, disk, frozen; empty: it
	// runs, or waits for something else, of which At is the function of the kernel.
	In  string `json:"in,omitempty"`
	At  string `json:"at,omitempty"`
	Ran uint64 `json:"ran"` // how often it was given a processor while it was looked at
}

// Cgroup is what holds a rank back, of its groups up to the root.
type Cgroup struct {
	Path      string   `json:"path,omitempty"`
	Throttled float64  `json:"throttled"` // part of the time, 0 to 1, in which a quota of processor time was used up
	Quota     string   `json:"quota,omitempty"`
	Stalled   *float64 `json:"stalled,omitempty"` // part of the time in which all of it waited for memory
	Limit     int64    `json:"limit_bytes,omitempty"`
	Held      int64    `json:"held_bytes,omitempty"` // of Limit
	LimitFile string   `json:"limit_file,omitempty"` // that has Limit
	// Refaults are pages a second that were taken from the group with Limit a short while ago, and are read again.
	Refaults float64 `json:"refaults,omitempty"`
	Killed   int64   `json:"killed,omitempty"` // its processes that were killed at Limit, ever
}

// Conn is a TCP connection of a rank.
type Conn struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	RTT    time.Duration  `json:"rtt_ns"`
	MinRTT time.Duration  `json:"min_rtt_ns"`
	Sent   uint32         `json:"sent"`  // segments with data while it was looked at
	Again  uint32         `json:"again"` // those of them that were sent again
	// Total and TotalAgain are the same since it was made.
	Total      uint32 `json:"total"`
	TotalAgain uint32 `json:"total_again"`
	Tries      uint8  `json:"tries"`  // how often in a row the oldest has been sent again
	Queued     uint32 `json:"queued"` // bytes that are not acknowledged or not sent
	Moved      uint64 `json:"moved"`  // bytes that went either way while it was looked at
	// Connects: nothing has taken it yet.
	Connects bool `json:"connects,omitempty"`
	// Narrow is the size in bytes of packets that are lost on the way while small ones are not; 0: none are known to be.
	Narrow int `json:"narrow,omitempty"`
	// Idle is for how long no data has gone either way.
	Idle time.Duration `json:"idle_ns"`
}

// Await is a connection in which a thread waits for the other end.
type Await struct {
	Local  netip.AddrPort `json:"local"`
	Remote netip.AddrPort `json:"remote"`
	// Main: the main thread of the rank's program does.
	Main bool `json:"main,omitempty"`
	// Connects: nothing has taken it yet. Asks: it is UDP, and was seen for most of the time.
	Connects bool `json:"connects,omitempty"`
	Asks     bool `json:"asks,omitempty"`
	// Client: the other end has made it, to where the rank listens.
	Client bool `json:"client,omitempty"`
	// Idle is for how long no byte has gone either way, or at least for how long it has tried to connect.
	Idle time.Duration `json:"idle_ns"`
	// Setting is the variable of its environment that has this other end: HTTPS_PROXY.
	Setting string `json:"setting,omitempty"`
	// Who has the other end, in words; Own: a rank of its own job. Who asks fills them in.
	Who string `json:"who,omitempty"`
	Own bool   `json:"own,omitempty"`
	// End is the same as its machine tells it; nil: it is no member's.
	End  *End   `json:"end,omitempty"`
	Host string `json:"host,omitempty"` // of End
}
