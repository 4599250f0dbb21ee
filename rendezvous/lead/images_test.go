package lead

import (
	"slices"
	"strings"
	"testing"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/rendezvous"
)

func TestUnlikeImages(t *testing.T) {
	const a, b, d = "sha256:aaaaaaaaaaaaaaaa", "sha256:bbbbbbbbbbbbbbbb", "sha256:dddddddddddddddd"
	for name, c := range map[string]struct {
		images []*launcher.ImageSeen
		want   string
	}{
		"on the host":  {[]*launcher.ImageSeen{nil, nil}, ""},
		"the same":     {[]*launcher.ImageSeen{{ID: a}, {ID: a}}, ""},
		"one build":    {[]*launcher.ImageSeen{{ID: a, Digest: d, Built: "x"}, {ID: b, Built: "x"}}, ""},
		"one manifest": {[]*launcher.ImageSeen{{ID: a, Digest: d}, {ID: b, Digest: d}}, ""},
		"not all told": {[]*launcher.ImageSeen{{ID: a}, {ID: b}, nil}, ""},
		"two": {[]*launcher.ImageSeen{{ID: a}, {ID: b}, {ID: a}},
			"under the name vllm: h0, h2 have aaaaaaaaaaaa; h1 has bbbbbbbbbbbb: "},
	} {
		r := &run{job: rendezvous.Job{Spec: launcher.Spec{Stages: []launcher.Stage{{Main: true,
			Container: &launcher.Container{Image: "vllm"}}}}}}
		for i, im := range c.images {
			p := &placement{phase: launcher.PhasePrepared, image: im}
			p.Host = "h" + string(rune('0'+i))
			r.placements = append(r.placements, p)
		}
		if got := r.unlikeImages(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if r.placements[0].phase = launcher.PhaseNone; r.unlikeImages() != "" {
			t.Errorf("%s: told before all are prepared", name)
		}
	}
}

// Machines whose rules say the same are named together, though each rule names its own.
func TestRefusalsAreGrouped(t *testing.T) {
	r := &run{}
	for host, text := range map[string]string{"spark1": "eve may not launch on spark1: rule launch",
		"spark2": "eve may not launch on spark2: rule launch", "spark10": "no room on spark10"} {
		p := &placement{refused: text}
		p.Host = host
		r.placements = append(r.placements, p)
	}
	slices.SortFunc(r.placements, func(a, b *placement) int { return strings.Compare(a.Host, b.Host) })
	if got, want := r.refusals(),
		"spark1, spark2: eve may not launch there: rule launch; spark10: no room on spark10"; strings.Join(sorted(got),
		"; ") != strings.Join(sorted(want), "; ") {
		t.Errorf("%q, want %q", got, want)
	}
	r.placements = r.placements[:1]
	if got, want := r.refusals(), "spark1: eve may not launch on spark1: rule launch"; got != want {
		t.Errorf("of one: %q, want %q", got, want)
	}
}

func sorted(refusals string) []string {
	all := strings.Split(refusals, "; ")
	slices.Sort(all)
	return all
}
