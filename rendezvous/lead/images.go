package lead

import (
	"fmt"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
)

// unlikeImages says who has which image, once all nodes have told, where they do not have
// the same one; else it is empty. A tag is moved on one machine and not on another, and
// ranks of two versions fail in ways that nobody reads an image's name from.
func (g *gang) unlikeImages() string {
	var groups []launcher.ImageSeen
	hosts := map[int][]string{}
	for _, s := range g.seats {
		if s.phase < launcher.PhasePrepared || s.image == nil {
			return ""
		}
		at := len(groups)
		for i, im := range groups {
			if im.Same(*s.image) {
				at = i
				break
			}
		}
		if at == len(groups) {
			groups = append(groups, *s.image)
		}
		hosts[at] = append(hosts[at], s.Host)
	}
	if len(groups) < 2 {
		return ""
	}
	var parts []string
	for i, im := range groups {
		verb := "has"
		if len(hosts[i]) > 1 {
			verb = "have"
		}
		parts = append(parts, fmt.Sprintf("%s %s %s", strings.Join(hosts[i], ", "), verb, im))
	}
	image := ""
	if st := g.job.Spec.Stage(g.job.Plan.Stage); st != nil && st.Container != nil {
		image = st.Container.Image
	}
	return fmt.Sprintf("the machines have different images under the name %s: %s: bring the same one to all (--pull always), or name it by its digest", image, strings.Join(parts, "; "))
}
