package lead

import "github.com/sparkrun/sparkrun/launcher"

// unlikeImages says which node has which image if they differ; empty before all nodes are prepared.
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
