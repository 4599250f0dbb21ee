package lead

import "github.com/sparkrun/sparkrun/launcher"

// unlikeImages says who has which image, once all nodes have told, where they do not have
// the same one; else it is empty.
func (r *run) unlikeImages() string {
	var hosts []string
	var seen []*launcher.ImageSeen
	for _, p := range r.placements {
		if p.phase < launcher.PhasePrepared {
			return ""
		}
		hosts, seen = append(hosts, p.Host), append(seen, p.image)
	}
	image := ""
	if st := r.job.Spec.Stage(r.job.Plan.Stage); st != nil && st.Container != nil {
		image = st.Container.Image
	}
	return launcher.UnlikeImages(image, hosts, seen)
}
