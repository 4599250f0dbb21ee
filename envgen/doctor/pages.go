package doctor

import (
	"fmt"

	"github.com/sparkrun/sparkrun/envgen"
)

const (
	// largeBlock, in bytes, is what a page of a GPU and a pinned buffer want in one piece.
	largeBlock = 2 * mib
	// whole is the part of the free memory that has to lie in large blocks, 1/whole. GB10s after eight days of serving
	// had 116 GiB available and no block of 32 MiB, after a reboot 115 GiB in them (FujitsuPolycom/sparkring#173, PR#202).
	whole = 8
	// noKHO keeps the kernel from setting pages aside for a successor (kernel-parameters.txt: kho=).
	noKHO = `echo 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT kho=off"' | ` +
		`sudo tee /etc/default/grub.d/kho.cfg && sudo update-grub && sudo reboot`
)

// pages evaluates in which pieces memory is free, and what may be done with it.
func (ch *checker) pages(m Memory) {
	f, host := ch.node.Facts, ch.node.Host
	// Where the page cache has most of it, that is to be dropped first, and is a finding of its own.
	if m.LargeFree != nil && m.Free > m.Total/16 && *m.LargeFree < m.Free/whole {
		ch.add(codeFragments, envgen.SeverityWarning,
			fmt.Sprintf("%s has %s free, in small pieces: a model loads there for minutes, or not at all; if compacting does "+
				"not help, reboot", host, size(m.Free)),
			fmt.Sprintf("%s of it in blocks of 2 MiB or more, by /proc/buddyinfo", size(*m.LargeFree)),
			dropCache+" && echo 1 | sudo tee /proc/sys/vm/compact_memory")
	}
	// CmaTotal of 0 alone is nothing: NVIDIA's kernels set none aside (NVIDIA/NV-Kernels#404). More free than there is
	// are the pages of KHO, seen with kernel 7.0.0-1019-nvidia (NVIDIA/NV-Kernels#590, aicad-nccl-optimization#1).
	if m.CMA != nil && m.CMAFree != nil && *m.CMAFree > *m.CMA && f.RDMA > 0 {
		ch.add(codeCMA, envgen.SeverityWarning,
			fmt.Sprintf("the kernel of %s keeps %s that RDMA cannot use: with a large model NCCL ends in `ibv_reg_mr_iova2 "+
				"failed with error Cannot allocate memory`", host, size(*m.CMAFree-*m.CMA)),
			fmt.Sprintf("CmaFree is %s and CmaTotal %s, kernel %s", size(*m.CMAFree), size(*m.CMA), or(f.Kernel, "not known")),
			noKHO)
	}
	if f.CacheKept != "" {
		ch.add(codeCacheKept, envgen.SeverityWarning,
			fmt.Sprintf("the agent of %s may not drop the page cache: before a job with a GPU it stays in its memory", host),
			f.CacheKept, "sudo systemctl restart sparkrun")
	}
}
