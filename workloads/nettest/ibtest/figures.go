package ibtest

import "github.com/sparkrun/sparkrun/workloads/nettest"

// What perftest's ib_write_bw gave on a GB10's links with messages of 64 KiB, Gb/s (10^9 bits) one way, and
// ib_write_lat with 2 bytes, us: owners' reports.
const (
	writeOneTwin       = 111.7
	writeCable         = 196.0  // both twins at once, MTU 9000
	writeCableSmallMTU = 189.85 // MTU 1500
	writeLatency       = 1.47
	// writePass is the least part of these that is called good: NVIDIA's mark of 175 Gb/s.
	writePass = nettest.PassGbps / writeCable
	// latencyPass likewise, of what is expected by what was measured, and switchLatency what
	// is granted a switch, us: assumptions, for nobody has published marks.
	latencyPass   = 0.5
	switchLatency = 1.0
)
