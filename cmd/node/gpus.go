package node

import "path/filepath"

// gpus counts the GPUs that NVIDIA's driver has taken up: it keeps a folder for
// each, named by its PCI address.
func gpus(proc string) int {
	found, _ := filepath.Glob(filepath.Join(proc, "driver/nvidia/gpus/*")) // the pattern is a good one
	return len(found)
}
