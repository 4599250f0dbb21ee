package nccltest

import (
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Log is what NCCL's own lines (NCCL_DEBUG=INFO) say, over all ranks.
type Log struct {
	// Seen: there were lines of NCCL's at all.
	Seen bool `json:"seen"`
	// Version is the library's, as it names itself: 2.28.3+cuda13.0.
	Version string `json:"version,omitempty"`
	// Using are the RDMA devices that NCCL listed, by the process that did: "spark1:2293".
	Using map[string][]string `json:"using,omitempty"`
	// Sockets are the interfaces of its socket transport, likewise.
	Sockets map[string][]string `json:"sockets,omitempty"`
	// Via counts connections by transport: "NET/IB", "NET/Socket", "P2P", "SHM".
	Via map[string]int `json:"via,omitempty"`
	// NoIB: some process found no RDMA device.
	NoIB bool `json:"no_ib,omitempty"`
	// Bad are lines that tell of trouble, each text once, at most ten.
	Bad []string `json:"bad,omitempty"`
}

var (
	// NCCL's src/debug.cc. A warning names its place in the source, since 2.30 its function, too:
	// "HOST:PID:TID [DEVICE] misc/ibvwrap.cc:291 (wrap_ibv_modify_qp) NCCL WARN ...". Since 2.26 the
	// time stands before it, and where NCCL_DEBUG_TIMESTAMP_LEVELS says so, before all. A row of the
	// table that waits for its numbers may stand there as well, without a space between: "-1HOST:...".
	logLine     = plain.Pattern(`([A-Za-z0-9][^\s:]*):(\d+):\d+ \[-?\d+\] (?:\S+:\d+ (?:\(\S*\) )?)?NCCL (INFO|WARN) (.*)$`)
	logVersion  = plain.Pattern(`^NCCL version (\S+)`)
	usingIB     = plain.Pattern(`^NET/IB : Using (.*)$`)
	usingSocket = plain.Pattern(`^NET/Socket : Using (.*)$`)
	// A device, its port and its link layer: [0]rocep1s0f0:1/RoCE; since 2.30 the port may be
	// followed by a rail and a plane: [0]rocep1s0f0:1:0:2/RoCE. Without a device the line comes all
	// the same: "NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>".
	ibDevice     = plain.Pattern(`\[\d+\]([^\s:\[\]]+):\d+[:\d]*/`)
	socketDevice = plain.Pattern(`\[\d+\]([^\s:\[\]]+):`)
	viaTransport = plain.Pattern(`\] via (NET/[A-Za-z_]+|P2P|SHM|C2C)`)
	// A plugin's name has its version: NET/IBext_v8 (github.com/Mellanox/nccl-rdma-sharp-plugins).
	viaPlugin = plain.Pattern(`^NET/IBext`)
	// What nccl-tests itself says of a call that failed: "HOST: Test NCCL failure common.cu:1234
	// 'unhandled system error / ...'" (its src/common.h).
	testFailure = plain.Pattern(`Test NCCL failure \S+:\d+ .*$`)
)

// registers is part of the names of verbs that register memory: ibv_reg_mr, ibv_reg_mr_iova2.
const registers = "ibv_reg_mr"

// trouble are parts of lines that never come in a good run.
var trouble = []string{"ibv_modify_qp failed", "Got completion from peer", "Connection timed out", registers,
	"async fatal event", "Got async error event"}

// Line takes one line of a rank's output. It reports whether it was NCCL's.
func (l *Log) Line(line string) bool {
	line = strings.TrimRight(line, "\r")
	if !strings.Contains(line, "NCCL ") && !strings.Contains(line, " failure ") {
		return false
	}
	m := logLine().FindStringSubmatch(line)
	if m == nil {
		if failure := testFailure().FindString(line); failure != "" {
			l.bad(failure)
		}
		return false
	}
	l.Seen = true
	who, text := m[1]+":"+m[2], m[4]
	switch {
	case logVersion().MatchString(text):
		l.Version = logVersion().FindStringSubmatch(text)[1]
	case strings.HasPrefix(text, "NET/IB : No device found"):
		l.NoIB = true
	case usingIB().MatchString(text):
		l.Using = put(l.Using, who, ibDevice().FindAllStringSubmatch(text, -1))
	case usingSocket().MatchString(text):
		l.Sockets = put(l.Sockets, who, socketDevice().FindAllStringSubmatch(text, -1))
	}
	if v := viaTransport().FindStringSubmatch(text); v != nil {
		if l.Via == nil {
			l.Via = map[string]int{}
		}
		if viaPlugin().MatchString(v[1]) {
			v[1] = "NET/IB"
		}
		l.Via[v[1]]++
	}
	if troubled(text) {
		l.bad(text)
	}
	return true
}

func troubled(text string) bool {
	return slices.ContainsFunc(trouble, func(t string) bool { return strings.Contains(text, t) })
}

// Links tells whether NCCL met errors on its way to another machine, by its own log: a call of its that
// failed may have lacked memory, or an argument. One that registers memory asks no other machine: it
// fails where the limit of locked memory is too low.
func (l Log) Links() bool {
	return slices.ContainsFunc(l.Bad,
		func(text string) bool { return troubled(text) && !strings.Contains(text, registers) })
}

func (l *Log) bad(text string) {
	if len(l.Bad) < 10 && !slices.Contains(l.Bad, text) {
		l.Bad = append(l.Bad, text)
	}
}

func put(m map[string][]string, who string, found [][]string) map[string][]string {
	if len(found) == 0 {
		return m
	}
	if m == nil {
		m = map[string][]string{}
	}
	for _, f := range found {
		if !slices.Contains(m[who], f[1]) {
			m[who] = append(m[who], f[1])
		}
	}
	return m
}

// overSockets: connections between nodes went by TCP, and none by RDMA.
func (l Log) overSockets() bool { return l.Via["NET/Socket"] > 0 && l.Via["NET/IB"] == 0 }

// fewestDevices is the process that listed the fewest RDMA devices; who is empty where
// none did.
func (l Log) fewestDevices() (who string, devices []string) {
	for w, d := range l.Using {
		if who == "" || len(d) < len(devices) || len(d) == len(devices) && w < who {
			who, devices = w, d
		}
	}
	return who, devices
}
