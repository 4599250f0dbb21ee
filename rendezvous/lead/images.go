package lead

import "github.com/sparkrun/sparkrun/launcher"

// unlikeImages says who has which image, once all nodes have told, where they do not have
// the same one; else it is empty.
func (g *gang) unlikeImages() string {
	var hosts []string
	var seen []*launcher.ImageSeen
	for _, s := range g.seats {
		if s.phase < launcher.PhasePrepared {
			return ""
		}
		hosts, seen = append(hosts, s.Host), append(seen, s.image)
	}
	image := ""
	if st := g.job.Spec.Stage(g.job.Plan.Stage); st != nil && st.Container != nil {
		image = st.Container.Image
	}
	return launcher.UnlikeImages(image, hosts, seen)
}
