package topology

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

// drawn are the fixtures whose pictures are goldens: one of each shape, and each kind of mark.
var drawn = []string{
	"single.txt", "pair.txt", "pair-unlike-ports.txt", "pair-two-cables.txt", "mixed.txt", "switch.txt", "ring3.txt", "ring5.txt", "chain.txt",
	"chain-dead-cable.txt", "switch-dead-cable.txt", "islands.txt", "blend.txt", "servers.txt", "unknown.txt", "no-fabric.txt",
	"findings/cable-swapped.txt", "findings/ring-miswired.txt", "findings/no-link.stale.txt", "findings/cable-loop.txt", "findings/link-speed.txt",
}

func drawing(file, kind string) string {
	return "drawings/" + strings.ReplaceAll(strings.TrimSuffix(file, ".txt"), "findings/", "finding-") + kind
}

func TestMapGoldens(t *testing.T) {
	for _, file := range drawn {
		t.Run(file, func(t *testing.T) {
			golden(t, drawing(file, ".map"), Map(derive(t, load(t, file).in), 100))
		})
	}
	golden(t, "drawings/ring3-narrow.map", Map(derive(t, load(t, "ring3.txt").in), 48))
}

func TestSVGGoldens(t *testing.T) {
	for _, file := range drawn {
		t.Run(file, func(t *testing.T) {
			golden(t, drawing(file, ".svg"), string(SVG(derive(t, load(t, file).in))))
		})
	}
}

// Clusters as large as they come, drawn from what a probe would say.
func TestSVGOfMany(t *testing.T) {
	golden(t, "drawings/ring12.svg", string(SVG(derive(t, ring(sequence(12), true, true)))))
	golden(t, "drawings/ring9.svg", string(SVG(derive(t, ring(sequence(9), true, true)))))
	golden(t, "drawings/switch10.svg", string(SVG(derive(t, onSwitch(10)))))
}

// Nothing is wider than the terminal, and no line of a box is out of line.
func TestMapFits(t *testing.T) {
	for _, file := range drawn {
		topo := derive(t, load(t, file).in)
		for _, width := range []int{36, 48, 64, 80, 132} {
			for i, line := range strings.Split(Map(topo, width), "\n") {
				if n := utf8.RuneCountInString(line); n > width {
					t.Errorf("%s: line %d of width %d has %d columns: %s", file, i, width, n, line)
				}
			}
		}
	}
}

// A host name comes from another machine and may hold anything: an escape sequence for the terminal, markup for the
// picture.
func TestDrawingsOfHostileNames(t *testing.T) {
	f := load(t, "findings/cable-swapped.txt")
	for i := range f.in.Nodes {
		f.in.Nodes[i].Host = "\x1b]0;owned\a<script>&\xff\u202e"
		f.in.Nodes[i].Inventory.Devices[0].Name = "\x1b[2J</text>"
	}
	topo := derive(t, f.in)
	if text := Map(topo, 80); strings.ContainsAny(text, "\x1b\a\u202e") || !utf8.ValidString(text) {
		t.Errorf("the map lets through what it should not:\n%q", text)
	}
	dec := xml.NewDecoder(strings.NewReader(string(SVG(topo))))
	for {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "script" {
			t.Fatal("the picture holds a host name's markup")
		}
	}
}
