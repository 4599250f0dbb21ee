package node

import (
	"path/filepath"

	"github.com/sparkrun/sparkrun/launcher/agent"
	"github.com/sparkrun/sparkrun/rendezvous/wire"
)

// gpus counts the GPUs that NVIDIA's driver has taken up: it keeps a folder for
// each, named by its PCI address.
func gpus(proc string) int {
	found, _ := filepath.Glob(filepath.Join(proc, "driver/nvidia/gpus/*")) // the pattern is a good one
	return len(found)
}

// memoryNow is this machine's; nil where the kernel does not say.
func memoryNow() *wire.NodeMemory {
	total, available, err := agent.Memory()
	if err != nil {
		return nil
	}
	return &wire.NodeMemory{Total: total, Available: available, GPU: gpus("/proc") > 0}
}
