package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sparkrun/sparkrun/envgen"
)

const (
	// skewWarning puts logs out of order; skewError approaches the tolerance for a certificate's
	// start.
	skewWarning = time.Second
	skewError   = time.Minute
)

// compare evaluates all nodes together.
func (ch *checker) compare(nodes []Node) {
	ch.skew(nodes)
	ch.volumes(nodes)
	nodes = slices.DeleteFunc(slices.Clone(nodes),
		func(n Node) bool { return n.Witness }) // it runs no part of any job
	ch.unequal(nodes, codeDriverUnequal, envgen.SeverityWarning, "the NVIDIA driver", "cat /proc/driver/nvidia/version",
		func(f *Facts) string { return f.Driver })
	ch.unequal(nodes, codeKernelUnequal, envgen.SeverityInfo, "the kernel", "uname -r",
		func(f *Facts) string { return f.Kernel })
	for _, p := range []struct{ name, code, what string }{
		{"nccl", codeNCCLUnequal, "NCCL"}, {"vllm", codeVLLMUnequal, "vLLM"}, {"torch", codeTorchUnequal, "PyTorch"},
	} {
		for _, where := range places(nodes, p.name) {
			ch.unequal(nodes, p.code, envgen.SeverityWarning, p.what+" in "+where, "ls "+where,
				func(f *Facts) string { return versionIn(f, p.name, where) })
		}
	}
	for _, path := range confPaths(nodes) {
		ch.confUnequal(nodes, path)
	}
}

// skew compares the clocks with the asking node's. Only what exceeds the bound of the
// measurement is certain.
func (ch *checker) skew(nodes []Node) {
	for _, n := range nodes {
		c := n.Facts.Clock
		if c.Offset == nil || c.Bound == nil {
			continue
		}
		off := c.Offset.Abs() - *c.Bound
		if off <= skewWarning {
			continue
		}
		severity, how := envgen.SeverityWarning, "ahead of"
		if off > skewError {
			severity = envgen.SeverityError
		}
		if *c.Offset < 0 {
			how = "behind"
		}
		ch.about(n, codeClockSkew, severity,
			fmt.Sprintf("the clock of %s is %s %s that of the node that asked", n.Host,
				c.Offset.Abs().Round(100*time.Millisecond), how),
			fmt.Sprintf("offset %s, give or take %s", c.Offset.Round(time.Millisecond),
				c.Bound.Round(time.Millisecond)), "sudo timedatectl set-ntp true && timedatectl timesync-status")
	}
}

// unequal names the nodes that differ from most. An absent value differs from nothing.
func (ch *checker) unequal(nodes []Node, code string, s envgen.Severity, what, remedy string, of func(*Facts) string) {
	usual, where, others := differing(nodes, of)
	for _, n := range others {
		ch.about(n, code, s, fmt.Sprintf("%s on %s is not the same as on %s", what, n.Host, where),
			fmt.Sprintf("%s here, %s on %s", of(n.Facts), usual, where), remedy)
	}
}

// differing gives the most frequent value, where it is found, and the nodes that have another. Nodes with an empty
// value are not counted.
func differing(nodes []Node, of func(*Facts) string) (usual, where string, others []Node) {
	have := map[string][]string{}
	for _, n := range nodes {
		if v := of(n.Facts); v != "" {
			have[v] = append(have[v], n.Host)
		}
	}
	if len(have) < 2 {
		return "", "", nil
	}
	usual = most(have)
	for _, n := range nodes {
		if v := of(n.Facts); v != "" && v != usual {
			others = append(others, n)
		}
	}
	return usual, strings.Join(have[usual], ", "), others
}

// most is the most frequent value; among equally frequent ones the newest, so that the advice is never
// to downgrade.
func most(have map[string][]string) string {
	return slices.MaxFunc(slices.Sorted(maps.Keys(have)), func(a, b string) int {
		if d := len(have[a]) - len(have[b]); d != 0 {
			return d
		}
		return compareVersions(a, b)
	})
}

func places(nodes []Node, name string) []string {
	var out []string
	for _, n := range nodes {
		for _, p := range n.Facts.Packages {
			if p.Name == name && !slices.Contains(out, p.Where) {
				out = append(out, p.Where)
			}
		}
	}
	slices.Sort(out)
	return out
}

// versionIn is the version of a package in a folder: the newest of several.
func versionIn(f *Facts, name, where string) string {
	newest := ""
	for _, p := range f.Packages {
		if p.Name == name && p.Where == where && (newest == "" || compareVersions(p.Version, newest) > 0) {
			newest = p.Version
		}
	}
	return newest
}

func confPaths(nodes []Node) []string {
	var out []string
	for _, n := range nodes {
		for _, c := range n.Facts.NCCLConf {
			if !slices.Contains(out, c.Path) {
				out = append(out, c.Path)
			}
		}
	}
	slices.Sort(out)
	return out
}

// confUnequal compares one NCCL configuration file on all nodes; a missing file counts as
// empty.
func (ch *checker) confUnequal(nodes []Node, path string) {
	words := func(f *Facts) string {
		var out []string
		for _, c := range f.NCCLConf {
			for _, s := range c.Settings {
				if c.Path == path {
					out = append(out, s.Name+"="+s.Value)
				}
			}
		}
		slices.Sort(out)
		return or(strings.Join(out, " "), "nothing")
	}
	usual, where, others := differing(nodes, words)
	for _, n := range others {
		ch.about(n, codeNCCLConfUnequal, envgen.SeverityWarning,
			fmt.Sprintf("%s says something else on %s than on %s", path, n.Host, where),
			fmt.Sprintf("%s here, %s there", words(n.Facts), usual), "sudoedit "+path)
	}
}

// remote are transports by which two machines can reach one disk. Two local disks with one UUID are harmless
// copies, as on a machine that was cloned.
var remote = []string{"tcp", "rdma", "fc", "iscsi"}

// volumes finds a volume that two nodes have mounted, at least one of them for writing: each caches the file
// system's state in memory. With two writers it is destroyed; with one, a reader sees it change unexpectedly.
func (ch *checker) volumes(nodes []Node) {
	type mount struct {
		node Node
		Volume
	}
	byUUID := map[string][]mount{}
	for _, n := range nodes {
		for _, v := range n.Facts.Volumes {
			if slices.Contains(remote, v.Transport) {
				byUUID[v.UUID] = append(byUUID[v.UUID], mount{n, v})
			}
		}
	}
	for _, uuid := range slices.Sorted(maps.Keys(byUUID)) {
		all := byUUID[uuid]
		first := slices.IndexFunc(all, func(m mount) bool { return m.Write })
		if first < 0 {
			continue
		}
		var words []string
		for _, m := range all {
			how := "read-only"
			if m.Write {
				how = "writable"
			}
			words = append(words, fmt.Sprintf("%s on %s at %s, %s, over %s", m.Device, m.node.Host, m.Dir, how, m.Transport))
		}
		for _, m := range all {
			if m.node.ID == all[first].node.ID {
				continue
			}
			severity, effect := envgen.SeverityWarning, "what is read there may be wrong"
			if m.Write {
				severity, effect = envgen.SeverityError, "two writers destroy the file system"
			}
			ch.about(m.node, codeVolumeShared, severity,
				fmt.Sprintf("%s volume %s is mounted at %s of %s while %s writes to it: %s", m.FS, uuid, m.Dir,
					m.node.Host, all[first].node.Host, effect),
				strings.Join(words, "; "), "sudo umount "+m.Dir)
			ch.found[len(ch.found)-1].Device = m.Device
		}
	}
}
