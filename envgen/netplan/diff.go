package netplan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Change is what a new file changes for one interface, considering all files of the node.
type Change struct {
	NIC string
	// Words are the changes, one sentence each; empty where nothing changes.
	Words []string
}

// Changes compares what each interface gets now with what it will get once Path has the new text. sources are the
// node's files; text is nil where Path is to be removed. Files that cannot be parsed are ignored: ParseAll names
// them.
func Changes(sources []Source, text *string, nics []Twin) []Change {
	before, _ := ParseAll(sources)
	after, _ := ParseAll(replaced(sources, text))
	var out []Change
	for _, t := range named(before, after, nics) {
		c := Change{NIC: t.NIC, Words: words(Effective(before, t), Effective(after, t))}
		if len(c.Words) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// replaced returns the node's files with another text for Path, or without it.
func replaced(sources []Source, text *string) []Source {
	out := slices.DeleteFunc(slices.Clone(sources), func(s Source) bool { return s.Path == Path })
	if text != nil {
		out = append(out, Source{Path: Path, Data: []byte(*text)})
	}
	return out
}

// named is nics plus every interface that the old or the new text of Path names: the new text may drop one.
func named(before, after []Document, nics []Twin) []Twin {
	out := slices.Clone(nics)
	for _, doc := range slices.Concat(before, after) {
		if doc.Path != Path {
			continue
		}
		for _, d := range doc.Definitions {
			if !slices.ContainsFunc(out, func(t Twin) bool { return d.names(t) != "" }) {
				out = append(out, Twin{NIC: d.ID})
			}
		}
	}
	return out
}

// words describes in sentences what changes between two settings.
func words(before, after *Settings) []string {
	switch {
	case before == nil && after == nil:
		return nil
	case before == nil:
		return append([]string{"is configured by netplan from now on"},
			words(&Settings{LinkLocal: after.LinkLocal}, after)...)
	case after == nil:
		out := []string{"is no longer configured by netplan"}
		if len(before.Addresses) > 0 {
			out = append(out, "loses "+orNone(before.Addresses))
		}
		return out
	}
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if gone := minus(before.Addresses, after.Addresses); len(gone) > 0 {
		say("loses %s", orNone(gone))
	}
	if fresh := minus(after.Addresses, before.Addresses); len(fresh) > 0 {
		say("gets %s", orNone(fresh))
	}
	switch was, is := before.MTU, after.MTU; {
	case was == nil && is != nil:
		say("MTU is set to %d", *is)
	case was != nil && is == nil:
		say("MTU %d is no longer set", *was)
	case was != nil && *was != *is:
		say("MTU %d becomes %d", *was, *is)
	}
	if before.DHCP4 != after.DHCP4 {
		say("DHCP for IPv4 %s becomes %s", word(before.DHCP4), word(after.DHCP4))
	}
	if before.DHCP6 != after.DHCP6 {
		say("DHCP for IPv6 %s becomes %s", word(before.DHCP6), word(after.DHCP6))
	}
	if !slices.Equal(before.LinkLocal, after.LinkLocal) {
		say("link-local %s becomes %s", bracket(before.LinkLocal), bracket(after.LinkLocal))
	}
	for _, key := range before.Others {
		if !slices.Contains(after.Others, key) {
			say("loses its %s", key)
		}
	}
	return out
}

func minus(a, b []netip.Prefix) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(a), func(p netip.Prefix) bool { return slices.Contains(b, p) })
}

// Unified is the difference of two texts in the form of diff -u with three lines of context; empty where they are
// equal. A missing text is "".
func Unified(fromName, toName, from, to string) string {
	if from == to {
		return ""
	}
	ops := edits(lines(from), lines(to))
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", fromName, toName)
	const context = 3
	for i := 0; i < len(ops); {
		if ops[i].kind == ' ' {
			i++
			continue
		}
		// A hunk ends where more than twice the context is unchanged.
		start, end, same := max(0, i-context), i, 0
		for j := i; j < len(ops) && same <= 2*context; j++ {
			if ops[j].kind == ' ' {
				same++
			} else {
				end, same = j+1, 0
			}
		}
		stop := min(len(ops), end+context)
		writeHunk(&b, ops, start, stop)
		i = stop
	}
	return b.String()
}

// edit is one line of a comparison: ' ' in both, '-' only in the old, '+' only in the new.
type edit struct {
	kind byte
	text string
}

func writeHunk(b *strings.Builder, ops []edit, start, stop int) {
	// Lines of each side before and within the hunk.
	var oldAt, newAt, oldN, newN int
	for i, op := range ops[:stop] {
		inOld, inNew := op.kind != '+', op.kind != '-'
		switch {
		case i < start:
			oldAt, newAt = oldAt+count(inOld), newAt+count(inNew)
		default:
			oldN, newN = oldN+count(inOld), newN+count(inNew)
		}
	}
	// Lines count from 1, but for a side without lines, where diff names the line before.
	fmt.Fprintf(b, "@@ -%d,%d +%d,%d @@\n", oldAt+count(oldN > 0), oldN, newAt+count(newN > 0), newN)
	for _, op := range ops[start:stop] {
		b.WriteByte(op.kind)
		b.WriteString(op.text)
		if !strings.HasSuffix(op.text, "\n") {
			b.WriteString("\n\\ No newline at end of file\n")
		}
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

func lines(s string) []string {
	out := strings.SplitAfter(s, "\n")
	return out[:len(out)-count(out[len(out)-1] == "")]
}

// maxCells bounds the table of edits; longer texts are shown as replaced. Netplan files have some tens of lines,
// so that this only affects other files.
const maxCells = 1 << 22

// edits compares line by line: the longest common subsequence between the common head and
// tail.
func edits(a, b []string) []edit {
	head := 0
	for head < len(a) && head < len(b) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < len(a)-head && tail < len(b)-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	x, y := a[head:len(a)-tail], b[head:len(b)-tail]
	var out []edit
	all := func(kind byte, ls []string) {
		for _, l := range ls {
			out = append(out, edit{kind, l})
		}
	}
	all(' ', a[:head])
	if (len(x)+1)*(len(y)+1) > maxCells {
		all('-', x)
		all('+', y)
	} else {
		out = append(out, middle(x, y)...)
	}
	all(' ', a[len(a)-tail:])
	return out
}

func middle(x, y []string) []edit {
	// common[i][j] is the length of the longest common subsequence of x[i:] and y[j:].
	common := make([][]int, len(x)+1)
	for i := range common {
		common[i] = make([]int, len(y)+1)
	}
	for i := len(x) - 1; i >= 0; i-- {
		for j := len(y) - 1; j >= 0; j-- {
			if x[i] == y[j] {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	var out []edit
	i, j := 0, 0
	for i < len(x) || j < len(y) {
		switch {
		case i < len(x) && j < len(y) && x[i] == y[j]:
			out = append(out, edit{' ', x[i]})
			i, j = i+1, j+1
		case j == len(y) || i < len(x) && common[i+1][j] >= common[i][j+1]:
			out = append(out, edit{'-', x[i]})
			i++
		default:
			out = append(out, edit{'+', y[j]})
			j++
		}
	}
	return out
}
